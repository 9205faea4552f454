"""Starts real workers and templates: how an entry is found, and by which interface it is served."""

import json
import socket
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from harness import DEADLINE, ROOT, Peer, Template, Worker, request, wire

# isort: split
from channel_harness import open_frame

WSGI = """
def served(environ, start_response):
    start_response("200 OK", [])
    return [b"wsgi"]
"""

ASGI = """
async def served(scope, receive, send):
    if scope["type"] != "http":
        raise RuntimeError("no lifespan")
    await send({"type": "http.response.start", "status": 200})
    await send({"type": "http.response.body", "body": b"asgi"})
"""

HOLDERS = """
class Datasets:
    def app(self):
        return served
class Dashboard:
    server = staticmethod(served)
class Settings:
    def __init__(self, name="app"):
        self.name = name
    def __call__(self, environ, start_response):
        return served(environ, start_response)
"""


class Entry(unittest.TestCase):
    def test_an_entry_leads_to_the_application(self):
        rows = [
            ("callable", "app = served", "app:app"),
            ("factory", "def create_app():\n    return served", "app:create_app()"),
            ("factory without brackets", "def create_app():\n    return served", "app:create_app"),
            (
                "optional parameters",
                "def make(name='x', *, debug=False):\n    return served",
                "app:make",
            ),
            (
                "arguments",
                "def make(name, debug=False):\n    assert (name, debug) == ('x', True)\n    return served",
                "app:make('x', debug=True)",
            ),
            ("factory of a factory", "def make():\n    return lambda: served", "app:make"),
            ("class", HOLDERS, "app:Settings"),
            ("instance", HOLDERS + "app = Settings()", "app:app"),
            ("held in an attribute", HOLDERS + "app = Dashboard()", "app:app"),
            ("made by a method", HOLDERS + "app = Datasets()", "app:app"),
            ("paste", "def main(global_config, **settings):\n    return served", "app:main"),
            ("by its usual name", "application = served", "app"),
            ("of several names", "api = 1\napp = served", "app"),
            ("usual factory", "def create_app(config=None):\n    return served", "app"),
            ("the only one", HOLDERS + "site = Settings()\nalias = site", "app"),
            ("dotted", "class site:\n    app = staticmethod(served)", "app:site.app"),
        ]
        for name, code, entry in rows:
            with self.subTest(name), Worker(WSGI + code, entry) as worker:
                worker.ready()
                self.assertEqual(worker.ask(request()).body, b"wsgi")

    def test_what_is_no_application_is_refused_with_what_to_do(self):
        wsgi, asgi = WSGI + "app = served", ASGI + "app = served"
        rows = [
            ("asgi for wsgi", asgi, "app:app", "wsgi", 'say kind = "asgi" (--kind asgi)'),
            ("wsgi for asgi", wsgi, "app:app", "asgi", 'say kind = "wsgi" (--kind wsgi)'),
            (
                "no callable",
                "app = 5",
                "app:app",
                "wsgi",
                "app:app is a int, not a WSGI application",
            ),
            (
                "needs arguments",
                "def create_app(config): pass",
                "app:create_app",
                "wsgi",
                "with the parameters (config): not a WSGI application; if it is a factory, say with "
                "which arguments it is called: app:create_app(config=...)",
            ),
            (
                "a server of its own",
                "class Application: pass\nApplication.__module__ = 'aiohttp.web_app'\n"
                "app = Application()",
                "app:app",
                "wsgi",
                "aiohttp runs a server of its own; serve it by kind",
            ),
            (
                "async factory",
                "async def make(): pass",
                "app:make",
                "asgi",
                "must not be a coroutine",
            ),
            (
                "no literal",
                "def make(a): pass",
                "app:make(a)",
                "wsgi",
                "arguments must be literals",
            ),
            (
                "class",
                "class App:\n  def __init__(s, a, b): pass",
                "app:App",
                "asgi",
                "the class app.App",
            ),
            (
                "other name",
                WSGI + HOLDERS + "site = Settings()",
                "app:app",
                "wsgi",
                "has no attribute 'app' (its applications: site)",
            ),
            (
                "several",
                WSGI + HOLDERS + "one = Settings()\ntwo = Settings()",
                "app",
                "wsgi",
                "several others: one, two; say which is the application: app:NAME",
            ),
            ("none", "x = 1", "app", "wsgi", "has none of application, app,"),
        ]
        for name, source, entry, interface, words in rows:
            worker = Worker(source, entry, options=["--interface", interface])
            with self.subTest(name), worker:
                frame = worker.control.frame()
                self.assertEqual(frame.kind, wire.BOOT_FAILED)
                self.assertIn(words, frame.payload.decode())
                self.assertEqual(worker.process.wait(DEADLINE), 1)

    def test_static_files_of_django_come_before_the_application_where_the_server_asks(self):
        handlers = {
            "django/__init__.py": "",
            "django/contrib/__init__.py": "",
            "django/contrib/staticfiles/__init__.py": "",
            "django/contrib/staticfiles/handlers.py": "class StaticFilesHandler(tuple): pass\n"
            "class ASGIStaticFilesHandler(tuple): pass\n",
        }
        code = (
            "from penstock_worker import django_static\n"
            "for interface in ('wsgi', 'asgi'):\n"
            "    import os; os.environ['PENSTOCK_DJANGO_STATIC'] = {value!r}\n"
            "    print(type(django_static.wrap((), interface)).__name__)\n"
        )
        rows = [
            ("1", b"StaticFilesHandler\nASGIStaticFilesHandler\n"),
            ("", b"tuple\ntuple\n"),
        ]
        with tempfile.TemporaryDirectory() as folder:
            for name, text in handlers.items():
                file = Path(folder, name)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
            for value, expected in rows:
                done = subprocess.run(
                    [sys.executable, "-B", "-c", code.format(value=value)],
                    cwd=ROOT,
                    env={"PYTHONPATH": folder},
                    capture_output=True,
                    timeout=DEADLINE,
                )
                self.assertEqual(done.stdout, expected, done.stderr)

    def test_a_source_folder_is_imported_from(self):
        with tempfile.TemporaryDirectory() as folder:
            package = Path(folder, "src", "shop")
            package.mkdir(parents=True)
            (package / "__init__.py").write_text("from .web import served as app\n")
            (package / "web.py").write_text(WSGI)
            code = f"from penstock_worker import entry; print(entry.load('shop:app', {folder!r}, 'wsgi', True)[1])"
            done = subprocess.run(
                [sys.executable, "-B", "-c", code], cwd=ROOT, capture_output=True, timeout=DEADLINE
            )
            self.assertEqual(done.stdout, b"wsgi\n", done.stderr)


class Guess(unittest.TestCase):
    """`--interface-is-guess`: the object decides, and READY reports the interface."""

    def test_a_template_says_what_it_has_loaded(self):
        for source, guess, found in (
            (WSGI, "wsgi", "wsgi 1.0"),
            (WSGI, "asgi", "wsgi 1.0"),
            (ASGI, "wsgi", "asgi 3.0"),
            ("def served(*args): pass", "asgi", "asgi 3.0"),
        ):
            options = ["--interface", guess, "--interface-is-guess"]
            with self.subTest((source, guess)):
                with Template(source, options, entry="app:served") as template:
                    self.assertEqual(template.ready().described["interface"], found)

    def test_a_worker_that_has_sockets_for_both_serves_on_those_that_fit(self):
        for source, expected in ((WSGI, "wsgi"), (ASGI, "asgi")):
            for guess in ("wsgi", "asgi"):
                with self.subTest((expected, guess)), BothSockets(source, guess) as worker:
                    self.assertEqual(
                        worker.interface, f"{expected} {'1.0' if expected == 'wsgi' else '3.0'}"
                    )
                    if expected == "wsgi":
                        self.assertTrue(worker.channel.is_closed())
                        worker.slot.send(request())
                        self.assertEqual(worker.slot.reply().body, b"wsgi")
                    else:
                        self.assertTrue(worker.slot.is_closed())
                        worker.channel.sock.sendall(open_frame(1))
                        self.assertIn(b"asgi", worker.answer())


class BothSockets:
    """The server's side of a worker with a guessed interface."""

    def __init__(self, source, guess):
        self.folder = tempfile.TemporaryDirectory(prefix="penstock-test-")
        Path(self.folder.name, "app.py").write_text(source)
        pairs = [socket.socketpair() for _ in range(4)]
        fds = [theirs.fileno() for _, theirs in pairs]
        self.control, self.slot, self.channel, self.files = (Peer(ours) for ours, _ in pairs)
        names = ("--control-fd", "--slot-fds", "--channel-fd", "--files-fd")
        given = [word for name, fd in zip(names, fds) for word in (name, str(fd))]
        given += ["--interface", guess, "--interface-is-guess", "--reactor", "tasks"]
        given += ["--dir", self.folder.name, "--entry", "app:served"]
        self.process = subprocess.Popen(
            [sys.executable, "-B", "-m", "penstock_worker", *given], pass_fds=fds, cwd=ROOT
        )
        for _, theirs in pairs:
            theirs.close()

    def __enter__(self):
        assert self.control.frame().kind == wire.HELLO
        ready = self.control.frame()
        assert ready.kind == wire.READY, ready.payload.decode()
        self.interface = json.loads(ready.payload)["interface"]
        return self

    def answer(self):
        """Returns the payload of the first frame on the channel."""
        return self.channel.frame().payload

    def __exit__(self, *_):
        for peer in (self.control, self.slot, self.channel, self.files):
            peer.sock.close()
        self.process.wait(DEADLINE)
        self.folder.cleanup()


if __name__ == "__main__":
    unittest.main()
