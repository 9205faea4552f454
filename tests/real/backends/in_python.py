"""Back ends in Python: Gunicorn, uWSGI in three protocols, and a WebSocket echo."""

from backends import HERE, PYTHON, Backend, need


class Gunicorn(Backend):
    """Gunicorn with threads, over TCP on a port of its own choice."""

    def start(self):
        need("tests/real/backends/.venv", PYTHON)
        found = self.run(
            *(PYTHON, "-m", "gunicorn", "--chdir", HERE, "--worker-tmp-dir", self.folder),
            *("--bind", "127.0.0.1:0", "--workers", "2", "--threads", "4", "app:application"),
            ready=r"Listening at: http://(127\.0\.0\.1:\d+)",
        )
        self.servers = [found[1]]


class Uwsgi(Backend):
    """uWSGI by its own protocol over a Unix socket."""

    protocol = "uwsgi"
    option = "--socket"

    def start(self):
        binary = need("uwsgi-core", "uwsgi-core", "uwsgi")
        need("uwsgi-plugin-python3", "/usr/lib/uwsgi/plugins/python3_plugin.so")
        self.run(
            *(binary, "--plugins", "python3", "--chdir", HERE, "--wsgi-file", HERE / "app.py"),
            *("--need-app", "--master", "--processes", "2", "--die-on-term"),
            *("--buffer-size", "32768", self.option, self.socket()),
            ready="spawned uWSGI worker 2",
        )


class UwsgiScgi(Uwsgi):
    """uWSGI by SCGI."""

    protocol = "scgi"
    option = "--scgi-socket"


class UwsgiHttp(Uwsgi):
    """uWSGI by HTTP, which closes after each response."""

    protocol = "http"
    option = "--http-socket"


class WebSocketEcho(Backend):
    """An echo for WebSocket messages."""

    def start(self):
        need("tests/real/backends/.venv", PYTHON)
        found = self.run(PYTHON, HERE / "websocket_echo.py", ready=r"^echo on (\S+)$")
        self.servers = [found[1]]
