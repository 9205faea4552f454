"""How Python, Ruby and other projects are laid out, and what a bare `penstock serve` finds in each.

`test_applications` makes each folder, without a configuration file, and serves it. Files are those of
the frameworks' own first pages, and of `django-admin startproject`; places of virtual environments
are those of the tools that make them.
"""

import base64
import hashlib
from typing import NamedTuple


class Layout(NamedTuple):
    """One folder: its files, where its interpreter is, and what the start says of it."""

    #: Path to text.
    files: dict[str, str]
    #: What `serving ...` names, with the framework.
    found: str
    #: On the first page.
    text: str = "Hello"
    #: The folder below `applications` with the packages; empty for the system's interpreter.
    environment: str = ""
    #: Where its environment is linked to: `{project}`, `{home}`, or a variable's name in capitals.
    place: str = "VIRTUAL_ENV"
    #: `django-admin startproject` or `rails new`, run first.
    generator: str = ""
    #: Variables of the server.
    env: dict[str, str] = {}


FLASK = """\
from flask import Flask

app = Flask(__name__)


@app.get("/")
def index():
    return "Hello"
"""

FACTORY = """\
from flask import Flask


def create_app(config=None):
    app = Flask(__name__)
    app.add_url_rule("/", "index", lambda: "Hello")
    return app
"""

STRICT_FACTORY = FACTORY.replace("config=None", "config")

FASTAPI = """\
from fastapi import FastAPI

app = FastAPI()


@app.get("/")
async def index():
    return "Hello"
"""

STARLETTE = """\
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route


async def index(request):
    return PlainTextResponse("Hello")


app = Starlette(routes=[Route("/", index)])
"""

LITESTAR = """\
from litestar import Litestar, get


@get("/")
async def index() -> str:
    return "Hello"


app = Litestar([index])
"""

QUART = (
    FLASK.replace("flask", "quart")
    .replace("Flask", "Quart")
    .replace("def index", "async def index")
)

SANIC = """\
from sanic import Sanic, text

app = Sanic("layouts")


@app.get("/")
async def index(request):
    return text("Hello")
"""

BLACKSHEEP = """\
from blacksheep import Application, get

app = Application()


@get("/")
async def index():
    return "Hello"
"""

BOTTLE = """\
import bottle


@bottle.route("/")
def index():
    return "Hello"


application = bottle.default_app()
"""

FALCON = """\
import falcon


class Index:
    def on_get(self, request, response):
        response.text = "Hello"


app = falcon.App()
app.add_route("/", Index())
"""

PYRAMID = """\
from pyramid.config import Configurator
from pyramid.response import Response


def main(global_config, **settings):
    with Configurator(settings=settings) as config:
        config.add_route("index", "/")
        config.add_view(lambda request: Response("Hello"), route_name="index")
        return config.make_wsgi_app()
"""

DJANGO_TEXT = "The install worked successfully!"

ASGI_APPLICATION = '\nASGI_APPLICATION = "mysite.asgi.application"\n'


def poetry_place(project):
    """Returns where Poetry keeps the environment of a project, below its cache."""
    digest = hashlib.sha256(str(project).encode()).digest()
    return f"pypoetry/virtualenvs/shop-{base64.urlsafe_b64encode(digest).decode()[:8]}-py3.11"


def pipenv_place(project):
    """Returns the name that Pipenv gives the environment of a project."""
    digest = hashlib.sha256(str(project / "Pipfile").encode()).digest()[:6]
    return f"{project.name}-{base64.urlsafe_b64encode(digest).decode()}"


PYTHON = {
    "Flask, app.py": Layout({"app.py": FLASK}, "app:app (Flask)", environment="flask"),
    "Flask, a factory in app.py": Layout(
        {"app.py": FACTORY}, "app:create_app() (Flask factory)", environment="flask"
    ),
    "Flask, a package app": Layout(
        {"app/__init__.py": FACTORY, "requirements.txt": "flask\n"},
        "app:create_app() (Flask factory)",
        environment="flask",
        place="{project}/.venv",
    ),
    "Flask, wsgi.py beside a factory with arguments": Layout(
        {
            "app/__init__.py": STRICT_FACTORY,
            "wsgi.py": "from app import create_app\n\napp = create_app('production')\n",
        },
        "wsgi:app (WSGI)",
        environment="flask",
        place="{project}/venv",
    ),
    "Flask, .flaskenv": Layout(
        {".flaskenv": "FLASK_APP=shop/web.py\n", "shop/__init__.py": "", "shop/web.py": FLASK},
        "shop.web (Flask)",
        environment="flask",
        place="{project}/env",
    ),
    "Flask, FLASK_APP": Layout(
        {"service.py": FACTORY, "other.py": FLASK},
        "service:create_app('x') (Flask factory)",
        environment="flask",
        env={"FLASK_APP": "service:create_app('x')"},
    ),
    "Flask, a package in src": Layout(
        {"src/shop/__init__.py": FACTORY, "pyproject.toml": "[project]\nname = 'shop'\n"},
        "shop:create_app() (Flask factory)",
        environment="flask",
        place="{parent}/.venv",
    ),
    "Flask, hello.py": Layout({"hello.py": FLASK}, "hello:app (Flask)", environment="flask"),
    "Flask, Poetry": Layout(
        {"pyproject.toml": '[tool.poetry]\nname = "shop"\n', "app.py": FLASK},
        "app:app (Flask)",
        environment="flask",
        place="POETRY",
    ),
    "Flask, Pipenv": Layout(
        {"Pipfile": "[packages]\nflask = '*'\n", "app.py": FLASK},
        "app:app (Flask)",
        environment="flask",
        place="PIPENV",
    ),
    "FastAPI, main.py": Layout({"main.py": FASTAPI}, "main:app (FastAPI)", environment="fastapi"),
    "FastAPI, app/main.py": Layout(
        {"app/main.py": FASTAPI, "app/__init__.py": ""},
        "app.main:app (FastAPI)",
        environment="fastapi",
        place="{project}/.venv",
    ),
    "FastAPI, src/main.py with uv": Layout(
        {"src/main.py": FASTAPI, "uv.lock": "version = 1\n"},
        "main:app (FastAPI)",
        environment="fastapi",
        place="UV_PROJECT_ENVIRONMENT",
    ),
    "FastAPI, api/main.py": Layout(
        {"api/main.py": FASTAPI, "environment.yml": "name: shop\n"},
        "api.main:app (FastAPI)",
        environment="fastapi",
        place="{home}/miniconda3/envs/shop",
    ),
    "FastAPI, an entry point in pyproject.toml": Layout(
        {
            "pyproject.toml": '[tool.fastapi]\nentrypoint = "backend.web:app"\n',
            "backend/web.py": FASTAPI,
        },
        "backend.web:app (FastAPI)",
        environment="fastapi",
    ),
    "FastAPI, a Procfile": Layout(
        {"Procfile": "web: uvicorn backend.web:app --port $PORT\n", "backend/web.py": FASTAPI},
        "backend.web:app (FastAPI)",
        environment="fastapi",
    ),
    "Starlette, server.py": Layout(
        {"server.py": STARLETTE}, "server:app (Starlette)", environment="starlette"
    ),
    "Litestar, app.py": Layout({"app.py": LITESTAR}, "app:app (Litestar)", environment="litestar"),
    "Quart, run.py": Layout({"run.py": QUART}, "run:app (Quart)", environment="quart"),
    "Sanic, server.py": Layout({"server.py": SANIC}, "server:app (Sanic)", environment="sanic"),
    "BlackSheep, main.py": Layout(
        {"main.py": BLACKSHEEP}, "main:app (BlackSheep)", environment="blacksheep"
    ),
    "Bottle, passenger_wsgi.py": Layout(
        {"passenger_wsgi.py": BOTTLE}, "passenger_wsgi:application (Bottle)", environment="bottle"
    ),
    "Falcon, app.py": Layout({"app.py": FALCON}, "app:app (Falcon)", environment="falcon"),
    "Pyramid, a package": Layout(
        {"shop/__init__.py": PYRAMID}, "shop (Pyramid)", environment="pyramid"
    ),
    "Django": Layout(
        {},
        "mysite.wsgi:application (Django)",
        text=DJANGO_TEXT,
        environment="django",
        generator="django",
    ),
    "Django, ASGI by its settings": Layout(
        {"mysite/settings.py": ASGI_APPLICATION},
        "mysite.asgi:application (Django)",
        text=DJANGO_TEXT,
        environment="django",
        generator="django",
    ),
}

CLASSIC = 'require "sinatra"\n\nget("/") { "Hello" }\n'
MODULAR = 'require "sinatra/base"\n\nclass Shop < Sinatra::Base\n  get("/") { "Hello" }\nend\n'
RACKUP = 'run ->(_env) { [200, { "content-type" => "text/plain" }, ["Hello"]] }\n'
GRAPE = """\
require "grape"

class API < Grape::API
  format :txt
  get("/") { "Hello" }
end
"""

RUBY = {
    "Rack, config.ru": Layout({"config.ru": RACKUP}, "config.ru (Rack)"),
    "Rack, a rackup file in a Procfile": Layout(
        {"Procfile": "web: puma -p $PORT site.ru\n", "site.ru": RACKUP}, "site.ru (Rack)"
    ),
    "Sinatra, app.rb": Layout({"app.rb": CLASSIC}, "app.rb (Sinatra)"),
    "Sinatra, hello.rb": Layout({"hello.rb": CLASSIC}, "hello.rb (Sinatra)"),
    "Sinatra, modular with config.ru and Bundler": Layout(
        {
            "shop.rb": MODULAR,
            "config.ru": 'require_relative "shop"\nrun Shop\n',
            "Gemfile": 'gem "sinatra"\n',
        },
        "config.ru (Sinatra)",
    ),
    "Sinatra, modular without config.ru": Layout({"web.rb": MODULAR}, "web.rb (Sinatra)"),
    "Grape, app.rb": Layout({"app.rb": GRAPE}, "app.rb (Grape)"),
    "Rails": Layout({}, "config.ru (Rails)", text="Hello", generator="rails"),
    "Rails without config.ru": Layout(
        {"config.ru": None}, "config/environment.rb (Rails)", text="Hello", generator="rails"
    ),
}

NODE = """\
require("http").createServer((request, response) => response.end("Hello"))
  .listen(process.env.PORT, "127.0.0.1")
"""

PROGRAM = """\
#!/usr/bin/env python3
import http.server
import os


class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"Hello")


http.server.HTTPServer(("127.0.0.1", int(os.environ["PORT"])), Page).serve_forever()
"""

OTHERS = {
    "Node.js, node": Layout(
        {"package.json": '{"scripts": {"start": "node server.js"}}', "server.js": NODE},
        "node server.js (Node.js)",
    ),
    "Node.js, npm": Layout(
        {"package.json": '{"scripts": {"start": "true && node server.js"}}', "server.js": NODE},
        "npm start (Node.js)",
    ),
    "PHP, index.php": Layout({"index.php": "<?php echo 'Hello';"}, "index.php by "),
    "PHP, public/index.php": Layout({"public/index.php": "<?php echo 'Hello';"}, "index.php by "),
    "a program by a Procfile": Layout(
        {"Procfile": "web: ./program\n", "program": PROGRAM}, "./program (Procfile)"
    ),
}
