"""The recipes of docs/streams-recipes.md, as the page has them: programs that push to browsers, the
configuration of nginx in front of them, and that of several servers with Redis.
"""

import itertools
import json
import re
import shutil
import socket
import subprocess
import textwrap
import unittest

import requests

from harness import EXAMPLES, NGINX, ROOT, Child, RealCase, until
from listening import PATIENCE, Events, Front
from test_redis import Redis

PAGE = ROOT / "docs" / "streams-recipes.md"
# Lines of a program that are not empty.
MAX_LINES = 12
PYTHON = ROOT / ".venv"
FASTAPI = EXAMPLES / "fastapi-levels" / ".venv"
TEXT = "Grüße,\nall of you: 100 %"


def section(name):
    return PAGE.read_text().split(f"\n## {name}\n")[1].split("\n## ")[0]


def code(name):
    """Returns the first code below the heading."""
    lines = section(name).splitlines()
    lines = itertools.dropwhile(lambda line: not line.startswith("    "), lines)
    block = itertools.takewhile(lambda line: not line or line.startswith("    "), lines)
    return textwrap.dedent("\n".join(block)).strip() + "\n"


def serve(folder, **env):
    """Returns a server as the page starts it."""
    return Front("--grip", cwd=folder, env={name: str(value) for name, value in env.items()})


def flask(folder):
    (folder / "app.py").write_text(code("Flask"))
    return serve(folder, VIRTUAL_ENV=PYTHON)


def post(server, room, text):
    return requests.post(f"{server.url}/rooms/{room}/send", data={"text": text}, timeout=PATIENCE)


class Programs(RealCase):
    def check(self, server, program, send):
        lines = [line for line in program.splitlines() if line.strip()]
        self.assertLessEqual(len(lines), MAX_LINES)
        self.server = self.enterContext(server)

        listeners = [self.listen(7), self.listen(7)]
        other = self.listen(8)
        self.server.wait_held(3)
        self.send(send, 7, TEXT)
        last = [listener.wait_for(TEXT) for listener in listeners][0].id

        # A restart of the application ends no stream, and its new workers can publish.
        name = self.server.status()["apps"][0]["name"]
        status, answer = self.server.change(f"/apps/{name}/restart")
        self.assertEqual(status, 200, answer)
        self.send(send, 7, "after the restart")
        self.send(send, 8, "elsewhere")
        for listener in listeners:
            listener.wait_for("after the restart")
            self.assertEqual(listener.data, ["welcome", TEXT, "after the restart"])
        other.wait_for("elsewhere")
        self.assertEqual(other.data, ["welcome", "elsewhere"])

        # A browser that returns gets what it missed.
        returned = self.listen(7, **{"Last-Event-ID": last})
        returned.wait_for("after the restart")
        self.assertEqual(returned.data, ["welcome", "after the restart"])
        self.server.wait_held(4)

    def listen(self, room, **fields):
        listener = self.enterContext(Events(f"{self.server.url}/rooms/{room}", **fields))
        self.assertEqual(listener.status, 200)
        listener.wait_for("welcome")
        return listener

    def send(self, send, room, text):
        answer = send(self.server, room, text)
        self.assertIn(answer.status_code, (200, 204), answer.text)

    def test_django(self):
        folder = self.folder()
        command = [PYTHON / "bin" / "python", "-m", "django", "startproject", "shop", "."]
        subprocess.run(command, cwd=folder, check=True)
        program = code("Django")
        (folder / "shop" / "urls.py").write_text(program)
        token = "a" * 32

        def send(server, room, text):
            return requests.post(
                f"{server.url}/rooms/{room}/send",
                data={"text": text},
                headers={"X-CSRFToken": token},
                cookies={"csrftoken": token},
                timeout=PATIENCE,
            )

        self.check(serve(folder, VIRTUAL_ENV=PYTHON), program, send)

    def test_flask(self):
        self.check(flask(self.folder()), code("Flask"), post)

    def test_fastapi(self):
        folder, program = self.folder(), code("FastAPI")
        (folder / "main.py").write_text(program)

        def send(server, room, text):
            url = f"{server.url}/rooms/{room}/send"
            return requests.post(url, json={"text": text}, timeout=PATIENCE)

        self.check(serve(folder, VIRTUAL_ENV=FASTAPI), program, send)

    def test_rails(self):
        folder = self.folder() / "site"
        shutil.copytree(EXAMPLES / "rails-weir", folder)
        resources = re.search(r"`(resources :rooms[^`]*)`", section("Rails"))[1]
        routes = folder / "config" / "routes.rb"
        routes.write_text(routes.read_text().replace("draw do\n", f"draw do\n{resources}\n"))
        controller = code("Rails")
        (folder / "app" / "controllers" / "rooms_controller.rb").write_text(controller)
        visitor = self.enterContext(requests.Session())

        def send(server, room, text):
            page = visitor.get(server.url, timeout=PATIENCE).text
            token = re.search(r'name="csrf-token" content="([^"]+)"', page)[1]
            fields = {"X-CSRF-Token": token}
            url = f"{server.url}/rooms/{room}"
            return visitor.patch(url, data={"text": text}, headers=fields, timeout=PATIENCE)

        # The visitor's session outlives a restart only with a fixed secret.
        server = serve(folder, RAILS_ENV="production", SECRET_KEY_BASE="0123456789abcdef" * 8)
        self.check(server, f"{resources}\n{controller}", send)

    def test_sinatra(self):
        folder, program = self.folder(), code("Sinatra")
        (folder / "app.rb").write_text(program)
        self.check(serve(folder), program, post)


class BehindNginx(RealCase):
    def test_streams_arrive_at_once_and_clients_return_after_a_stop(self):
        self.server = flask(self.folder())
        self.server.__enter__()
        try:
            url = self.start_nginx()
            stream = self.enterContext(Events(f"{url}/rooms/7"))
            stream.wait_for("welcome")
            answer = requests.post(f"{url}/rooms/7/send", data={"text": "hello"}, timeout=PATIENCE)
            self.assertEqual(answer.status_code, 200, answer.text)
            stream.wait_for("hello")
        finally:
            self.server.__exit__(None, None, None)
        # The end of the stream, which nginx passes on, is a proper one.
        stream.wait_end()

        def get(accept):
            return requests.get(f"{url}/rooms/7", headers={"Accept": accept}, timeout=PATIENCE)

        answer = get("text/event-stream")
        self.assertEqual((answer.status_code, answer.text), (200, "retry: 5000\n\n"))
        self.assertEqual(answer.headers["Content-Type"], "text/event-stream")
        self.assertEqual(get("*/*").status_code, 502)
        answer = requests.post(f"{url}/rooms/7/send", data={"text": "lost"}, timeout=PATIENCE)
        self.assertEqual(answer.status_code, 502)

    def start_nginx(self):
        """Returns the address."""
        home = self.folder()
        # nginx cannot report the port it got: one that was free a moment ago.
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        recipe = code("Behind nginx")
        for ours, theirs in [("listen 80;", f"listen 127.0.0.1:{port};"), ("8080", "{behind}")]:
            self.assertEqual(recipe.count(ours), 1, ours)
            recipe = recipe.replace(ours, theirs)
        recipe = recipe.replace("{behind}", str(self.server.port))
        settings = home / "nginx.conf"
        settings.write_text(NGINX.format(home=home, settings=recipe))
        nginx = shutil.which("nginx") or "/usr/sbin/nginx"
        child = Child([nginx, "-p", home, "-c", settings])
        self.addCleanup(child.kill)

        def listens():
            try:
                socket.create_connection(("127.0.0.1", port), timeout=5).close()
            except ConnectionError:
                return False
            return True

        until("nginx listens", listens, PATIENCE)
        return f"http://127.0.0.1:{port}"


class SeveralServers(RealCase):
    def test_a_message_reaches_the_streams_of_all(self):
        folder = self.folder()
        (folder / "app.py").write_text(code("Flask"))
        redis = self.enterContext(Redis(self.folder()))
        program = f'dir = {json.dumps(str(folder))}\nkind = "wsgi"\nentry = "app:app"\n'
        recipe = code("With several servers")
        for theirs, ours in [
            ("redis://10.0.0.5:6379/0", f"unix:{redis.address}"),
            ("[apps.shop]\n", f"[apps.shop]\n{program}"),
        ]:
            self.assertEqual(recipe.count(theirs), 1, theirs)
            recipe = recipe.replace(theirs, ours)
        settings = folder / "penstock.toml"
        settings.write_text(recipe)
        env = {"VIRTUAL_ENV": str(PYTHON)}
        self.server = self.enterContext(Front("-c", settings, env=env))
        second = self.enterContext(Front("-c", settings, env=env))

        streams = [
            self.enterContext(Events(f"{each.url}/rooms/7")) for each in (self.server, second)
        ]
        for stream in streams:
            stream.wait_for("welcome")
        self.assertEqual(post(second, 7, "hello").status_code, 200)
        last = [stream.wait_for("hello") for stream in streams][0].id
        self.assertEqual(post(self.server, 7, "missed").status_code, 200)
        # A client of the first server returns to the second.
        returned = self.enterContext(Events(f"{second.url}/rooms/7", **{"Last-Event-ID": last}))
        returned.wait_for("missed")
        self.assertEqual(returned.data, ["welcome", "missed"])


if __name__ == "__main__":
    unittest.main()
