"""The sets of docs/migrate: another server with its file, and Penstock with the translation of it.

Both get the same questions, and their answers must be the same: status, fields and body. A set is a
folder `docs/migrate/SERVER/NAME` with the file of that server, `penstock.toml`, `questions.txt` and
mostly `srv/`, the files that both serve.

The files are those of a real machine. Before they are used here, addresses and folders change: the
ports 80 and 443 become 8080 and 8443 on a loopback address that the test has for itself, back ends
on 127.0.0.1 move to such an address with the same port, `/srv/` and `/run/` are in a temporary
folder, and the networks 203.0.113.0/24 and 198.51.100.0/24 of RFC 5737 become 127.0.113.0/24 and
127.0.100.0/24.

A line of `questions.txt` is a method and a target, and behind bars what else belongs to it: header
fields (`Host: a.example`), `from ADDRESS`, `tls`, `x5` (asked so often), `< BODY`. With
`differs THEIRS OURS: REASON` the two statuses are these, and not compared. Lines that begin with
`#` are comments, and `host: NAME` sets the host of the questions below.

The sets of nginx, Caddy and HAProxy run a second time, with what `penstock import` makes of the
other server's file in place of `penstock.toml`. There `imported THEIRS OURS: REASON` counts instead
of `differs`, `imported same` takes it back, and `imported fields: REASON` compares statuses alone.
"""

import collections
import gzip
import http.client
import http.server
import os
import random
import re
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import unittest
from pathlib import Path
from urllib.parse import urljoin

from harness import BIN, NGINX, ROOT, STOP_SECONDS, Child, RealCase, until

CADDY = ROOT / "tests" / "real" / "migrations" / ".venv" / "bin"
SETS = ROOT / "docs" / "migrate"
QUESTIONS = 40
# Networks of the documents, and where the test has their clients.
NETWORKS = {"203.0.113.": "127.0.113.", "198.51.100.": "127.0.100."}
VISITOR = "198.51.100.20"
# What says nothing about the rules of a site: the connection, the moment, the server's name.
IGNORED = {
    "accept-ranges", "age", "alt-svc", "cache-status", "connection", "content-length", "date", "keep-alive", "server",
    "transfer-encoding", "via",
}  # fmt: skip
# Compared as being there, because each server makes its own.
PRESENT = {"etag", "last-modified", "expires", "x-request-id"}
ERRORS_SAY = ("allow", "etag", "last-modified", "ratelimit", "ratelimit-policy", "retry-after")
SAME_TYPES = {"text/javascript": "application/javascript", "text/xml": "application/xml"}
# The pages that servers have of their own for errors and redirects.
BUILT_IN = re.compile(
    rb"<hr><center>nginx|^<html><body><h1>\d|^<!DOCTYPE HTML PUBLIC|^\s*$|^<a href=.*</a>\.\s*$"
)
# Files that `penstock import` reads.
FILES = {"nginx": "nginx.conf", "caddy": "Caddyfile", "haproxy": "haproxy.cfg"}
PROGRAMS = {"nginx": "nginx", "caddy": "caddy", "haproxy": "haproxy", "apache": "apache2"}
MIME_TYPES = "include /etc/nginx/mime.types;\ndefault_type application/octet-stream;\n"
APACHE = """\
ServerRoot {home}
ServerName example.com
PidFile {home}/apache.pid
ErrorLog /dev/stderr
Listen {address}:8080
{modules}
TypesConfig /etc/mime.types
DefaultRuntimeDir {home}
DocumentRoot {home}/srv/www
DirectoryIndex index.html
<Directory {home}/srv/www>
    AllowOverride All
    Options FollowSymLinks
    Require all granted
</Directory>
<FilesMatch "^\\.ht">
    Require all denied
</FilesMatch>
{settings}
"""
MODULES = (
    "mpm_event authn_core authn_file authz_core authz_host authz_user auth_basic access_compat"
    " alias deflate dir expires filter headers mime proxy proxy_fcgi rewrite setenvif"
)


def program(server):
    """Returns the path of a server's program, or None."""
    name = PROGRAMS[server]
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:{CADDY}")


class Question:
    """One line of `questions.txt`."""

    def __init__(self, line, host):
        parts = [part.strip() for part in line.split(" | ")]
        self.line = line
        self.method, self.target = parts[0].split(" ", 1)
        self.headers = {"Host": host}
        self.client, self.tls, self.times, self.body, self.differs = VISITOR, False, 1, None, None
        self.imported = None
        for part in parts[1:]:
            if found := re.fullmatch(r"differs (\d+) (\d+): .+", part):
                self.differs = (int(found[1]), int(found[2]))
            elif found := re.fullmatch(r"imported (?:(\d+) (\d+): .+|(same)|(fields): .+)", part):
                statuses = (int(found[1]), int(found[2])) if found[1] else None
                self.imported = statuses or found[3] or found[4]
            elif part.startswith("< "):
                self.body = part[2:].encode()
            elif part.startswith("from "):
                self.client = part[5:]
            elif re.fullmatch(r"x\d+", part):
                self.times = int(part[1:])
            elif part == "tls":
                self.tls = True
            else:
                name, value = part.split(":", 1)
                self.headers[name] = value.strip()

    @property
    def url(self):
        return f"{'https' if self.tls else 'http'}://{self.headers['Host']}{self.target}"


def read_questions(path):
    questions, host = [], "example.com"
    for line in path.read_text().splitlines():
        if found := re.fullmatch(r"host: (\S+)", line):
            host = found[1]
        elif line.strip() and not line.startswith("#"):
            questions.append(Question(line, host))
    return questions


class Answer:
    """What one server answers, reduced to what its configuration decides."""

    def __init__(self, question, response, body):
        self.status = response.status
        self.cache = response.headers.get("Cache-Status", "")
        self.fields = {}
        encoding = response.headers.get("Content-Encoding", "")
        if encoding == "gzip":
            body = gzip.decompress(body) if body else body
        for name in {name.lower() for name in response.headers} - IGNORED:
            values = response.headers.get_all(name)
            self.fields[name] = self.reduced(name, values, question)
        # A page of the server's own is not part of the site.
        is_ours = body.startswith((f"{self.status} ".encode(), b"The file "))
        is_own = self.status >= 300 and (is_ours or BUILT_IN.search(body))
        self.body = None if is_own else body
        if is_own:
            self.fields.pop("content-type", None)
        if self.status == 304:
            self.fields.pop("last-modified", None)
        if self.status >= 400:
            # RFC 9110 wants `Allow`, an error must not be stored, and a client may wait and ask again;
            # most servers say little of it.
            for name in ERRORS_SAY:
                self.fields.pop(name, None)
        if self.status >= 300 and self.fields.get("cache-control") in (["no-store"], ["no-cache"]):
            del self.fields["cache-control"]

    @staticmethod
    def reduced(name, values, question):
        if name in PRESENT:
            return "present"
        if name == "location":
            return re.sub(r":8(080|443)(?=/|$)", "", urljoin(question.url, values[0]))
        if name == "content-type":
            return SAME_TYPES.get(kind := values[0].split(";")[0], kind)
        if name in ("vary", "cache-control", "allow"):
            words = {word.strip().lower() for value in values for word in value.split(",")}
            # Each server says this where it would compress; the answers themselves are compared.
            return sorted(words - {"accept-encoding"}) or None
        if name == "www-authenticate":
            return sorted(value.replace(', charset="UTF-8"', "") for value in values)
        return sorted(values)

    def differences(self, other):
        """Returns lines about what differs in the other's answer."""
        lines = []
        if self.status != other.status:
            lines.append(f"status {self.status} / {other.status}")
        for name in sorted({*self.fields, *other.fields}):
            mine, others = self.fields.get(name), other.fields.get(name)
            if mine != others:
                lines.append(f"{name}: {mine!r} / {others!r}")
        if self.body is not None and other.body is not None and self.body != other.body:
            lines.append(f"body {self.body[:300]!r} / {other.body[:300]!r}")
        return lines


def ask(address, question):
    """Asks one server one question, on a connection of its own."""
    client = substituted(question.client)
    if question.tls:
        connection = http.client.HTTPSConnection(
            address, 8443, timeout=20, context=TlsTo(question.headers["Host"]),
            source_address=(client, 0),
        )  # fmt: skip
    else:
        connection = http.client.HTTPConnection(
            address, 8080, timeout=20, source_address=(client, 0)
        )
    try:
        connection.putrequest(
            question.method, question.target, skip_host=True, skip_accept_encoding=True
        )
        headers = dict(question.headers)
        if question.body is not None:
            headers["Content-Length"] = str(len(question.body))
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders(question.body)
        response = connection.getresponse()
        return Answer(question, response, response.read())
    finally:
        connection.close()


class TlsTo:
    """A TLS context that asks for a host by name and trusts every certificate."""

    def __init__(self, host):
        self._context = ssl._create_unverified_context()
        self._host = host
        self.verify_mode, self.check_hostname = ssl.CERT_NONE, False

    def wrap_socket(self, stream, server_hostname=None, **options):
        return self._context.wrap_socket(stream, server_hostname=self._host, **options)


def substituted(text):
    for network, here in NETWORKS.items():
        text = text.replace(network, here)
    return text


class BackEndServer(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.counts = collections.Counter()

    def handle_error(self, request, client_address):
        """Health checks and proxies leave as they like."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class BackEnd(http.server.BaseHTTPRequestHandler):
    """An application that says what it was asked, and has a few paths of its own."""

    protocol_version = "HTTP/1.1"

    def answer(self):
        size = int(self.headers.get("Content-Length") or 0)
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            body = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(size)
        path = self.path.partition("?")[0]
        status, fields = 200, [("Content-Type", "text/plain"), ("X-Powered-By", "echo")]
        if found := re.search(r"/status/(\d+)$", path):
            status = int(found[1])
        elif path.endswith("/moved"):
            status = 302
            fields.append(("Location", "/elsewhere"))
        elif path.endswith("/cookie"):
            fields.append(("Set-Cookie", "session=1; Path=/"))
        elif path.endswith("/auth"):
            # An authentication service: who has the right cookie is ada.
            if "session=good" in self.headers.get("Cookie", ""):
                fields += [("X-Auth-Request-User", "ada"), ("Remote-User", "ada")]
            else:
                status = 401
        elif path.endswith("/accel"):
            fields.append(("X-Accel-Redirect", "/protected/report.txt"))
        lines = [
            f"{self.server.server_address[1]} {self.command} {self.path}",
            *(f"{name}: {self.headers[name]}" for name in SHOWN if name in self.headers),
            body.decode("latin-1"),
        ]
        if "/count" in path:
            self.server.counts[self.path] += 1
            lines.append(f"asked {self.server.counts[self.path]} times")
            if found := re.search(r"/count-([\w-]+)=(\w+)$", path):
                fields.append(("Cache-Control", f"{found[1]}={found[2]}"))
        if path.endswith("/large"):
            lines += ["all work and no play makes jack a dull boy"] * 1000
        text = "\n".join(lines).encode()
        self.send_response(status)
        for name, value in fields:
            self.send_header(name, value)
        has_body = status not in (204, 304)
        if has_body:
            self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if has_body and self.command != "HEAD":
            self.wfile.write(text)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = answer

    def log_message(self, *_):
        pass


SHOWN = (
    "Host", "X-Forwarded-For", "X-Forwarded-Proto", "X-Real-IP", "X-Site", "X-User", "Remote-User",
    "X-Country", "X-Beta",
)  # fmt: skip


class Migration(RealCase):
    """One set. `server` and `name` are those of its folder."""

    kind = name = None

    @classmethod
    def setUpClass(cls):
        if not program(cls.kind):
            raise unittest.SkipTest(f"{PROGRAMS[cls.kind]} is missing: make test-migrations")
        cls.home = home = cls.folder()
        home.chmod(0o755)
        cls.set = SETS / cls.kind / cls.name
        if (cls.set / "srv").is_dir():
            shutil.copytree(cls.set / "srv", home / "srv")
        (home / "srv").mkdir(exist_ok=True)
        (home / "run").mkdir()
        # All dates of files are the same for both servers in any case; this makes them stable.
        net = f"127.{random.randrange(2, 250)}.{random.randrange(1, 250)}"
        cls.theirs, cls.ours = f"{net}.1", f"{net}.2"
        # Back ends for each of the two servers, so that neither sees what the other has asked.
        cls.behind = {cls.theirs: f"{net}.3", cls.ours: f"{net}.4"}
        cls.make_certificate()
        cls.start_back_ends()
        cls.start_theirs()
        cls.start_ours()

    @classmethod
    def make_certificate(cls):
        folder = cls.home / "srv" / "tls"
        folder.mkdir()
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
             "-nodes", "-days", "2", "-subj", "/CN=example.com", "-addext",
             "subjectAltName=DNS:example.com,DNS:*.example.com", "-keyout", folder / "key.pem",
             "-out", folder / "chain.pem"],
            check=True, capture_output=True, timeout=60,
        )  # fmt: skip

    @classmethod
    def substitute(cls, text, address):
        """Returns a configuration for this machine: see the head of the file."""
        text = re.sub(r"127\.0\.0\.1:(\d+)", rf"{cls.behind[address]}:\1", substituted(text))
        text = re.sub(r"(?<![\w.])/(srv|run)/", rf"{cls.home}/\1/", text)
        for port, here in (("80", "8080"), ("443", "8443")):
            text = re.sub(rf"(listen |bind \*?:){port}\b",
                          lambda found, here=here: re.sub(r"\*?:$", "", found[1]) + f"{address}:{here}",
                          text)  # fmt: skip
            text = re.sub(rf'":{port}"', f'"{address}:{here}"', text)
        return text

    @classmethod
    def start_back_ends(cls):
        text = (cls.set / "penstock.toml").read_text()
        for port in set(re.findall(r"127\.0\.0\.1:(\d+)", text)):
            # A port that ends with 99 is that of a server that is down.
            if port.endswith("99"):
                continue
            for address in cls.behind.values():
                server = BackEndServer((address, int(port)), BackEnd)
                threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
                cls.addClassCleanup(server.server_close)
                cls.addClassCleanup(server.shutdown)
        if "php-fpm.sock" in text:
            cls.start_php()

    @classmethod
    def start_php(cls):
        """Starts PHP on the socket that the set's files name."""
        php = next(Path("/usr/sbin").glob("php-fpm*"), None)
        if not php:
            raise unittest.SkipTest("php-fpm is missing: make test-migrations")
        settings = cls.home / "php-fpm.conf"
        user = "user = root\ngroup = root\n" if os.geteuid() == 0 else ""
        settings.write_text(
            f"[global]\nerror_log = /dev/stderr\ndaemonize = no\n[www]\n{user}"
            f"listen = {cls.home}/run/php-fpm.sock\nlisten.mode = 0666\n"
            "pm = static\npm.max_children = 2\n"
        )
        child = Child([php, "-R", "-n", "-y", settings])
        cls.addClassCleanup(child.kill)
        until("php-fpm listens", (cls.home / "run" / "php-fpm.sock").exists, 20)

    @classmethod
    def start_theirs(cls):
        path = getattr(cls, f"start_{cls.kind}")()
        cls.addClassCleanup(path.kill)
        cls.their_child = path
        cls.wait_for_listener(cls.theirs, path)

    @classmethod
    def wait_for_listener(cls, address, child):
        def answers():
            try:
                socket.create_connection((address, 8080), timeout=5).close()
                return True
            except ConnectionError:
                if child._process.poll() is not None:
                    raise AssertionError("ended:\n" + "\n".join(child.lines)) from None
                return False

        until(f"{address} listens", answers, 20)

    @classmethod
    def start_nginx(cls):
        # The file is what Debian includes in `http { }`.
        settings = cls.substitute((cls.set / "nginx.conf").read_text(), cls.theirs)
        text = NGINX.format(home=cls.home, settings=MIME_TYPES + settings)
        if os.geteuid() == 0:
            # Its workers read a folder that only root may enter otherwise.
            text = "user root;\n" + text
        (cls.home / "nginx.conf").write_text(text)
        return Child([program("nginx"), "-p", cls.home, "-c", cls.home / "nginx.conf"])

    @classmethod
    def start_caddy(cls):
        text = cls.substitute((cls.set / "Caddyfile").read_text(), cls.theirs)
        (cls.home / "Caddyfile").write_text(cls.without_certificates(text, cls.theirs))
        environment = {"HOME": str(cls.home), "XDG_DATA_HOME": str(cls.home)}
        command = [
            program("caddy"),
            "run",
            "--adapter",
            "caddyfile",
            "--config",
            cls.home / "Caddyfile",
        ]
        return Child(command, environment)

    @staticmethod
    def without_certificates(text, address):
        """Returns a Caddyfile whose sites, which have names, get no certificates."""
        text = re.sub(r"^([a-z*][\w.*-]*\.[a-z]+(?:, [a-z*][\w.*-]*\.[a-z]+)*) \{",
                      lambda found: ", ".join(f"http://{host}" for host in found[1].split(", ")) + " {",
                      text, flags=re.MULTILINE)  # fmt: skip
        globals_ = (
            f"{{\n admin off\n auto_https off\n persist_config off\n http_port 8080\n"
            f" default_bind {address}\n}}\n"
        )
        return globals_ + text

    @classmethod
    def start_haproxy(cls):
        text = cls.substitute((cls.set / "haproxy.cfg").read_text(), cls.theirs)
        (cls.home / "haproxy.cfg").write_text(text)
        return Child([program("haproxy"), "-db", "-f", cls.home / "haproxy.cfg"])

    @classmethod
    def start_apache(cls):
        modules = Path("/usr/lib/apache2/modules")
        loaded = [
            f"LoadModule {name}_module {modules}/mod_{name}.so"
            for name in MODULES.split()
            if (modules / f"mod_{name}.so").exists()
        ]
        for file in (cls.set / "srv" / "www").rglob(".htaccess"):
            there = cls.home / "srv" / "www" / file.relative_to(cls.set / "srv" / "www")
            there.write_text(cls.substitute(file.read_text(), cls.theirs))
        if os.geteuid() == 0:
            loaded.append("User www-data\nGroup www-data")
        text = APACHE.format(
            home=cls.home, address=cls.theirs, modules="\n".join(loaded), settings=""
        )
        (cls.home / "apache.conf").write_text(text)
        return Child([program("apache"), "-DFOREGROUND", "-f", cls.home / "apache.conf"])

    @classmethod
    def our_file(cls):
        """Returns the text of Penstock's configuration."""
        return cls.substitute((cls.set / "penstock.toml").read_text(), cls.ours)

    @classmethod
    def start_ours(cls):
        text = cls.our_file()
        # The clients of this test are on loopback, which is trusted otherwise.
        text = text.replace("[server]\n", "[server]\ntrusted_proxies = []\n", 1)
        (cls.home / "penstock.toml").write_text(text)
        cls.our_child = Child([BIN, "serve", cls.home / "penstock.toml", "--admin", "127.0.0.1:0"])
        cls.addClassCleanup(cls.stop_ours)
        cls.wait_for_listener(cls.ours, cls.our_child)
        if "[caches." in text:
            # A server answers before its caches are open.
            warm = Question("GET /count/warm", "example.com")
            until("its caches are open", lambda: "store-out" not in ask(cls.ours, warm).cache, 20)

    @classmethod
    def stop_ours(cls):
        try:
            if (code := cls.our_child.terminate(STOP_SECONDS)) != 0:
                raise AssertionError(f"exited with {code} after SIGTERM")
        finally:
            cls.our_child.kill()

    def test_both_answer_the_same(self):
        questions = read_questions(self.set / "questions.txt")
        same = sum(1 for question in questions if not question.differs)
        self.assertGreaterEqual(same, QUESTIONS, "questions with the same answer")
        for question in questions:
            with self.subTest(question.line):
                differs = self.expected_difference(question)
                for _ in range(question.times):
                    theirs, ours = ask(self.theirs, question), ask(self.ours, question)
                    if differs == "fields":
                        self.assertEqual(theirs.status, ours.status)
                        continue
                    if differs:
                        self.assertEqual((theirs.status, ours.status), differs)
                        continue
                    if differences := theirs.differences(ours):
                        self.fail("theirs / ours:\n  " + "\n  ".join(differences))

    @staticmethod
    def expected_difference(question):
        return question.differs


class ImportedMigration(Migration):
    """One set, with what `penstock import` makes of the other server's file."""

    @classmethod
    def our_file(cls):
        name = FILES[cls.kind]
        text = cls.substitute((cls.set / name).read_text(), cls.ours)
        if cls.kind == "caddy":
            text = cls.without_certificates(text, cls.ours)
        # Not the file that the other server reads.
        folder = cls.home / "imported"
        folder.mkdir()
        (folder / name).write_text(text)
        command = [BIN, "import", folder / name, "-o", folder / "penstock.toml"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        if done.returncode != 0:
            raise AssertionError(f"penstock import: {done.returncode}\n{done.stderr}")
        text = (folder / "penstock.toml").read_text()
        if 'file = "htpasswd"' in text:
            # The file that the import leaves to a person.
            users = next((cls.set / "srv").rglob("htpasswd"))
            shutil.copy(users, cls.home / "htpasswd")
        return text if "[server]\n" in text else "[server]\n" + text

    @staticmethod
    def expected_difference(question):
        if question.imported == "same":
            return None
        return question.imported or question.differs


def load_tests(_loader, _tests, _pattern):
    """Makes a class of tests for each folder of docs/migrate."""
    suite = unittest.TestSuite()
    for folder in sorted(SETS.glob("*/*/questions.txt")):
        kind, name = folder.parts[-3:-1]
        case = type(f"{kind}_{name}", (Migration,), {"kind": kind, "name": name})
        suite.addTest(case("test_both_answer_the_same"))
        if kind in FILES:
            members = {"kind": kind, "name": name}
            case = type(f"imported_{kind}_{name}", (ImportedMigration,), members)
            suite.addTest(case("test_both_answer_the_same"))
    return suite
