"""The scenarios: which servers answer the same request, how each is started, what must hold.

`run` asks for SCENARIOS and starts one server at a time from it. A server is a name and a function
that writes what it needs into a folder of its own and returns a command line; the command stays in
the foreground and listens on the port it is given.
What must stay true: all servers of a scenario send the same body; hello applications are those of
examples/; access logs are off; one process does the work, unless the name says otherwise. Settings
that make a peer cheaper are used (open_file_cache, plain `production` without middleware); the
comparison is worth nothing otherwise. The reference stands next to Penstock, to be measured next.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from install import ENV, ROOT, RUBY, command

HELLO = b"Hello, world!\n"
# As long as nginx's own default page, with which servers have been compared for decades.
PAGE = b"Still water behind a gate: 612 bytes.\n".ljust(611, b"~") + b"\n"


@dataclass(frozen=True)
class Place:
    """What one start of a server has to itself."""

    folder: Path
    port: int
    penstock: Path

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def write(self, name, text):
        path = self.folder / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path


@dataclass(frozen=True)
class Server:
    """A name, a command line for a place, and the command that must exist and tells its version."""

    name: str
    start: Callable[[Place], list]
    version: tuple = ()

    @property
    def installed(self):
        return not self.version or command(str(self.version[0])) is not None


@dataclass(frozen=True)
class Goal:
    """`of` needs at most `ratio` times the CPU per request of `reference`."""

    ratio: float
    reference: str
    of: str = "penstock"


@dataclass(frozen=True)
class Scenario:
    """Servers that answer the same GET; the goal's reference is what ratios refer to."""

    title: str
    path: str
    body: bytes
    goal: Goal
    servers: list[Server]
    folder: Path | None = None
    env: dict = field(default_factory=dict)


WSGI_HELLO = ROOT / "examples/wsgi-hello"
RACK_HELLO = ROOT / "examples/rack-hello"
GUNICORN, GRANIAN = ENV / "bin/gunicorn", ENV / "bin/granian"
PUMA, UNICORN, THIN, NGINX = "puma", "unicorn", "thin", "nginx"


def penstock(place, rest):
    head = f"""
[server]
listen = ["{place.address}"]
threads = 1
admin = "off"
access_log = "off"
"""
    return [place.penstock, "serve", "-c", place.write("penstock.toml", head + rest)]


def penstock_app(kind, entry, folder, interpreter):
    app = f"""
[apps.hello]
dir = "{folder}"
kind = "{kind}"
entry = "{entry}"
interpreter = "{interpreter}"
processes = 1
threads = 1
"""
    return Server("penstock", lambda place: penstock(place, app))


def penstock_files(place):
    (place.folder / "root").mkdir()
    place.write("root/page.txt", PAGE)
    route = f'[[sites]]\n[[sites.routes]]\nfiles = {{ root = "{place.folder}/root" }}\n'
    return penstock(place, route)


def gunicorn(name, *options):
    def start(place):
        fixed = ["--workers", "1", "--keep-alive", "75", "--log-level", "warning"]
        fixed += ["--no-control-socket", "--bind", place.address]
        return [GUNICORN, *fixed, *options, "app:application"]

    return Server(name, start, (GUNICORN, "--version"))


def granian(place):
    options = [
        "--interface",
        "wsgi",
        "--workers",
        "1",
        "--blocking-threads",
        "1",
        "--no-access-log",
    ]
    options += ["--http", "1", "--no-ws", "--log-level", "warning"]
    return [GRANIAN, *options, "--host", "127.0.0.1", "--port", place.port, "app:application"]


def uwsgi(place):
    options = ["--plugin", "python3", "--http-socket", place.address, "--processes", "1"]
    options += ["--master", "--die-on-term", "--disable-logging", "--need-app", "--listen", "1024"]
    # It closes each connection without saying so, which would count as an error.
    options += ["--add-header", "Connection: close"]
    return [command("uwsgi"), *options, "--chdir", WSGI_HELLO, "--module", "app:application"]


def ruby(name, *options):
    """A Ruby server under the interpreter that Penstock's workers get, too."""
    return [RUBY, command(name), *options]


def puma(threads):
    def start(place):
        options = ["-C", "-", "-e", "production", "-t", threads, "-b", f"tcp://{place.address}"]
        return ruby(PUMA, *options, "config.ru")

    return Server(f"puma {threads}", start, (PUMA, "--version"))


def unicorn(place):
    config = place.write("unicorn.rb", f'listen "{place.address}", backlog: 1024\n')
    return ruby(UNICORN, "-E", "production", "-N", "-c", config, "config.ru")


def thin(place):
    # By default it keeps 100 connections open and closes the others after each request.
    options = ["-q", "-e", "production", "-R", "config.ru", "--max-persistent-conns", "1024"]
    return ruby(THIN, *options, "-a", "127.0.0.1", "-p", place.port, "start")


def nginx(name, location, http=""):
    def start(place):
        root = place.folder / "root"
        root.mkdir()
        place.write("root/page.txt", PAGE)
        temporary = "\n".join(
            f"  {kind}_temp_path {place.folder}/{kind};"
            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        # The folder is root's alone.
        user = "user root;" if os.getuid() == 0 else ""
        config = f"""{user}
daemon off;
worker_processes 1;
pid {place.folder}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 1024; }}
http {{
{temporary}
  access_log off;
  default_type text/plain;
  keepalive_requests 1000000000;
  {http}
  server {{
    listen {place.address} backlog=1024;
    root {root};
    location / {{ {location} }}
  }}
}}
"""
        path = place.write("nginx.conf", config)
        return [command(NGINX), "-e", "stderr", "-p", place.folder, "-c", path]

    return Server(name, start, (NGINX, "-v"))


FILE_CACHE = "sendfile on; open_file_cache max=1000 inactive=60s; open_file_cache_valid 30s;"
PAGE_TEXT = PAGE.decode().replace("\n", "\\n")

SCENARIOS = {
    "wsgi": Scenario(
        title="WSGI hello, one worker process",
        path="/",
        body=HELLO,
        goal=Goal(0.20, "gunicorn gthread"),
        folder=WSGI_HELLO,
        servers=[
            penstock_app("wsgi", "app:application", WSGI_HELLO, ENV / "bin/python"),
            gunicorn("gunicorn gthread", "--worker-class", "gthread", "--threads", "4"),
            gunicorn("gunicorn sync", "--worker-class", "sync"),
            Server("granian", granian, (GRANIAN, "--version")),
            Server("uwsgi", uwsgi, ("uwsgi", "--version")),
        ],
    ),
    "rack": Scenario(
        title="Rack hello, one worker process",
        path="/",
        body=HELLO,
        goal=Goal(0.70, "puma 1:1"),
        folder=RACK_HELLO,
        env={"RACK_ENV": "production"},
        servers=[
            penstock_app("rack", "config.ru", RACK_HELLO, RUBY),
            puma("1:1"),
            puma("5:5"),
            Server("unicorn", unicorn, (UNICORN, "--version")),
            Server("thin", thin, (THIN, "--version")),
        ],
    ),
    "static": Scenario(
        title="a static file of 612 bytes",
        path="/page.txt",
        body=PAGE,
        goal=Goal(0.50, "nginx file cache"),
        servers=[
            Server("penstock", penstock_files),
            nginx("nginx file cache", "", FILE_CACHE),
            nginx("nginx sendfile", "", "sendfile on;"),
            nginx("nginx return 200", f'return 200 "{PAGE_TEXT}";'),
        ],
    ),
}
