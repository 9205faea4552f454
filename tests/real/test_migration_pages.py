"""docs/migrate/from: each page, file by file and command by command.

A page has the files of the old server, `penstock import` for each, the finished penstock.toml, and
commands that check it beside the old server. The lines of the finished file are those of the
import, but for lines that end with `# edited`. Each `curl` ends with the status that Penstock
answers, and with the old server's if that differs (`# 404, nginx 403`).

The old server runs too where its programs are installed (make test-migrations), and must answer as
the page says, with the same body where the statuses are equal.

The files are those of a real machine. Before they are used, /srv, /etc and /run are moved into a
temporary folder, and 127.0.0.1 to a loopback address that the test has for itself.
"""

import os
import random
import re
import shlex
import shutil
import socket
import subprocess
import threading
import unittest

from harness import BIN, NGINX, ROOT, STOP_SECONDS, Child, RealCase, until
from test_migrations import BackEnd, BackEndServer

PAGES = ROOT / "docs" / "migrate" / "from"
SHOP = ROOT / "tests" / "real" / "migrations" / "shop"
PROGRAMS = ROOT / "tests" / "real" / "migrations" / ".venv" / "bin"
PATIENCE = 30
# What each page moves from, by its name.
STACKS = {
    "caddy": ["caddy"],
    "haproxy": ["haproxy"],
    "nginx-gunicorn": ["nginx", "gunicorn"],
    "nginx-puma": ["nginx", "puma"],
    "passenger": ["passenger"],
    "uwsgi": ["uwsgi"],
}
# Certificates of its own, which no program is told to trust.
CADDY = """\
{{
    admin off
    local_certs
    skip_install_trust
    persist_config off
    default_bind {address}
    http_port 8080
    https_port 8443
}}
"""
BACK_ENDS = ("8000", "8001", "8002")


def program(name):
    return shutil.which(name, path=f"{PROGRAMS}:{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")


def unindented(block):
    return "\n".join(line[4:] for line in block.rstrip().splitlines()) + "\n"


class Page:
    """A page, read into its parts."""

    def __init__(self, path):
        text = path.read_text()
        block = r"((?:    .*\n|\n)+)"
        before = text.split("## Import", 1)[0]
        self.files = {
            name: unindented(content)
            for name, content in re.findall(rf"`(/[^`]+)`:\n\n{block}", before)
        }
        self.imports = re.findall(r"^    (penstock import .+)$", text, re.MULTILINE)
        blocks = [unindented(found.lstrip("\n")) for found in re.findall(rf"\n{block}", text)]
        (self.result,) = [it for it in blocks if it.startswith("[server]\n")]
        checks = text.split("## Check it", 1)[1].split("\n## ", 1)[0]
        checks = re.sub(r"\\\n +", "", checks)
        self.commands = re.findall(r"^    ((?:penstock|sed) .+)$", checks, re.MULTILINE)
        self.questions = re.findall(
            r"^    (curl .+?)  # (\d+)(?:, \w+ (\d+))?$", checks, re.MULTILINE
        )
        self.is_complete = "is complete" in text
        self.cut_over = text.split("## Cut over, and back", 1)[1]


class MigrationPage(RealCase):
    """One page. `name` is that of its file."""

    name = None

    def setUp(self):
        self.home = self.folder()
        self.home.chmod(0o755)
        self.page = Page(PAGES / f"{self.name}.md")
        net = f"127.{random.randrange(2, 250)}.{random.randrange(1, 250)}"
        self.ours, self.theirs, self.behind = f"{net}.2", f"{net}.1", f"{net}.3"
        shutil.copytree(SHOP, self.home / "srv" / "shop")
        for folder in ("run/gunicorn", "run/puma"):
            (self.home / folder).mkdir(parents=True)
        for path, text in self.page.files.items():
            file = self.home / path.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(self.moved(text))

    def moved(self, text):
        """Returns a text with the folders of this test."""
        return re.sub(r"(?<![\w.}])/(srv|etc|run)/", rf"{self.home}/\1/", text)

    def here(self, text, address):
        """Returns a configuration with addresses of this test."""
        text = re.sub(rf"127\.0\.0\.1:({'|'.join(BACK_ENDS)})\b", rf"{self.behind}:\1", text)
        text = text.replace("127.0.0.1:3000", f"{address}:3000")
        text = text.replace("[server]\n", f'[server]\nadmin = "{address}:8090"\n')
        return re.sub(r'":(\d+)"', rf'"{address}:1\1"', text)

    def run_command(self, command):
        words = shlex.split(self.moved(command).replace("127.0.0.1", self.ours))
        target = words[-1] if words[-1].startswith(">") else None
        words = words[:-1] if target else words
        words[0] = str(BIN) if words[0] == "penstock" else words[0]
        done = subprocess.run(words, cwd=self.home, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, f"{command}\n{done.stderr}")
        if target:
            (self.home / target[1:]).write_text(done.stdout)
        return done

    def ask(self, command, address):
        """Runs a `curl` of the page; returns the status and the body."""
        for port in (8080, 8443):
            command = command.replace(f":{port}:127.0.0.1", f":{port}:{address}")
            command = command.replace(f"127.0.0.1:{port}", f"{address}:{port}")
        done = subprocess.run(
            shlex.split(command), capture_output=True, text=True, timeout=30, check=True
        )
        head, _, body = done.stdout.replace("\r", "").partition("\n\n")
        return int(head.split()[1]), body

    def start(self, command, address, port, **options):
        """Starts a program, and waits until it listens."""
        child = Child(command, cwd=self.home, **options)
        self.addCleanup(child.kill)

        def listens():
            if child._process.poll() is not None:
                raise AssertionError(f"{command[0]} ended:\n" + "\n".join(child.lines))
            try:
                socket.create_connection((address, port), timeout=5).close()
                return True
            except ConnectionError:
                return False

        until(f"{command[0]} listens", listens, PATIENCE)
        return child

    def start_back_ends(self):
        for port in BACK_ENDS:
            server = BackEndServer((self.behind, int(port)), BackEnd)
            threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
            self.addCleanup(server.server_close)
            self.addCleanup(server.shutdown)

    def test_the_page(self):
        page = self.page
        self.assertTrue(page.files and page.imports and page.questions)
        self.assertIn("the second the way back", page.cut_over)
        self.check_import()
        last = self.home / self.moved(shlex.split(page.imports[-1])[-1])
        file = last if last.name == "penstock.toml" else self.home / "penstock.toml"
        file.write_text(self.here(self.moved(page.result), self.ours))
        self.start_back_ends()
        *commands, serve = page.commands
        for command in commands:
            self.run_command(command)
        words = shlex.split(self.moved(serve).replace("127.0.0.1", self.ours))
        child = self.start([BIN, *words[1:]], self.ours, 8080)
        for app in re.findall(r"^\[apps\.(\w+)\]", page.result, re.MULTILINE):
            child.wait_for(rf"^app {app}: .*ready in", PATIENCE)
        ours = {}
        for question, status, _ in page.questions:
            with self.subTest(question):
                ours[question] = self.ask(question, self.ours)
                self.assertEqual(ours[question][0], int(status))
        self.compare(ours)
        self.assertEqual(child.terminate(STOP_SECONDS), 0)

    def check_import(self):
        """The finished file has the lines of the import, but for those that the page edits."""
        lines = []
        for command in self.page.imports:
            self.run_command(command)
            output = shlex.split(self.moved(command))[-1]
            text = (self.home / output).read_text()
            self.run_command(f"penstock check --config-only -c {output}")
            lines += [line for line in text.splitlines() if line and not line.startswith("#")]
        result = [line for line in self.moved(self.page.result).splitlines() if line]
        kept = [line for line in result if not line.endswith("# edited")]
        self.assertEqual([line for line in kept if line not in lines], [], "not of the import")
        if self.page.is_complete:
            self.assertEqual(kept, lines)

    def compare(self, ours):
        """Asks the old server the same, if it is here."""
        stack = STACKS[self.name]
        if not stack or not all(map(program, stack)):
            return
        for name in reversed(stack):
            getattr(self, f"start_{name}")()
        for question, status, differs in self.page.questions:
            if stack == ["passenger"] and "robots.txt" in question:
                # Its nginx would send the file; this engine sends none.
                continue
            with self.subTest(f"{stack[0]}: {question}"):
                theirs = self.ask(question, self.theirs)
                self.assertEqual(theirs[0], int(differs or status))
                if not differs and theirs[0] < 300:
                    # A back end begins with its port, and shows fields such as `Host` behind.
                    bodies = [body.split("\n", 1)[0] for _, body in (theirs, ours[question])]
                    self.assertEqual(*(re.sub(r"^80\d\d ", "", body) for body in bodies))

    def path(self, part):
        """Returns the old server's file whose path has this part."""
        (name,) = [name for name in self.page.files if part in name]
        return self.home / name.lstrip("/")

    def start_nginx(self):
        settings = (
            self.path("nginx").read_text().replace("listen 80;", f"listen {self.theirs}:8080;")
        )
        text = NGINX.format(home=self.home, settings=settings)
        if os.geteuid() == 0:
            text = "user root;\n" + text
        (self.home / "nginx.conf").write_text(text)
        command = [program("nginx"), "-p", self.home, "-c", self.home / "nginx.conf"]
        self.start(command, self.theirs, 8080)

    def start_gunicorn(self):
        child = Child([program("gunicorn"), "-c", self.path("gunicorn")], cwd=self.home)
        self.addCleanup(child.kill)
        child.wait_for("Booting worker", PATIENCE)

    def start_puma(self):
        child = Child([program("puma"), "-C", self.path("puma")], cwd=self.home / "srv" / "shop")
        self.addCleanup(child.kill)
        until("Puma listens", (self.home / "run" / "puma" / "shop.sock").exists, PATIENCE)

    def start_passenger(self):
        # The other engine is an nginx that the package does not have.
        command = [program("passenger"), "start", "--engine", "builtin", "--port", "8080"]
        command += ["--address", self.theirs, "--disable-security-update-check"]
        command += ["--disable-anonymous-telemetry", "--log-file", self.home / "passenger.log"]
        command += ["--pid-file", self.home / "passenger.pid", self.home / "srv" / "shop"]
        child = self.start(command, self.theirs, 8080)
        # Its processes leave the group of the first; they end with it.
        self.addCleanup(lambda: child._process.wait(PATIENCE))
        self.addCleanup(lambda: child._process.terminate())

    def start_uwsgi(self):
        text = self.path("uwsgi").read_text().replace("= :8000", f"= {self.theirs}:8080")
        self.path("uwsgi").write_text(text)
        command = [program("uwsgi"), "--plugin", "python3", "--ini", self.path("uwsgi")]
        self.start(command, self.theirs, 8080)

    def start_caddy(self):
        text = re.sub(r"127\.0\.0\.1", self.behind, self.path("Caddyfile").read_text())
        self.path("Caddyfile").write_text(CADDY.format(address=self.theirs) + text)
        command = [program("caddy"), "run", "--adapter", "caddyfile", "--config"]
        environment = {"HOME": str(self.home), "XDG_DATA_HOME": str(self.home)}
        file = self.path("Caddyfile")
        child = self.start([*command, file], self.theirs, 8443, env=environment)
        child.wait_for("certificate obtained successfully", PATIENCE)

    def start_haproxy(self):
        text = self.path("haproxy").read_text().replace("bind :80", f"bind {self.theirs}:8080")
        text = re.sub(r"127\.0\.0\.1", self.behind, text)
        self.path("haproxy").write_text(text)
        self.start([program("haproxy"), "-db", "-f", self.path("haproxy")], self.theirs, 8080)


class Pages(unittest.TestCase):
    def test_each_page_is_tried(self):
        self.assertEqual({path.stem for path in PAGES.glob("*.md")}, set(STACKS))


def load_tests(loader, _tests, _pattern):
    """Makes a class of tests for each page."""
    suite = unittest.TestSuite(loader.loadTestsFromTestCase(Pages))
    for name in STACKS:
        case = type(f"from_{name.replace('-', '_')}", (MigrationPage,), {"name": name})
        suite.addTest(case("test_the_page"))
    return suite
