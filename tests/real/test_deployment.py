"""docs/deployment.md: its configurations are served, its commands run, its units are valid.

The paths of the page move into a temporary folder, the ports 80 and 443 to free ones, and the
authority that orders certificates to an address where none answers. Packages, containers and the
chart are tried by packaging/tests.
"""

import re
import shutil
import ssl
import subprocess
import urllib.request

from harness import BIN, READY_SECONDS, ROOT, STOP_SECONDS, Child, RealCase

PAGE = ROOT / "docs" / "deployment.md"
CONFIGURATION = "/etc/penstock/penstock.toml"
APP = """\
import os

def application(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    parts = environ["wsgi.url_scheme"], environ["REMOTE_ADDR"], os.environ.get("GREETING")
    return [" ".join(map(str, parts)).encode()]
"""
NOWHERE = '[acme]\ndirectory = "https://127.0.0.1:1/directory"\nstorage = "certificates"\n'


def blocks(path):
    """Returns the files that the page shows for a path: their first line is `# PATH`."""
    found = re.findall(rf"^( +)# {path}\n((?:\1.*\n|\n)+)", PAGE.read_text(), re.MULTILINE)
    return [
        "\n".join(line.removeprefix(indent) for line in text.splitlines()) for indent, text in found
    ]


class Deployment(RealCase):
    def setUp(self):
        self.home = self.folder()
        shop = self.home / "srv" / "shop"
        shop.mkdir(parents=True)
        (shop / "app.py").write_text(APP)
        (shop / ".env").write_text("GREETING=hello\n")
        self.file = self.home / "penstock.toml"

    def write(self, text, extra=""):
        text = text.replace("/srv/", f"{self.home}/srv/").replace("/var/log/", f"{self.home}/log/")
        text = text.replace('":80"', '"127.0.0.1:0"').replace('":443"', '"127.0.0.1:0"')
        text = text.replace("[server]\n", '[server]\nadmin = "127.0.0.1:0"\n')
        self.file.write_text(f"{text}\n{NOWHERE}{extra}")

    def penstock(self, command, *more):
        words = command.removesuffix(f" -c {CONFIGURATION}").split()[1:]
        done = subprocess.run(
            [BIN, *words, *more], cwd=self.home, capture_output=True, text=True, timeout=60
        )
        self.assertEqual(done.returncode, 0, f"{command}\n{done.stderr}")
        return done.stdout

    def start(self):
        child = Child([BIN, "serve", "-c", self.file], cwd=self.home)
        self.addCleanup(child.kill)
        child.wait_for(r"^app shop: .*ready in", READY_SECONDS)
        return child

    def test_the_configuration_of_a_debian_server_and_its_commands(self):
        configuration, _ = blocks(CONFIGURATION)
        self.write(configuration)
        section = PAGE.read_text().split("## Deploy on a Debian server")[1].split("\n## ")[0]
        commands = re.findall(rf"penstock \w+(?: shop)? -c {CONFIGURATION}", section)
        verbs = [command.split()[1] for command in commands]
        self.assertEqual(verbs, ["check", "status", "certificates", "check", "restart"])
        self.assertIn("good", self.penstock(commands[0], "-c", str(self.file)))
        child = self.start()
        control = child.wait_for(r"^control (unix:.+)$", READY_SECONDS)[1]
        said = {verb: self.penstock(f"penstock {verb}", "--admin", control) for verb in verbs[1:3]}
        self.assertIn("app shop: wsgi, ready", said["status"])
        self.assertIn("shop.example", said["certificates"])
        restarted = self.penstock("penstock restart shop", "--admin", control)
        self.assertIn("shop: restarted", restarted)
        self.assertIn("reloaded", self.penstock("penstock reload", "--admin", control))
        port = child.wait_for(r"^listening https://127\.0\.0\.1:(\d+)", READY_SECONDS)[1]
        request = urllib.request.Request(
            f"https://127.0.0.1:{port}/", headers={"Host": "shop.example"}
        )
        context = ssl._create_unverified_context()
        # The certificate that stands in is for the name that a client asks for.
        context.check_hostname = False
        with urllib.request.urlopen(request, timeout=20, context=context) as answer:
            self.assertEqual(answer.read().decode(), "https 127.0.0.1 hello")
        self.assertEqual(child.terminate(STOP_SECONDS), 0)
        self.assertIn('"GET / HTTP/1.1" 200', (self.home / "log/penstock/access.log").read_text())

    def test_the_configuration_behind_cloudflare(self):
        _, configuration = blocks(CONFIGURATION)
        extra = '[[sites.routes]]\napp = "shop"\n[apps.shop]\ndir = "srv/shop"\n'
        # The proxy of this test is here.
        self.write(configuration.replace('"2400:cb00::/32"', '"127.0.0.1"'))
        text = self.file.read_text().replace(NOWHERE, "")
        self.file.write_text(f"{text}\n{extra}{NOWHERE}")
        child = self.start()
        port = child.wait_for(r"^listening http://127\.0\.0\.1:(\d+)", READY_SECONDS)[1]
        fields = {"Host": "shop.example", "X-Forwarded-Proto": "https"}
        fields["CF-Connecting-IP"] = "203.0.113.9"
        request = urllib.request.Request(f"http://127.0.0.1:{port}/", headers=fields)
        with urllib.request.urlopen(request, timeout=20) as answer:
            self.assertTrue(answer.read().decode().startswith("https 203.0.113.9"))
        self.assertEqual(child.terminate(STOP_SECONDS), 0)

    def test_the_units_are_valid(self):
        if not shutil.which("systemd-analyze"):
            self.skipTest("systemd-analyze is missing")
        (unit,) = blocks("/etc/systemd/system/penstock.service")
        (socket,) = blocks("/etc/systemd/system/penstock.socket")
        # The program is where a build has put it.
        (self.home / "penstock.service").write_text(unit.replace("/usr/bin/penstock", str(BIN)))
        (self.home / "penstock.socket").write_text(socket)
        for name in ("penstock.service", "penstock.socket"):
            done = subprocess.run(
                ["systemd-analyze", "verify", self.home / name],
                capture_output=True, text=True, timeout=60,
            )  # fmt: skip
            self.assertEqual((done.returncode, done.stderr), (0, ""), name)
