"""docs/troubleshooting.md: each symptom is provoked, and the messages of the page are found.

A message is an indented block behind a line that ends with a colon, which is neither a command nor
a part of a configuration. `...` stands between messages. Numbers, times and ids may differ, and
line ends.
"""

import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import unittest
from concurrent.futures import ThreadPoolExecutor

from harness import BIN, ROOT, STOP_SECONDS, Child, RealCase, until

PAGE = ROOT / "docs" / "troubleshooting.md"
FILES = ROOT / "tests" / "real" / "troubleshooting"
PATIENCE = 30
NOBODY = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
IS_ROOT = os.geteuid() == 0
FIRST_PORT = "/proc/sys/net/ipv4/ip_unprivileged_port_start"


STRANGERS = """
[server]
listen = ["127.0.0.1:0"]
admin = "off"
trusted_proxies = []
[[sites]]
[[sites.routes]]
files = { root = "." }
"""


def sections():
    """Returns the text of each symptom by its heading."""
    parts = re.split(r"^## (.+)$", PAGE.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def messages(text):
    """Returns the messages of a section."""
    found = []
    for block in re.findall(r":\n\n((?:    .*\n|\n)+)", text):
        lines = block.strip().splitlines()
        if not re.match(r"#|curl |penstock \w", lines[0].strip()):
            found += "\n".join(lines).split("...")
    return found


def normalized(text):
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z \w+ ", "", text)
    text = re.sub(r"`python[\d.]*`", "`python`", text)
    return " ".join(re.sub(r"\d+(\.\d+)*", "0", text).split())


class Running:
    """A server whose output is read."""

    def __init__(self, file, cwd, before=()):
        self.child = Child([*before, BIN, "serve", "-c", file], cwd=cwd)
        self.port = int(self.child.wait_for(r"^listening http://127\.0\.0\.1:(\d+)", PATIENCE)[1])
        self.child.wait_for(r"^control", PATIENCE)

    def get(self, path, headers=None, body=None, timeout=20):
        """Makes a request on a connection of its own; returns status, fields and text."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            method = "POST" if body else "GET"
            connection.request(method, path, body, {"Host": "localhost"} | (headers or {}))
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read().decode()
        finally:
            connection.close()

    def send(self, data, port=None):
        """Sends bytes; returns the first of the answer."""
        with socket.create_connection(("127.0.0.1", port or self.port), timeout=20) as stream:
            stream.sendall(data)
            return stream.recv(4096).decode()

    def output(self):
        return "\n".join(self.child.lines)


class Troubleshooting(RealCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.sections = sections()
        cls.tried = set()
        cls.home = home = cls.folder()
        home.chmod(0o755)
        shutil.copytree(FILES, home, dirs_exist_ok=True)
        cls.silent = socket.create_server(("127.0.0.1", 0))
        cls.addClassCleanup(cls.silent.close)
        cls.garbage = Child([sys.executable, FILES / "garbage.py"])
        cls.addClassCleanup(cls.garbage.kill)
        garbage = cls.garbage.wait_for(r"^(\d+)$", PATIENCE)[1]
        text = (home / "penstock.toml").read_text()
        text = text.replace("SILENT", str(cls.silent.getsockname()[1])).replace("GARBAGE", garbage)
        (home / "penstock.toml").write_text(text)
        cls.main = Running("penstock.toml", home)
        cls.addClassCleanup(cls.main.child.kill)
        cls.main.child.wait_for(r"^app shop: .*ready in", PATIENCE)
        cls.control = cls.main.child.wait_for(r"^control (unix:.+)$", PATIENCE)[1]
        cls.admin = int(cls.main.child.wait_for(r"^status http://127\.0\.0\.1:(\d+)", PATIENCE)[1])

    @classmethod
    def tearDownClass(cls):
        code = cls.main.child.terminate(STOP_SECONDS)
        if code != 0:
            raise AssertionError(f"exited with {code} after SIGTERM")

    def penstock(self, *arguments, before=(), **options):
        """Runs a command of Penstock; returns all that it prints."""
        done = subprocess.run(
            [*before, BIN, *arguments], cwd=self.home, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=60, **options,
        )  # fmt: skip
        return done.stdout

    def run_for_strangers(self):
        """Starts a server that trusts no proxy, as a user who may not read everything."""
        (self.home / "strangers.toml").write_text(STRANGERS)
        server = Running("strangers.toml", self.home, before=NOBODY if IS_ROOT else ())
        self.addCleanup(server.child.terminate, STOP_SECONDS)
        return server

    def expect(self, heading, evidence):
        """Awaits the messages of a section in what `evidence` returns."""
        wanted = [normalized(message) for message in messages(self.sections[heading])]
        self.assertTrue(wanted, heading)

        def seen():
            return normalized(evidence().replace(str(self.home), "/srv"))

        for message in wanted:
            try:
                until(message, lambda message=message: message in seen(), PATIENCE)
            except AssertionError:
                self.fail(f"{heading}: not found: {message}\nin:\n{seen()}")

    def test_each_symptom_has_a_test(self):
        with open(__file__) as file:
            tested = set(re.findall(r'self\.expect\(\s*"([^"]+)"', file.read()))
        self.assertEqual(set(self.sections), tested)

    def test_links_and_blocks(self):
        for block in re.findall(r"    # penstock.toml\n((?:    .*\n|\n)+)", PAGE.read_text()):
            text = "\n".join(line[4:] for line in block.splitlines())
            if "app = " in text and "[apps.shop]" not in text:
                text = f'[apps.shop]\ndir = "shop"\n{text}'
            if "[[sites]]" not in text:
                text += "\n[[sites]]\n[[sites.routes]]\nrespond = { body = 'x' }\n"
            text = text.replace('entry = "shop.web:app"', "").replace("/srv/shop", "shop")
            (self.home / "block.toml").write_text(text)
            said = self.penstock("check", "--config-only", "-c", "block.toml")
            self.assertIn("good", said, text)

    def test_starts_that_are_refused(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            said = self.penstock("serve", "files", "-l", f"127.0.0.1:{port}", "--admin", "off")
        self.expect("The address is in use", lambda: said)

        said = self.penstock("serve", "empty", "-l", "127.0.0.1:0")
        interpreter = self.home / "dangling" / ".venv" / "bin" / "python"
        interpreter.parent.mkdir(parents=True)
        interpreter.symlink_to("/usr/bin/python3.99")
        shutil.copy(FILES / "shop" / "app.py", self.home / "dangling")
        said += self.penstock("serve", "dangling", "-l", "127.0.0.1:0")
        said = said.replace(f"{self.home}/dangling", f"{self.home}/shop")
        self.expect("No application is found", lambda: said)

    @unittest.skipUnless(IS_ROOT, "needs root, to become another user")
    def test_permissions(self):
        with open(FIRST_PORT) as file:
            if int(file.read()) <= 80:
                self.skipTest("every user may open port 80 here")
        said = self.penstock("serve", "files", "-l", ":80", "--admin", "off", before=NOBODY)
        private = self.home / "private"
        shutil.copytree(FILES / "shop", private / "shop")
        private.chmod(0o700)
        text = (
            (FILES / "strict.toml").read_text().replace("[server]\n", '[server]\nuser = "nobody"\n')
        )
        (self.home / "user.toml").write_text(text.replace('"shop"', '"private/shop"', 1))
        checked = self.penstock("check", "-c", "user.toml")
        said += checked.replace(f"{private}/shop", f"{self.home}/shop")
        said += self.penstock("reload", "--admin", self.control, before=NOBODY)
        self.expect("Permission denied", lambda: said)

    def test_a_command_finds_no_server(self):
        self.expect(
            "A command finds no server", lambda: self.penstock("status", "--admin", "127.0.0.1:1")
        )

    def test_refused_requests(self):
        main = self.main
        self.assertIn("400 ", main.send(b"GET / HTTP/1.1\r\n\r\n"))
        tls = int(main.child.wait_for(r"^listening https://127\.0\.0\.1:(\d+)", PATIENCE)[1])
        plain = main.send(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", tls)
        self.expect("400 Bad Request", lambda: main.output() + plain)
        status = main.send(b"GET / HTTP/1.1\r\nHost: ops.example\r\n\r\n", self.admin)
        self.expect("403 on the status page", lambda: status)
        self.assertEqual(main.get("/files/.env")[0], 404)
        (self.home / "a.html").write_text("")
        (self.home / "a.html").chmod(0)
        strangers = self.run_for_strangers()
        self.assertEqual(strangers.get("/a.html")[0], 403)
        self.expect("404 for a file that exists", lambda: main.output() + strangers.output())
        self.assertEqual(main.get("/", body=b"x" * 5000)[0], 413)
        self.expect("413 Content Too Large", main.output)
        self.assertEqual(main.get("/", {"Cookie": "a" * 70000})[0], 431)
        self.expect("414 or 431", main.output)
        status, _, text = main.get("/", {"Host": "127.0.0.1:8080"})
        self.assertEqual(status, 421)
        self.expect("421 Misdirected Request", lambda: text + main.output())
        answers = [main.get("/limited/") for _ in range(3)]
        self.assertEqual(answers[2][0], 429)
        self.assertIn("Retry-After", answers[2][1])
        self.expect("429 Too Many Requests", lambda: answers[2][2])

    def test_failures(self):
        main = self.main
        self.assertEqual(main.get("/raise")[0], 500)
        self.expect("500 Internal Server Error", main.output)
        for path in ("/die", "/down/", "/garbage/"):
            self.assertEqual(main.get(path)[0], 502, path)
        self.expect("502 Bad Gateway", main.output)
        self.assertEqual(main.get("/silent/")[0], 504)
        self.assertEqual(main.get("/broken/")[0], 503)
        until("it serves", lambda: main.get("/")[0] == 200, PATIENCE)
        # One is served until `response_timeout`, one waits, and the others find the queue full.
        with ThreadPoolExecutor(4) as pool:
            statuses = sorted(pool.map(lambda _: main.get("/slow")[0], range(4)))
        self.assertEqual(statuses, [503, 503, 503, 504])
        self.expect("503 Service Unavailable", lambda: main.output().replace("/broken/", "/"))
        self.expect("504 Gateway Timeout", main.output)

    def test_workers(self):
        main = self.main
        until("it serves", lambda: main.get("/")[0] == 200, PATIENCE)
        main.get("/die")
        until("it serves", lambda: main.get("/")[0] == 200, PATIENCE)
        text = self.penstock("status", "--json", "--admin", self.control)
        apps = {app["name"]: app for app in json.loads(text)["apps"]}
        os.kill(apps["shop"]["workers"][0]["pid"], 9)
        self.expect(
            "A worker keeps restarting", lambda: main.output().replace("broken: ", "shop: ")
        )
        until("it serves", lambda: main.get("/")[0] == 200, PATIENCE)
        main.get("/grow")
        self.expect("Memory grows", main.output)
        until("it serves", lambda: main.get("/first")[0] == 200, PATIENCE)

        def times():
            found = re.findall(r'"GET /first .* app_time=([\d.]+)', main.output())
            return [float(seconds) for seconds in found]

        self.assertGreater(max(until("its line is there", times, PATIENCE)), 0.5)
        self.expect("The first request is slow", main.output)

    def test_certificates_and_clients(self):
        main = self.main

        def certificates():
            return self.penstock("certificates", "--admin", self.control)

        self.expect("There is no certificate", certificates)
        main.get("/", {"X-Forwarded-For": "somewhere"})
        strangers = self.run_for_strangers()
        strangers.get("/", {"X-Forwarded-For": "192.0.2.1"})
        self.expect("Every client has the same address", lambda: main.output() + strangers.output())
        head = "GET /chat/ HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
        head += "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        answer = main.send(f"{head}Sec-WebSocket-Key: {'A' * 22}==\r\n\r\n".encode())
        self.assertIn("403 Forbidden", answer)
        self.expect("A WebSocket does not connect", lambda: main.output().replace("/chat/", "/"))

    def test_old_code(self):
        file = self.home / "chat" / "app.py"
        self.addCleanup(file.write_text, file.read_text())
        file.write_text("import nosuch\n")
        configuration = self.home / "penstock.toml"
        text = configuration.read_text()
        self.addCleanup(configuration.write_text, text)
        said = self.penstock("restart", "chat", "--admin", self.control)
        self.assertIn("No module named 'nosuch'", said)
        configuration.write_text(text.replace('admin = "127.0.0.1:0"', 'admin = "off"'))
        self.penstock("reload", "--admin", self.control)
        said = self.main.output
        self.expect("Old code is served", lambda: said().replace("chat: ", "shop: "))

    def test_a_server_with_few_files_behind_a_proxy_that_it_does_not_know(self):
        strict = Running("strict.toml", self.home)
        self.addCleanup(strict.child.kill)
        strict.child.wait_for(r"^app shop: .*ready in", PATIENCE)
        status, fields, _ = strict.get("/login", {"X-Forwarded-Proto": "https"})
        self.expect("Redirects loop, or links begin with http", lambda: f"HTTP/1.1 {status} Found")
        self.assertTrue(fields["Location"].startswith("https://"))
        with socket.create_connection(("127.0.0.1", strict.port)) as slow:
            slow.sendall(b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n")
            streams = []
            for _ in range(250):
                stream = socket.socket()
                stream.setblocking(False)
                stream.connect_ex(("127.0.0.1", strict.port))
                streams.append(stream)
            deadline = time.monotonic() + PATIENCE
            for stream in streams:
                stream.settimeout(max(0.1, deadline - time.monotonic()))
                try:
                    stream.sendall(b"GET / HTTP/1.1\r\n")
                except OSError:
                    break
            self.expect("Too many open files", strict.output)
            for stream in streams:
                stream.close()
            self.assertEqual(strict.child.terminate(STOP_SECONDS), 0)
        # One that has just been answered may be open, too.
        self.expect(
            "A stop takes long",
            lambda: strict.output().replace("connections open", "connection open"),
        )
