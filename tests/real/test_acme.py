"""Certificates that the server gets by itself, from Pebble: the test authority of Let's Encrypt.

Pebble validates at fixed ports, looks every name up at a DNS server that says 127.0.0.1, and
rejects a part of all nonces, as real authorities may.
"""

import http.server
import json
import os
import re
import socket
import ssl
import subprocess
import tempfile
import threading
import unittest
import urllib.request
from pathlib import Path

from browser import Browser
from harness import BIN, ROOT, Child, RealCase, until
from test_redis import Redis

TOOLS = ROOT / ".tools" / "bin"
PATIENCE = 30
HOST = "shop.example"


def free_ports(count):
    """Returns ports that nothing listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def openssl(folder, *arguments):
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


class Authority:
    """Pebble with its DNS server; a context manager. `lifetime` is that of certificates."""

    def __init__(self, lifetime=7776000):
        self.lifetime = lifetime
        self.http, self.https, self._api, self._admin, self._dns, self.names_port = free_ports(6)

    def __enter__(self):
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-pebble-")
        self.home = Path(self._folder.name)
        self._make_own_certificate()
        address = "127.0.0.1"
        settings = {
            "listenAddress": f"{address}:{self._api}",
            "managementListenAddress": f"{address}:{self._admin}",
            "certificate": "leaf.pem",
            "privateKey": "leaf.key",
            "httpPort": self.http,
            "tlsPort": self.https,
            "externalAccountBindingRequired": False,
            "profiles": {
                "default": {"description": "tests", "validityPeriod": self.lifetime},
            },
        }
        (self.home / "pebble.json").write_text(json.dumps({"pebble": settings}))
        off = ["-http01", "", "-https01", "", "-tlsalpn01", "", "-doh", ""]
        self._names = Child(
            [TOOLS / "pebble-challtestsrv", "-defaultIPv4", address, "-defaultIPv6", "", *off]
            + [
                "-dnsserver",
                f"{address}:{self._dns}",
                "-management",
                f"{address}:{self.names_port}",
            ]
        )
        quick = {"PEBBLE_VA_NOSLEEP": "1", "PEBBLE_WFE_NONCEREJECT": "20"}
        self._pebble = Child(
            [TOOLS / "pebble", "-config", "pebble.json", "-dnsserver", f"{address}:{self._dns}"],
            quick,
            self.home,
        )
        self._pebble.wait_for("ACME directory available", PATIENCE)
        root = urllib.request.urlopen(
            f"https://localhost:{self._admin}/roots/0",
            context=ssl.create_default_context(cafile=self.home / "ca.pem"),
            timeout=PATIENCE,
        )
        (self.home / "root.pem").write_bytes(root.read())
        return self

    def __exit__(self, *_):
        self._pebble.kill()
        self._names.kill()
        self._folder.cleanup()

    @property
    def directory(self):
        return f"https://localhost:{self._api}/dir"

    @property
    def issued(self):
        """How many certificates it has issued."""
        return sum("Issued certificate serial" in line for line in list(self._pebble.lines))

    def _make_own_certificate(self):
        curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        openssl(
            self.home,
            *["req", "-x509", *curve, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca"],
        )
        openssl(
            self.home,
            *["req", *curve, "-keyout", "leaf.key", "-out", "leaf.csr", "-subj", "/CN=localhost"],
        )
        (self.home / "names").write_text("subjectAltName=DNS:localhost\n")
        openssl(
            self.home,
            *["x509", "-req", "-in", "leaf.csr", "-CA", "ca.pem", "-CAkey", "ca.key"],
            *["-out", "leaf.pem", "-extfile", "names"],
        )

    def client(self):
        """A context of clients that trust its certificates alone."""
        return ssl.create_default_context(cafile=self.home / "root.pem")


class SecureServer:
    """`penstock serve` with TLS at the ports that the authority validates; a context manager."""

    def __init__(self, authority, *arguments, cwd, ports=None, home):
        self.authority = authority
        self.http, self.https = ports or (authority.http, authority.https)
        self.command = [BIN, "serve", *arguments]
        if "--domain" in arguments:
            plain, secure = f"127.0.0.1:{self.http}", f"127.0.0.1:{self.https}"
            self.command += ["--admin", "off", "--listen", plain, "--listen-https", secure]
        self.cwd = cwd
        # The authority's own HTTPS is trusted as an operating system would.
        ca = authority.home / "ca.pem"
        self.env = {"SSL_CERT_FILE": str(ca), "STATE_DIRECTORY": str(home)}

    def __enter__(self):
        self._child = Child(self.command, self.env, self.cwd)
        self._child.wait_for("^listening https://", PATIENCE)
        return self

    def __exit__(self, *_):
        try:
            assert self._child.terminate(PATIENCE) == 0
        finally:
            self._child.kill()

    def reload(self):
        subprocess.run([BIN, "reload", "-c", self.command[-1]], check=True, timeout=PATIENCE)

    def print_output(self):
        print("\n".join(self._child.lines[-100:]))

    def connect(self, host=HOST):
        """A connection with a verified certificate, or why there is none."""
        plain = socket.create_connection(("127.0.0.1", self.https), timeout=PATIENCE)
        try:
            return self.authority.client().wrap_socket(plain, server_hostname=host)
        except BaseException:
            plain.close()
            raise

    def has_certificate(self, host=HOST):
        try:
            with self.connect(host) as secure:
                return secure.getpeercert()["serialNumber"]
        except ssl.SSLCertVerificationError:
            return None

    def wait_for_certificate(self, host=HOST):
        return until(f"a certificate for {host}", lambda: self.has_certificate(host), PATIENCE)


def ask(connection, path="/"):
    """Makes one request on a kept connection; returns the status."""
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
    received = b""
    while b"\r\n\r\n" not in received:
        piece = connection.recv(65536)
        if not piece:
            raise ConnectionError(f"closed after {received!r}")
        received += piece
    head, _, body = received.partition(b"\r\n\r\n")
    length = int(re.search(rb"Content-Length: (\d+)", head)[1])
    while len(body) < length:
        body += connection.recv(65536)
    return int(head.split()[1])


@unittest.skipUnless(os.access(TOOLS / "pebble", os.X_OK), "Pebble is not installed")
class AutomaticHttps(RealCase):
    def test_one_command_in_a_new_folder_gets_a_certificate(self):
        home = self.folder()
        site = home / "site"
        site.mkdir()
        (site / "index.html").write_text("<h1>here</h1>")
        with Authority() as authority:
            command = ["--domain", HOST, "--acme-directory", authority.directory]
            with SecureServer(authority, *command, cwd=site, home=home) as self.server:
                self.server.wait_for_certificate()
                with self.server.connect() as connection:
                    self.assertEqual(ask(connection), 200)
                # Requests without TLS go there.
                plain = socket.create_connection(("127.0.0.1", authority.http), timeout=PATIENCE)
                with plain:
                    plain.sendall(b"GET /a?b=c HTTP/1.1\r\nHost: shop.example\r\n\r\n")
                    answer = plain.recv(65536).decode()
                self.assertIn("308 Permanent Redirect", answer)
                self.assertIn(f"https://{HOST}:{authority.https}/a?b=c", answer)
            # The next start finds it, and orders none.
            with SecureServer(authority, *command, cwd=site, home=home) as self.server:
                self.assertTrue(self.server.has_certificate())
                self.assertEqual(authority.issued, 1)

    def test_a_browser_shows_the_page_where_it_trusts_the_authority(self):
        home = self.folder()
        (home / "index.html").write_text("<h1>here</h1>")
        flags = [f"--host-resolver-rules=MAP {HOST} 127.0.0.1"]
        with Authority() as authority:
            command = ["--domain", HOST, "--acme-directory", authority.directory, home]
            with SecureServer(authority, *command, cwd=home, home=home) as self.server:
                self.server.wait_for_certificate()
                url = f"https://{HOST}:{authority.https}/"
                with Browser(authority.home / "root.pem", flags) as browser:
                    # Redirected from the port without TLS.
                    browser.go(f"http://{HOST}:{authority.http}/")
                    browser.wait_text("h1", "here")
                    shown = browser.run("return [location.href, window.isSecureContext]")
                    self.assertEqual(shown, [url, True])
                with Browser(flags=flags) as browser:
                    browser.go(url)
                    browser.wait_text("body", "ERR_CERT_AUTHORITY_INVALID")

    def test_a_renewal_disturbs_no_request(self):
        home = self.folder()
        (home / "index.html").write_text("<h1>here</h1>")
        with Authority(lifetime=24) as authority:
            command = ["--domain", HOST, "--acme-directory", authority.directory, home]
            with SecureServer(authority, *command, cwd=home, home=home) as self.server:
                first = self.server.wait_for_certificate()
                failures, is_over = [], threading.Event()

                def load(keeps):
                    connection = None
                    while not is_over.is_set():
                        try:
                            connection = connection or self.server.connect()
                            status = ask(connection)
                            if status != 200:
                                failures.append(status)
                        except Exception as error:
                            failures.append(repr(error))
                        if not keeps or failures:
                            connection and connection.close()
                            connection = None
                    connection and connection.close()

                threads = [threading.Thread(target=load, args=(keeps,)) for keeps in (True, False)]
                for thread in threads:
                    thread.start()
                try:
                    until(
                        "another certificate",
                        lambda: self.server.has_certificate() not in (None, first),
                        PATIENCE,
                    )
                finally:
                    is_over.set()
                    for thread in threads:
                        thread.join(PATIENCE)
                self.assertEqual(failures, [])

    def test_two_servers_on_one_redis_get_one_certificate(self):
        home = self.folder()
        (home / "index.html").write_text("<h1>here</h1>")
        with Authority() as authority, Redis(home) as redis:
            others = free_ports(2)
            servers = []
            for number, ports in enumerate([(authority.http, authority.https), others]):
                file = home / f"{number}.toml"
                file.write_text(
                    f"""
                    [server]
                    listen = [
                        "127.0.0.1:{ports[0]}",
                        {{ address = "127.0.0.1:{ports[1]}", tls = true }},
                    ]
                    admin = "off"
                    redis = "unix:{redis.address}"
                    [acme]
                    directory = "{authority.directory}"
                    storage = "redis"
                    [[sites]]
                    hosts = ["{HOST}"]
                    tls = "auto"
                    routes = [{{ path = "/*", files = {{ root = "." }} }}]
                    """
                )
                servers.append(
                    SecureServer(authority, "-c", file, cwd=home, ports=ports, home=home)
                )
            first, second = servers
            with first as self.server, second:
                serials = {first.wait_for_certificate(), second.wait_for_certificate()}
                self.assertEqual(len(serials), 1)
                self.assertEqual(authority.issued, 1)

    def serve(self, authority, home, acme, hosts):
        """The server of a configuration with these lines of `[acme]` and of the site."""
        (home / "index.html").write_text("<h1>here</h1>")
        file = home / "penstock.toml"
        file.write_text(
            f"""
            [server]
            listen = [
                "127.0.0.1:{authority.http}",
                {{ address = "127.0.0.1:{authority.https}", tls = true }},
            ]
            admin = "off"
            [acme]
            directory = "{authority.directory}"
            {acme}
            [[sites]]
            {hosts}
            tls = "auto"
            routes = [{{ path = "/*", files = {{ root = "." }} }}]
            """
        )
        return SecureServer(authority, "-c", file, cwd=home, home=home)

    def test_a_hook_proves_a_wildcard(self):
        home = self.folder()
        hook = home / "hook"
        with Authority() as authority:
            # It prints more than a pipe takes.
            hook.write_text(
                f"""#!/bin/sh
                head -c 200000 /dev/zero | tr '\\0' x
                echo "$@" >> {home}/calls
                case $1 in present) verb=set-txt ;; cleanup) verb=clear-txt ;; esac
                curl -sS -d '{{"host":"'"$3"'.","value":"'"$4"'"}}' \\
                    http://127.0.0.1:{authority.names_port}/$verb
                """
            )
            hook.chmod(0o755)
            acme = f'challenges = ["dns-01"]\ndns_hook = "{hook}"'
            server = self.serve(authority, home, acme, 'hosts = ["*.wild.example"]')
            with server as self.server:
                self.server.wait_for_certificate("any.wild.example")
        calls = [line.split()[:3] for line in (home / "calls").read_text().splitlines()]
        record = "_acme-challenge.wild.example"
        self.assertIn(["present", "wild.example", record], calls)
        self.assertIn(["cleanup", "wild.example", record], calls)

    def test_names_on_demand_are_asked_for_and_stay_over_a_reload(self):
        home, asked = self.folder(), []

        class Ask(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                asked.append(self.path)
                self.send_response(200 if self.path.endswith("=good.example") else 403)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        owner = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Ask)
        threading.Thread(target=owner.serve_forever, daemon=True).start()
        self.addCleanup(owner.server_close)
        self.addCleanup(owner.shutdown)
        ask = f"http://127.0.0.1:{owner.server_port}/allowed?shop=1"
        with Authority() as authority:
            server = self.serve(authority, home, f'on_demand = {{ ask = "{ask}" }}', "")
            with server as self.server:
                serial = self.server.wait_for_certificate("good.example")
                self.assertIsNone(self.server.has_certificate("bad.example"))
                until(
                    "the question about the other name",
                    lambda: "/allowed?shop=1&domain=bad.example" in asked,
                    PATIENCE,
                )
                self.server.reload()
                self.assertEqual(self.server.has_certificate("good.example"), serial)
                self.assertEqual(authority.issued, 1)


if __name__ == "__main__":
    unittest.main()
