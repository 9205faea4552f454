"""Frameworks behind nginx, which ends TLS: by X-Forwarded-* and by Forwarded, without settings.

A framework that does not know that its client uses https redirects it for ever, refuses its forms
and makes links to http. The client is at 127.0.0.9, so that it differs from nginx. It also sends a
proxy's fields itself: nginx passes on those that it does not set.
"""

import http.client
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
from pathlib import Path

from harness import EXAMPLES, NGINX, Child, RealCase, Response, Server, until

HERE = Path(__file__).resolve().parent
PROXIED = HERE / "proxied"
DJANGO = EXAMPLES / "django-demo"
PASSWORD = "a weir and a sluice"
CLIENT = "127.0.0.9"

PENSTOCK = """\
[apps.django]
dir = {django}
processes = 1
env = {{ DJANGO_DATA = {data}, DJANGO_HOSTS = "django.test", DJANGO_SETTINGS_MODULE = "secure", PYTHONPATH = {home} }}

[apps.fastapi]
dir = {python}
entry = "api:app"
interpreter = {with_fastapi}
processes = 1

[apps.flask]
dir = {python}
entry = "links:app"
interpreter = {with_flask}
processes = 1

[apps.sinatra]
dir = {sinatra}
kind = "rack"
processes = 1

[apps.rails]
dir = {rails}
kind = "rack"
processes = 1
"""
SITE = """
[[sites]]
hosts = ["{name}.test"]
[[sites.routes]]
path = "/shop/*"
rewrite = {{ strip_prefix = "/shop" }}
app = "{name}"
[[sites.routes]]
app = "{name}"
"""
NAMES = ("django", "fastapi", "flask", "sinatra", "rails")

SECURE = """\
from demo.settings import *
SECURE_SSL_REDIRECT = True
SESSION_COOKIE_SECURE = True
CSRF_COOKIE_SECURE = True
"""

SERVERS = """\
    ssl_certificate {home}/certificate.pem;
    ssl_certificate_key {home}/key.pem;
    proxy_http_version 1.1;
    server {{
        listen 127.0.0.1:{x_port} ssl;
        location / {{
            proxy_pass http://127.0.0.1:{port};
            proxy_set_header Host $host;
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
            proxy_set_header X-Forwarded-Proto $scheme;
        }}
    }}
    server {{
        listen 127.0.0.1:{standard_port} ssl;
        location / {{
            proxy_pass http://127.0.0.1:{port};
            proxy_set_header Host $host;
            proxy_set_header Forwarded "$http_forwarded, for=$remote_addr;proto=$scheme";
        }}
    }}
"""

ROWS = (
    ("X-Forwarded", {}),
    (
        "X-Forwarded",
        {
            "X-Forwarded-Host": "evil.test",
            "X-Forwarded-Port": "81",
            "X-Forwarded-Prefix": "/evil",
            "X-Forwarded-Ssl": "off",
            "Forwarded": "for=192.0.2.66;proto=http;host=evil.test",
        },
    ),
    ("Forwarded", {}),
    ("Forwarded", {"Forwarded": 'for="'}),
    ("Forwarded", {"Forwarded": 'for=_x;proto=http;host="evil.test'}),
)


def free_port():
    """Returns a port that was free a moment ago; nginx cannot report the port it got."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


class BehindProxy(RealCase):
    @classmethod
    def setUpClass(cls):
        cls.home = home = cls.folder()
        home.chmod(0o755)
        (home / "secure.py").write_text(SECURE)
        environment = {"DJANGO_DATA": str(home / "data"), "DJANGO_SUPERUSER_PASSWORD": PASSWORD}

        def manage(*arguments):
            command = [DJANGO / ".venv" / "bin" / "python", "-B", DJANGO / "manage.py", *arguments]
            subprocess.run(command, env=os.environ | environment, check=True, timeout=120)

        manage("migrate", "--verbosity", "0")
        manage("createsuperuser", "--noinput", "--username", "ada", "--email", "ada@example.com",
               "--verbosity", "0")  # fmt: skip
        # Rails writes into its directory.
        rails = shutil.copytree(PROXIED / "rails", home / "rails")
        words = {
            "django": DJANGO,
            "data": home / "data",
            "home": home,
            "python": PROXIED / "python",
            "with_fastapi": EXAMPLES / "fastapi-levels" / ".venv" / "bin" / "python",
            "with_flask": sys.executable,
            "sinatra": PROXIED / "sinatra",
            "rails": rails,
        }
        words = {name: json.dumps(str(path)) for name, path in words.items()}
        settings = home / "penstock.toml"
        sites = (SITE.format(name=name) for name in NAMES)
        settings.write_text(PENSTOCK.format(**words) + "".join(sites))
        cls.server = cls.enterClassContext(Server(settings, seconds=60))
        for name in NAMES:
            cls.server._child.wait_for(rf"^app {name}: .*ready in ", 60)
        cls.start_nginx()

    @classmethod
    def start_nginx(cls):
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
             "-nodes", "-days", "2", "-subj", "/CN=test", "-keyout", cls.home / "key.pem",
             "-out", cls.home / "certificate.pem"],
            check=True, capture_output=True, timeout=60,
        )  # fmt: skip
        cls.ports = {"X-Forwarded": free_port(), "Forwarded": free_port()}
        settings = cls.home / "nginx.conf"
        settings.write_text(
            NGINX.format(
                home=cls.home,
                settings=SERVERS.format(
                    home=cls.home,
                    port=cls.server.port,
                    x_port=cls.ports["X-Forwarded"],
                    standard_port=cls.ports["Forwarded"],
                ),
            )
        )
        nginx = shutil.which("nginx") or "/usr/sbin/nginx"
        cls.nginx = Child([nginx, "-p", cls.home, "-c", settings])
        cls.addClassCleanup(cls.nginx.kill)

        def answers():
            try:
                return cls.ask("flask", "X-Forwarded", "/").status == 200
            except ConnectionError:
                return False

        until("nginx answers", answers, 20)

    @classmethod
    def ask(cls, name, family, target, method="GET", body=None, headers=None):
        """Makes one request over TLS to `name`.test, by the proxy that sends `family` fields."""
        trusting = ssl._create_unverified_context()
        connection = http.client.HTTPSConnection(
            "127.0.0.1", cls.ports[family], timeout=30, context=trusting, source_address=(CLIENT, 0)
        )
        try:
            headers = {"Host": f"{name}.test"} | (headers or {})
            connection.request(method, target, body, headers)
            return Response(connection.getresponse())
        finally:
            connection.close()

    def each(self, check):
        """Runs `check` for both proxies, with and without fields that the client forges."""
        for family, spoofed in ROWS:
            with self.subTest(family=family, spoofed=spoofed):
                check(family, spoofed)

    def test_django_is_not_redirected_for_ever_and_takes_forms(self):
        def check(family, spoofed):
            page = self.ask("django", family, "/admin/login/", headers=spoofed)
            self.assertEqual(page.status, 200, page.headers.get("Location"))
            token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page.text)[1]
            cookie = re.match(r"csrftoken=\w+", page.headers["Set-Cookie"])[0]
            fields = f"csrfmiddlewaretoken={token}&username=ada&password={PASSWORD}&next=/admin/"
            for sender in (
                {"Referer": "https://django.test/admin/login/"},
                {"Origin": "https://django.test"},
            ):
                headers = spoofed | sender | {
                    "Cookie": cookie,
                    "Content-Type": "application/x-www-form-urlencoded",
                }  # fmt: skip
                body = fields.replace(" ", "+")
                answer = self.ask("django", family, "/admin/login/", "POST", body, headers)
                self.assertEqual(answer.status, 302, answer.text[:300])
                self.assertEqual(answer.headers["Location"], "/admin/")
            # A form of another site.
            headers["Origin"] = "https://evil.test"
            answer = self.ask("django", family, "/admin/login/", "POST", body, headers)
            self.assertEqual(answer.status, 403)

        self.each(check)

    def test_fastapi_redirects_to_https_and_the_same_host(self):
        def check(family, spoofed):
            for prefix in ("", "/shop"):
                answer = self.ask("fastapi", family, f"{prefix}/items", headers=spoofed)
                self.assertEqual(answer.status, 307)
                there = f"https://fastapi.test{prefix}/items/"
                self.assertEqual(answer.headers["Location"], there)
                answer = self.ask("fastapi", family, f"{prefix}/items/", headers=spoofed)
                found = json.loads(answer.text)
                self.assertEqual(found, {"url": there, "link": there, "client": CLIENT})

        self.each(check)

    def test_flask_makes_links_to_https(self):
        def check(family, spoofed):
            for prefix in ("", "/shop"):
                answer = self.ask("flask", family, f"{prefix}/", headers=spoofed)
                link = f"https://flask.test{prefix}/"
                expected = {"link": link, "secure": True, "client": CLIENT}
                self.assertEqual(json.loads(answer.text), expected)
                answer = self.ask("flask", family, f"{prefix}/enter", headers=spoofed)
                self.assertEqual((answer.status, answer.headers["Location"]), (302, link))
                self.assertIn("Secure", answer.headers["Set-Cookie"])

        self.each(check)

    def test_rack_knows_scheme_client_and_host(self):
        def check(family, spoofed):
            for prefix in ("", "/shop"):
                answer = self.ask("sinatra", family, f"{prefix}/", headers=spoofed)
                link = f"https://sinatra.test{prefix}/"
                expected = {"ssl": True, "ip": CLIENT, "host": "sinatra.test", "link": link}
                self.assertEqual(json.loads(answer.text), expected)
                answer = self.ask("sinatra", family, f"{prefix}/enter", headers=spoofed)
                self.assertEqual((answer.status, answer.headers["Location"]), (302, link))

        self.each(check)

    def test_rails_forces_tls_once_and_takes_forms(self):
        def check(family, spoofed):
            page = self.ask("rails", family, "/", headers=spoofed)
            self.assertEqual(page.status, 200, page.headers.get("Location"))
            found = json.loads(page.text)
            token = found.pop("token")
            link = "https://rails.test/"
            self.assertEqual(found, {"ssl": True, "ip": CLIENT, "rack_ip": CLIENT, "link": link})
            session = re.match(r"_shop=[^;]+", page.headers["Set-Cookie"])[0]
            headers = spoofed | {
                "Cookie": session,
                "Origin": "https://rails.test",
                "X-CSRF-Token": token,
            }
            answer = self.ask("rails", family, "/", "POST", "", headers)
            self.assertEqual((answer.status, answer.headers["Location"]), (302, link))
            headers["Origin"] = "https://evil.test"
            self.assertGreaterEqual(self.ask("rails", family, "/", "POST", "", headers).status, 400)

        self.each(check)
