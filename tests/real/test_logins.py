"""Passwords and a login service in front of applications that know nothing of them.

Django's admin behind `basic_auth`, in a browser: its own login, its forms and its session go on
working. oauth2-proxy behind `forward_auth`: visitors get its page first, and the application gets
the names of those that have logged in. It takes a user from a file here, as no identity provider
can be reached.
"""

import http.client
import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import unittest
from urllib.parse import urlencode

from browser import Browser
from harness import EXAMPLES, ROOT, Child, RealCase, Response, Server, until

PROJECT = EXAMPLES / "django-demo"
PYTHON = PROJECT / ".venv" / "bin" / "python"
PASSWORD = "a weir and a sluice"
# Of `sluice`, by bcrypt.
HASH = "$2y$08$MS4vQBiMkrOrLOk74QhRU.VcJo1BGsIaIhHlRB.bc3.vS9IKOMRpK"
TOOLS = ROOT / "tests" / "real" / "migrations" / "bin"
OAUTH2_PROXY = shutil.which("oauth2-proxy", path=f"{TOOLS}:{os.environ['PATH']}")

ADMIN = """\
[apps.demo]
dir = {project}
processes = 1
env = {{ DJANGO_DATA = {data} }}

[[sites]]
[[sites.routes]]
path = {{ regex = "^/admin(/|$)" }}
basic_auth = {{ realm = "Admin", users = {{ file = {users} }} }}
app = "demo"
[[sites.routes]]
app = "demo"
"""

REPORTS = """\
[apps.reports]
dir = {dir}
entry = "reports:application"
interpreter = {interpreter}
processes = 1

[upstreams.login]
servers = ["127.0.0.1:{port}"]

[[sites]]
[[sites.routes]]
path = "/oauth2/*"
upstream = "login"
[[sites.routes]]
path = "/api/*"
forward_auth = {{ url = "http://127.0.0.1:{port}/oauth2/auth", copy_headers = ["X-Auth-Request-User"] }}
app = "reports"
[[sites.routes]]
path = "/*"
forward_auth = {{ url = "http://127.0.0.1:{port}/", copy_headers = ["X-Auth-Request-User"] }}
app = "reports"
"""

APPLICATION = """\
def application(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    user = environ.get("HTTP_X_AUTH_REQUEST_USER", "-")
    size = int(environ.get("CONTENT_LENGTH") or 0)
    body = environ["wsgi.input"].read(size).decode()
    return [f"{user} {environ['REQUEST_METHOD']} {environ['PATH_INFO']} {body}".encode()]
"""


class AdminBehindPassword(RealCase):
    @classmethod
    def setUpClass(cls):
        home = cls.folder()
        data = home / "data"
        environment = {"DJANGO_DATA": str(data), "DJANGO_SUPERUSER_PASSWORD": PASSWORD}

        def manage(*arguments):
            command = [PYTHON, "-B", PROJECT / "manage.py", *arguments]
            subprocess.run(command, env=os.environ | environment, check=True, timeout=120)

        manage("migrate", "--verbosity", "0")
        manage("createsuperuser", "--noinput", "--username", "ada", "--email", "ada@example.com",
               "--verbosity", "0")  # fmt: skip
        (home / "htpasswd").write_text(f"keeper:{HASH}\n")
        settings = home / "penstock.toml"
        words = {"project": PROJECT, "data": data, "users": home / "htpasswd"}
        settings.write_text(
            ADMIN.format(**{name: json.dumps(str(path)) for name, path in words.items()})
        )
        cls.server = cls.enterClassContext(Server(settings))

    def test_nothing_of_the_admin_is_seen_without_the_password(self):
        for target in ("/admin", "/admin/", "/admin/login/", "//admin/", "/%61dmin/login/"):
            answer = self.server.get(target)
            self.assertEqual(answer.status, 401, target)
            self.assertRegex(answer.headers["WWW-Authenticate"], '^Basic realm="Admin"')
            self.assertNotIn("Django", answer.text)
        self.assertEqual(self.server.get("/").status, 200)

    def test_the_admin_works_behind_the_password(self):
        with Browser() as browser:
            address = self.server.url.removeprefix("http://")
            browser.go(f"http://keeper:sluice@{address}/admin/")
            self.assertIn("/admin/login/", browser.url)
            browser.find("#id_username").type("ada")
            browser.find("#id_password").type(PASSWORD)
            browser.find("[type=submit]").click()
            # Without the style of the admin, which would write it in capitals.
            browser.wait_text("#user-tools", "ada")
            browser.go(self.server.url + "/admin/documents/document/")
            browser.wait_text("#content", "document")
            browser.find("#logout-form button").click()
            browser.wait_text("#content", "Thanks for spending some quality time")


def free_port():
    """Returns a port that was free a moment ago; oauth2-proxy cannot report the port it got."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@unittest.skipUnless(OAUTH2_PROXY, "oauth2-proxy is missing: make test-migrations")
class BehindOauth2Proxy(RealCase):
    @classmethod
    def setUpClass(cls):
        home = cls.folder()
        (home / "reports.py").write_text(APPLICATION)
        (home / "htpasswd").write_text(f"ada:{HASH}\n")
        port = free_port()
        cls.login = Child(
            [OAUTH2_PROXY, f"--http-address=127.0.0.1:{port}", "--reverse-proxy=true", "--trusted-proxy-ip=127.0.0.1",
             "--provider=github", "--client-id=none", "--client-secret=none", "--email-domain=*",
             f"--cookie-secret={secrets.token_hex(16)}", "--cookie-secure=false",
             f"--htpasswd-file={home / 'htpasswd'}", "--set-xauthrequest=true",
             "--upstream=static://202"]
        )  # fmt: skip
        cls.addClassCleanup(cls.login.kill)

        def listens():
            try:
                socket.create_connection(("127.0.0.1", port), timeout=5).close()
                return True
            except ConnectionError:
                return False

        until("oauth2-proxy listens", listens, 20)
        settings = home / "penstock.toml"
        settings.write_text(
            REPORTS.format(
                dir=json.dumps(str(home)), interpreter=json.dumps(sys.executable), port=port
            )
        )
        cls.server = cls.enterClassContext(Server(settings))

    def ask(self, method, target, body=None, headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=20)
        try:
            connection.request(method, target, body, headers or {})
            return Response(connection.getresponse())
        finally:
            connection.close()

    def log_in(self):
        form = urlencode({"username": "ada", "password": "sluice", "rd": "/yearly"})
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        answer = self.ask("POST", "/oauth2/sign_in", form, kind)
        self.assertEqual((answer.status, answer.headers["Location"]), (302, "/yearly"))
        return re.match(r"_oauth2_proxy=[^;]+", answer.headers["Set-Cookie"])[0]

    def test_a_visitor_gets_the_page_of_the_login(self):
        answer = self.ask("GET", "/yearly", headers={"Accept": "text/html"})
        self.assertEqual(answer.status, 403)
        self.assertIn("/oauth2/sign_in", answer.text)
        self.assertEqual(self.ask("GET", "/api/yearly").status, 401)
        spoofed = {"X-Auth-Request-User": "ada"}
        self.assertEqual(self.ask("GET", "/api/yearly", headers=spoofed).status, 401)

    def test_the_application_knows_the_user(self):
        fields = {"Cookie": self.log_in(), "X-Auth-Request-User": "root"}
        for target in ("/yearly", "/api/yearly"):
            answer = self.ask("GET", target, headers=fields)
            self.assertEqual((answer.status, answer.text), (200, f"ada GET {target} "))
        answer = self.ask("POST", "/api/yearly", "total=5", fields)
        self.assertEqual((answer.status, answer.text), (200, "ada POST /api/yearly total=5"))

    def test_z_without_the_login_nothing_is_open(self):
        cookie = {"Cookie": self.log_in()}
        self.login.kill()

        def is_closed():
            return self.ask("GET", "/api/yearly", headers=cookie).status == 503

        until("requests are refused", is_closed, 20)
        self.assertEqual(self.ask("GET", "/yearly", headers=cookie).status, 503)
