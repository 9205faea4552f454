"""HTTPS with the default profile, as programs that look for weak points see it.

Named extra: `make test-tls`. testssl.sh takes a few minutes for each kind of key.
"""

import json
import os
import shutil
import socket
import ssl
import subprocess
import unittest
from pathlib import Path

from harness import BIN, RealCase, Server

HERE = Path(__file__).resolve().parent
SSLYZE = HERE / "tls" / ".venv" / "bin" / "sslyze"

CONFIG = """\
[server]
listen = [{{ address = "127.0.0.1:0", tls = true }}]

[[sites]]
hosts = ["localhost"]
tls = {tls}
hsts = "365d"

[[sites.routes]]
files = {{ root = "{root}" }}
"""

# Severities of testssl.sh that a default installation must not have.
BAD = {"MEDIUM", "HIGH", "CRITICAL", "FATAL"}

# What testssl.sh may say all the same: the finding's name, and a part of its text.
ACCEPTED = {
    # All suites are good, so that clients choose: those without AES in hardware prefer ChaCha20.
    # Mozilla's guidelines say so, too.
    "cipher_order": "NOT a cipher order configured",
    # A private authority publishes no revocations.
    "cert_revocation": "Neither CRL nor OCSP",
    # Fields such as Content-Security-Policy are the site's own.
    "security_headers": "--",
}

# Longer than testssl.sh needs on a busy machine.
TESTSSL_SECONDS = 900


def load_tests(loader, tests, pattern):
    """Loads all tests when the module is named, none in discovery."""
    return tests if pattern is None else unittest.TestSuite()


def is_accepted(finding):
    text = ACCEPTED.get(finding["id"].split(" ")[0])
    return text is not None and text in finding["finding"]


class TlsServer(Server):
    scheme = "https"

    def __init__(self, config, state):
        super().__init__(config, env={"STATE_DIRECTORY": str(state)}, app=False)
        self.command = [BIN, "serve", config, "--admin", "127.0.0.1:0"]


class Profile:
    """The tests of a server with one kind of key; mixed into a class for each kind."""

    @classmethod
    def setUpClass(cls):
        folder = cls.folder()
        root = folder / "files"
        root.mkdir()
        (root / "index.html").write_text("hello")
        tls, cls.authority = cls.make_certificate(folder)
        config = folder / "penstock.toml"
        config.write_text(CONFIG.format(tls=tls, root=root))
        cls.work = folder
        cls.server = cls.enterClassContext(TlsServer(config, folder / "state"))

    def client(self, adjust=lambda context: None):
        """Returns a connection that trusts the authority."""
        context = ssl.create_default_context(cafile=self.authority)
        adjust(context)
        plain = socket.create_connection(("127.0.0.1", self.server.port), timeout=20)
        return context.wrap_socket(plain, server_hostname="localhost")

    def s_client(self, *options, text=""):
        """Returns what `openssl s_client` prints."""
        command = ["openssl", "s_client", "-connect", f"127.0.0.1:{self.server.port}"]
        done = subprocess.run(
            [*command, "-servername", "localhost", "-CAfile", self.authority, *options],
            input=text,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.stdout + done.stderr

    def test_a_page_is_served(self):
        with self.client() as client:
            self.assertEqual(client.version(), "TLSv1.3")
            client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            answer = b""
            while part := client.recv(4096):
                answer += part
        self.assertTrue(answer.startswith(b"HTTP/1.1 200 OK\r\n"), answer)
        self.assertTrue(answer.endswith(b"\r\n\r\nhello"), answer)

    def test_old_versions_are_refused(self):
        for version in ("-tls1", "-tls1_1"):
            text = self.s_client(version, "-cipher", "DEFAULT:@SECLEVEL=0")
            self.assertRegex(text, "alert (protocol version|handshake failure)", version)

    def test_a_client_may_not_renegotiate(self):
        # `R` at the beginning of a line renegotiates. Once it is refused by a warning.
        request = "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        text = self.s_client("-tls1_2", "-crlf", text=f"R\n{request}")
        self.assertIn("RENEGOTIATING", text)
        self.assertRegex(text, "no renegotiation|alert")
        self.assertEqual(text.count("Verify return code: 0"), 1, text)

    def test_sessions_resume_with_tickets(self):
        session = self.work / "session.pem"
        for version in ("-tls1_2", "-tls1_3"):
            request = "HEAD / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
            options = (version, "-crlf", "-ign_eof")
            self.assertIn("\nNew, ", self.s_client(*options, "-sess_out", session, text=request))
            self.assertIn("\nReused, ", self.s_client(*options, "-sess_in", session, text=request))

    def test_sslyze_finds_mozillas_intermediate_profile(self):
        self.assertTrue(SSLYZE.exists(), "scripts/setup tls")
        result = self.work / "sslyze.json"
        done = subprocess.run(
            [SSLYZE, "--mozilla_config", "intermediate", "--certinfo_ca_file", self.authority]
            + ["--early_data", "--json_out", result, f"localhost:{self.server.port}"],
            capture_output=True,
            text=True,
            timeout=300,
        )
        self.assertIn("OK - Compliant.", done.stdout, done.stdout + done.stderr)
        self.assertEqual(done.returncode, 0)
        scan = json.loads(result.read_text())["server_scan_results"][0]["scan_result"]
        self.check_scan({name: it["result"] for name, it in scan.items() if it["result"]})

    def check_scan(self, scan):
        for version in ("ssl_2_0", "ssl_3_0", "tls_1_0", "tls_1_1"):
            accepted = scan[f"{version}_cipher_suites"]["accepted_cipher_suites"]
            self.assertEqual(accepted, [], version)
        for version in ("tls_1_2", "tls_1_3"):
            self.assertTrue(scan[f"{version}_cipher_suites"]["accepted_cipher_suites"])
        self.assertFalse(scan["heartbleed"]["is_vulnerable_to_heartbleed"])
        self.assertFalse(scan["openssl_ccs_injection"]["is_vulnerable_to_ccs_injection"])
        self.assertFalse(scan["tls_compression"]["supports_compression"])
        self.assertFalse(scan["tls_1_3_early_data"]["supports_early_data"])
        renegotiation = scan["session_renegotiation"]
        self.assertTrue(renegotiation["supports_secure_renegotiation"])
        self.assertFalse(renegotiation["is_vulnerable_to_client_renegotiation_dos"])
        self.assertIn("NOT_VULNERABLE", scan["robot"]["robot_result"])

    def test_testssl_finds_nothing_above_low(self):
        self.assertTrue(shutil.which("testssl"), "scripts/setup tls")
        result = self.work / "testssl.json"
        command = ["testssl", "--quiet", "--color", "0", "--warnings", "off", "--ip", "127.0.0.1"]
        command += ["--add-ca", self.authority, "--jsonfile", result]
        done = subprocess.run(
            [*command, f"localhost:{self.server.port}"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TESTSSL_SECONDS,
            env=os.environ | {"TERM": "dumb"},
        )
        findings = json.loads(result.read_text())
        known = {it["id"] for it in findings}
        self.assertLessEqual({"TLS1_2", "TLS1_3", "heartbleed", "LUCKY13"}, known, done.stdout)
        bad = [
            f"{it['severity']} {it['id']}: {it['finding']}"
            for it in findings
            if it["severity"] in BAD and not is_accepted(it)
        ]
        self.assertEqual(bad, [], done.stdout)


class LocalAuthority(Profile, RealCase):
    """ECDSA, with a certificate that the server has made."""

    @classmethod
    def make_certificate(cls, folder):
        return '"local"', folder / "state" / "local-authority" / "root.pem"


class RsaKey(Profile, RealCase):
    """RSA with 2,048 bits, from files."""

    @classmethod
    def make_certificate(cls, folder):
        def openssl(*arguments):
            subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

        new = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-sha256"]
        signs = ["-addext", "keyUsage=critical,keyCertSign", "-subj", "/CN=Test"]
        openssl(*new, *signs, "-days", "90", "-keyout", "ca.key", "-out", "ca.pem")
        of_ca = ["-CA", "ca.pem", "-CAkey", "ca.key", "-days", "80", "-subj", "/CN=localhost"]
        names = ["-addext", "subjectAltName=DNS:localhost"]
        uses = ["-addext", "extendedKeyUsage=serverAuth", "-addext", "basicConstraints=CA:FALSE"]
        openssl(*new, *of_ca, *names, *uses, "-keyout", "leaf.key", "-out", "leaf.pem")
        leaf, key = folder / "leaf.pem", folder / "leaf.key"
        return f'{{ certificate = "{leaf}", key = "{key}" }}', folder / "ca.pem"
