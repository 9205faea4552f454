"""Serves each of these applications by `penstock serve` or `penstock serve module:name` alone.

Not part of `make test`: `make test-applications` installs them (`scripts/setup applications`),
Python ones each in its own virtual environment. The programs are those of their frameworks' own
first pages; Django's and Rails' are made by their commands. Each test requests the first page and
the files that it refers to, and opens a live connection where there is one.

`APPLICATIONS` is the table that docs/applications.md shows.
"""

import asyncio
import contextlib
import os
import re
import shutil
import subprocess
import unittest
from html import unescape
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urljoin, urlsplit

import laying
import layouts
import ruby_projects
from harness import ROOT, RealCase, Server
from websockets import TEXT, WebSocket

HERE = Path(__file__).parent / "applications"
SECONDS = 60
# Files beside an application that are not part of it.
OTHERS = shutil.ignore_patterns(".venv", ".gems", "requirements.txt")


class Live(NamedTuple):
    """A WebSocket: the message to send, and the beginning of the first message received."""

    path: str
    sent: bytes | None
    begins: bytes


ECHO = Live("/echo", b"hello", b"hello")
# Engine.IO sends first, with the id of its session.
SOCKET_IO = b'0{"sid":'


class Application(NamedTuple):
    """One row: directory, arguments of `serve`, expected detection, and text on the page."""

    folder: str
    target: str | None
    kind: str
    text: str
    page: str = "/"
    assets: int = 0
    live: Live | None = None
    environment: str | None = None
    #: Makes its project, with what runs beside it, and gives the variables that it needs.
    make: Any = None
    #: What else is done with it once it serves.
    use: Any = None


APPLICATIONS = {
    "Flask": Application("flask", None, "wsgi", "Hello from Flask", assets=1),
    "Flask, a factory in a package": Application(
        "flask_factory", "shop:create_app", "wsgi", "Hello from a factory", environment="flask"
    ),
    "Django": Application("django", None, "wsgi", "The install worked successfully!"),
    "Django with Channels": Application(
        "channels", None, "asgi", "The install worked successfully!", live=ECHO
    ),
    "Wagtail": Application("wagtail", None, "wsgi", "Welcome to your new Wagtail site"),
    "FastAPI": Application("fastapi", None, "asgi", '{"hello":"FastAPI"}', live=ECHO),
    "Starlette": Application(
        "starlette", "service:site", "asgi", "Hello from Starlette", live=ECHO
    ),
    "Starlette-Admin": Application(
        "starlette_admin", None, "asgi", "Gauges", page="/admin/", assets=5
    ),
    "Litestar": Application("litestar", None, "asgi", '{"hello":"Litestar"}'),
    "Quart": Application("quart", None, "asgi", "Hello from Quart", live=ECHO),
    "Sanic": Application("sanic", None, "asgi", "Hello from Sanic", live=ECHO),
    "Bottle": Application("bottle", None, "wsgi", "Hello from Bottle"),
    "Falcon": Application("falcon", None, "wsgi", "Hello from Falcon"),
    "Falcon, async": Application(
        "falcon", "live:make_app", "asgi", "Hello from Falcon, without waiting", live=ECHO
    ),
    "Pyramid": Application("pyramid", None, "wsgi", "Hello from Pyramid"),
    "CherryPy": Application("cherrypy", None, "wsgi", "Hello from CherryPy"),
    "Dash": Application("dash", None, "wsgi", "<title>Dash</title>", assets=3),
    "Datasette": Application("datasette", None, "asgi", "gauges", assets=1),
    "marimo": Application("marimo", None, "asgi", "<marimo-", assets=2),
    "Shiny": Application(
        "shiny",
        None,
        "asgi",
        "Hello from Shiny",
        assets=3,
        live=Live("/websocket/", None, b'{"config":'),
    ),
    "FastHTML": Application("fasthtml", None, "asgi", "Hello from FastHTML"),
    "BlackSheep": Application("blacksheep", None, "asgi", "Hello from BlackSheep"),
    "NiceGUI": Application(
        "nicegui",
        None,
        "asgi",
        "Hello from NiceGUI",
        assets=3,
        live=Live("/_nicegui_ws/socket.io/?EIO=4&transport=websocket", None, SOCKET_IO),
    ),
    "Chainlit": Application(
        "chainlit",
        None,
        "asgi",
        '<div id="root">',
        page="/chat/",
        assets=2,
        live=Live("/chat/ws/socket.io/?EIO=4&transport=websocket", None, SOCKET_IO),
    ),
    "Rails with Action Cable": Application(
        "rails",
        None,
        "rack",
        "Hello from Rails",
        assets=2,
        make=ruby_projects.rails,
        use=ruby_projects.use_rails,
    ),
    "Redmine": Application(
        "redmine",
        None,
        "rack",
        "Redmine",
        assets=12,
        make=ruby_projects.redmine,
        use=ruby_projects.use_redmine,
    ),
    "Sinatra, classic": Application("sinatra", None, "rack", "Hello from Sinatra", assets=1),
    "Sinatra, modular": Application("sinatra_modular", None, "rack", "Hello from modular Sinatra"),
    "Sinatra, a class by name": Application(
        "sinatra_modular", "app.rb:Shop", "rack", "Hello from modular Sinatra"
    ),
    "Roda": Application("roda", None, "rack", "Hello from Roda"),
}

CONSUMER = """
from channels.generic.websocket import WebsocketConsumer


class Echo(WebsocketConsumer):
    def receive(self, text_data=None, bytes_data=None):
        self.send(text_data)
"""

ROUTING = """
import os

from channels.routing import ProtocolTypeRouter, URLRouter
from django.core.asgi import get_asgi_application
from django.urls import path

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "site_of_test.settings")
http = get_asgi_application()

from site_of_test.consumers import Echo  # noqa: E402

application = ProtocolTypeRouter(
    {"http": http, "websocket": URLRouter([path("echo", Echo.as_asgi())])}
)
"""


def assets(page, base):
    """Returns the files of this server that a page refers to."""
    links = re.findall(r'(?:src|href)="([^"#]+\.(?:js|css|png|svg|ico|woff2?)[^"]*)"', page)
    resolved = (urljoin(base, unescape(link)) for link in links)
    targets = [urlsplit(url) for url in resolved]
    ours = [url for url in targets if url.netloc == urlsplit(base).netloc]
    return list(dict.fromkeys(url.path + ("?" + url.query if url.query else "") for url in ours))


class Applications(RealCase):
    def check(self, name):
        app = APPLICATIONS[name]
        folder = self.folder() / "site"
        # Some write beside their code.
        shutil.copytree(HERE / app.folder, folder, ignore=OTHERS)
        with contextlib.ExitStack() as stack:
            env = self.prepare(app, folder, stack)
            targets = [app.target] if app.target else []
            server = Server(*targets, env=env, cwd=folder, seconds=SECONDS)
            self.server = stack.enter_context(server)
            try:
                self.look_at(app, server)
            finally:
                self.server = None

    def prepare(self, app, folder, stack):
        """Makes the project if a command does so; returns the variables of its environment."""
        home = HERE / (app.environment or app.folder)
        if app.kind == "rack":
            gems = home / ".gems"
            if (home / "gems.txt").exists() and not gems.exists():
                self.skipTest(f"{home / 'gems.txt'}: not installed by scripts/setup applications")
            env = {"GEM_PATH": f"{gems}:"} if gems.exists() else {}
            if app.make:
                env |= stack.enter_context(app.make(folder, self.folder()))
            return env
        environment = home / ".venv"
        self.assertTrue((environment / ".stamp").exists(), "scripts/setup applications")
        self.make_project(app, environment, folder)
        # Variables set outside this test belong to another environment.
        return {"VIRTUAL_ENV": str(environment), "PYTHONDONTWRITEBYTECODE": "1"}

    def look_at(self, app, server):
        ready = next(line for line in server.lines if "ready in" in line and line.startswith("app"))
        self.assertIn(f": {app.kind}, ", ready)
        page = server.get(app.page, {"Accept": "text/html"})
        for _ in range(3):
            if page.status in (301, 302, 303, 307, 308):
                page = server.get(
                    urlsplit(page.headers["Location"])._replace(scheme="", netloc="").geturl()
                )
        self.assertEqual(page.status, 200, page.body[:500])
        self.assertIn(app.text, unescape(page.text))
        files = assets(page.text, server.url + app.page)
        self.assertGreaterEqual(len(files), app.assets, page.text[:3000])
        for target in files:
            answer = server.get(target)
            self.assertEqual(answer.status, 200, target)
        if app.live:
            asyncio.run(asyncio.wait_for(self.live(app.live, server), SECONDS))
        if app.use:
            app.use(self, server)
        self.assertEqual(server.get(app.page).status, page.status)

    async def live(self, live, server):
        streams = await asyncio.open_connection("127.0.0.1", server.port)
        socket = await WebSocket.open(streams, live.path, f"127.0.0.1:{server.port}")
        if live.sent:
            socket.send(TEXT, live.sent)
        _, payload = await socket.receive()
        self.assertTrue(payload.startswith(live.begins), payload[:200])
        socket.writer.close()

    def make_project(self, app, environment, folder):
        """Makes a new project by Django's or Wagtail's own command."""
        if app.folder not in ("django", "channels", "wagtail"):
            return
        command = "wagtail" if app.folder == "wagtail" else "django-admin"
        run = [environment / "bin" / command, "start" if command == "wagtail" else "startproject"]
        subprocess.run([*run, "site_of_test", str(folder)], check=True, capture_output=True)
        if app.folder == "channels":
            package = folder / "site_of_test"
            (package / "consumers.py").write_text(CONSUMER)
            (package / "asgi.py").write_text(ROUTING)
        if app.folder == "wagtail":
            manage = [environment / "bin" / "python", "manage.py"]
            for words in (["migrate", "--no-input"], ["collectstatic", "--no-input"]):
                subprocess.run([*manage, *words], cwd=folder, check=True, capture_output=True)


class Layouts(RealCase):
    """Folders of every usual layout, each served without a configuration file or an argument."""

    def check(self, layout):
        parent = self.folder()
        project = (parent / "site").resolve()
        project.mkdir()
        environment = HERE / layout.environment / ".venv"
        if layout.environment:
            self.assertTrue((environment / ".stamp").exists(), "scripts/setup applications")
        env, link = laying.place_environment(layout, project, environment)
        if link:
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(environment)
        laying.generate(
            layout, project, environment, lambda line: ruby_projects.run(project, *line)
        )
        laying.write_files(layout, project)
        # Nothing that this machine's tools have set leads anywhere else.
        env = {"HOME": str(parent), "PYTHONDONTWRITEBYTECODE": "1"} | env | layout.env
        with Server(env=env, cwd=project, seconds=SECONDS) as server:
            self.server = server
            self.assertIn(layout.text, server.get("/").text)
            serving = [line for line in server.lines if line.startswith("serving ")]
            self.assertEqual(len(serving), 1, serving)
            self.assertIn(layout.found, serving[0])
            self.server = None


class Documents(unittest.TestCase):
    def test_the_table_is_the_one_that_is_tested(self):
        text = (ROOT / "docs" / "applications.md").read_text()
        table = text.split("## Served at the first try")[1]
        rows = re.findall(
            r"^\| (.+?) \| `(penstock serve[^`]*)`.*? \| (.*?) ?\|$", table, re.MULTILINE
        )
        self.assertEqual(len(rows), len(APPLICATIONS))
        for (name, command, live), (key, app) in zip(rows, APPLICATIONS.items(), strict=True):
            with self.subTest(name):
                self.assertEqual(
                    name.split(",")[0].split(" (")[0], key.split(",")[0].split(" with Act")[0]
                )
                expected = f"penstock serve {app.target}" if app.target else "penstock serve"
                self.assertEqual(command, expected)
                self.assertEqual(
                    bool(live), app.live is not None or app.use is ruby_projects.use_rails
                )


def _test_of(name):
    return lambda self: self.check(name)


for _name in APPLICATIONS:
    _words = re.sub(r"\W+", "_", _name.lower())
    setattr(Applications, f"test_{_words}", _test_of(_name))


def _test_of_layout(layout):
    return lambda self: self.check(layout)


for _name, _layout in (layouts.PYTHON | layouts.RUBY | layouts.OTHERS).items():
    _words = re.sub(r"\W+", "_", _name.lower())
    setattr(Layouts, f"test_{_words}", _test_of_layout(_layout))


# The environments are installed by `make test-applications` alone.
if not os.environ.get("PENSTOCK_APPLICATIONS"):
    Applications = unittest.skip("make test-applications")(Applications)
    Layouts = unittest.skip("make test-applications")(Layouts)
