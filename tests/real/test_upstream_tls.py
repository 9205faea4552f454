"""Upstreams with TLS: nginx and `openssl s_server` behind Penstock, with certificates by openssl."""

import json
import re
import shutil
import socket
import subprocess
import threading

import requests

from harness import NGINX, Child, RealCase, until
from listening import PATIENCE, Front

SERVERS = """\
    log_format tls '$request_uri $ssl_protocol $ssl_session_reused $connection $ssl_server_name';
    access_log {home}/access.log tls;
    ssl_certificate {home}/a.pem;
    ssl_certificate_key {home}/a.key;
    server {{
        listen 127.0.0.1:{ports[0]} ssl;
        ssl_protocols TLSv1.3;
        root {home}/www;
    }}
    server {{
        listen 127.0.0.1:{ports[1]} ssl;
        ssl_protocols TLSv1.2;
        ssl_session_cache shared:one:1m;
        root {home}/www;
        keepalive_timeout 1s;
    }}
    server {{
        listen 127.0.0.1:{ports[2]} ssl;
        ssl_client_certificate {home}/ca.pem;
        ssl_verify_client on;
        location / {{ return 200 "$ssl_client_s_dn"; }}
    }}
    server {{
        listen 127.0.0.1:{ports[3]} ssl;
        ssl_certificate {home}/old.pem;
        ssl_certificate_key {home}/old.key;
        root {home}/www;
    }}
"""

UPSTREAM = """\
[upstreams.{name}]
servers = ["127.0.0.1:{port}"]
tls = {tls}
{more}
"""

TLS = '{ ca = "ca.pem", server_name = "a.test" }'
CLIENT = '{ ca = "ca.pem", server_name = "a.test", certificate = "c.pem", key = "c.key" }'
WRONG = '{ ca = "ca.pem", server_name = "b.test" }'


def openssl(home, command):
    subprocess.run(
        ["openssl", *command.split()], cwd=home, check=True, capture_output=True, timeout=60
    )


def issue(home, name, days="-days 30"):
    """Makes `NAME.pem` and `NAME.key`, for `NAME.test`."""
    openssl(
        home,
        f"req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN={name} "
        f"-keyout {name}.key -out {name}.csr",
    )
    (home / f"{name}.ext").write_text(f"subjectAltName=DNS:{name}.test\n")
    openssl(
        home,
        f"x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial {days} "
        f"-extfile {name}.ext -out {name}.pem",
    )


def free_ports(count):
    """Returns ports that were free a moment ago: neither server reports the one it got."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


def listens(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except ConnectionError:
        return False
    return True


class UpstreamTls(RealCase):
    @classmethod
    def setUpClass(cls):
        home = cls.home = cls.folder()
        # nginx's workers have another user where its master is root.
        home.chmod(0o755)
        openssl(
            home,
            "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=Authority "
            "-keyout ca.key -out ca.pem -days 30",
        )
        issue(home, "a")
        issue(home, "c")
        issue(home, "old", "-days 0")
        (home / "www").mkdir()
        (home / "www" / "small").write_text("small")
        cls.large = bytes(range(251)) * 80_000
        (home / "www" / "large").write_bytes(cls.large)
        ports = free_ports(5)
        settings = home / "nginx.conf"
        settings.write_text(
            NGINX.format(home=home, settings=SERVERS.format(home=home, ports=ports)).replace(
                "access_log off;", ""
            )
        )
        nginx = shutil.which("nginx") or "/usr/sbin/nginx"
        child = Child([nginx, "-p", home, "-c", settings])
        cls.addClassCleanup(child.kill)
        command = f"openssl s_server -accept 127.0.0.1:{ports[4]} -WWW -cert ../a.pem -key ../a.key"
        child = Child(command.split(), cwd=home / "www")
        cls.addClassCleanup(child.kill)
        rows = [
            ("kept", ports[0], TLS, ""),
            ("single", ports[0], TLS, "connections = { soft = 0 }"),
            ("older", ports[1], TLS, ""),
            ("mutual", ports[2], CLIENT, ""),
            ("missing", ports[2], TLS, ""),
            ("wrong", ports[0], WRONG, ""),
            ("expired", ports[3], TLS, ""),
            ("unknown", ports[0], '{ server_name = "a.test" }', ""),
            ("openssl", ports[4], TLS, ""),
            ("bulk", ports[0], TLS, ""),
            ("bulk-single", ports[0], TLS, "connections = { soft = 0 }"),
            ("bulk-older", ports[1], TLS, ""),
        ]
        text = "".join(
            UPSTREAM.format(name=name, port=port, tls=tls, more=more)
            for name, port, tls, more in rows
        )
        text += "[[sites]]\n" + "".join(
            f'[[sites.routes]]\npath = "/{name}/*"\nrewrite = {{ strip_prefix = "/{name}" }}\n'
            f"upstream = {json.dumps(name)}\n"
            for name, *_ in rows
        )
        (home / "penstock.toml").write_text(text)
        for port in ports:
            until(f"port {port} listens", lambda port=port: listens(port), 2 * PATIENCE)
        cls.server = cls.enterClassContext(Front(home / "penstock.toml", app=False))

    def get(self, path):
        return requests.get(f"http://127.0.0.1:{self.server.port}{path}", timeout=PATIENCE)

    def seen(self, marker, count):
        """Returns the fields of the lines of nginx's log that have the marker."""

        def look():
            lines = (self.home / "access.log").read_text().splitlines()
            lines = [line.split() for line in lines if marker in line]
            return lines if len(lines) >= count else None

        return until(f"{count} lines with {marker}", look, PATIENCE)

    def tls_counters(self, name):
        upstreams = self.server.status()["upstreams"]
        return next(upstream["tls"] for upstream in upstreams if upstream["name"] == name)

    def wait_for_log(self, pattern):
        def look():
            return any(re.search(pattern, line) for line in self.server.lines)

        until(f"{pattern} in the log", look, PATIENCE)

    def test_many_requests_use_one_connection(self):
        for number in range(20):
            self.assertEqual(self.get(f"/kept/small?kept{number}").text, "small")
        lines = self.seen("kept", 20)
        self.assertEqual({line[1] for line in lines}, {"TLSv1.3"})
        self.assertEqual({line[4] for line in lines}, {"a.test"})
        self.assertEqual(len({line[3] for line in lines}), 1)
        self.assertEqual(self.tls_counters("kept")["handshakes"], 1)

    def test_new_connections_resume_the_session(self):
        for number in range(5):
            self.assertEqual(self.get(f"/single/small?single{number}").text, "small")
        reused = [line[2] for line in self.seen("single", 5)]
        self.assertEqual(reused, [".", "r", "r", "r", "r"])
        self.assertEqual(self.tls_counters("single")["resumptions"], 4)

    def test_tls_1_2_and_a_server_that_closes_kept_connections(self):
        self.assertEqual(self.get("/older/small?older").text, "small")

        def is_closed():
            upstreams = self.server.status()["upstreams"]
            older = next(upstream for upstream in upstreams if upstream["name"] == "older")
            return older["servers"][0]["connections_open"] == 0

        until("nginx closes the idle connection", is_closed, PATIENCE)
        self.assertEqual(self.get("/older/small?older").text, "small")
        lines = self.seen("older", 2)
        self.assertEqual([line[1:3] for line in lines], [["TLSv1.2", "."], ["TLSv1.2", "r"]])

    def test_large_downloads_run_beside_each_other(self):
        answers = []

        def download(name):
            answers.append(self.get(f"/{name}/large").content == self.large)

        threads = [
            threading.Thread(target=download, args=(name,))
            for name in ["bulk", "bulk", "bulk-older", "bulk-single"]
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * PATIENCE)
        self.assertEqual(answers, [True] * 4)

    def test_a_client_certificate_is_shown(self):
        self.assertEqual(self.get("/mutual/").text, "CN=c")
        # nginx refuses in HTTP, not in the handshake.
        self.assertEqual(self.get("/missing/").status_code, 400)

    def test_servers_that_prove_nothing_are_refused(self):
        for name, cause in [
            ("wrong", "the certificate is for a.test, not for b.test: set `tls.server_name`"),
            ("expired", "the certificate expired"),
            ("unknown", "the issuer of the certificate is unknown: set `tls.ca`"),
        ]:
            with self.subTest(name):
                self.assertEqual(self.get(f"/{name}/small").status_code, 502)
                self.wait_for_log(f"{name}: 502 .*cannot connect: TLS: {re.escape(cause)}")

    def test_openssl_as_a_server(self):
        # Its answer has no length: only the announced end makes it whole.
        for _ in range(3):
            self.assertEqual(self.get("/openssl/large").content, self.large)
