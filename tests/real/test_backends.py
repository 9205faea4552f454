"""One table of requests for every back end, each through the real server and by its own protocol.

A named extra (`make test-backends`): discovery leaves these tests out, since they need programs
that nothing else here does; when named they all run, and a missing program fails. Invariant:
whatever the protocol, a back end gets the request as the client sent it, and the client the
response as the back end sent it.
"""

import hashlib
import threading
import unittest
from contextlib import closing
from http.client import HTTPConnection
from urllib.parse import quote

from backends.in_others import PhpFpm, Tomcat
from backends.in_python import Gunicorn, Uwsgi, UwsgiHttp, UwsgiScgi
from backends.in_ruby import Puma, RubyFastCgi, Thin, Unicorn, Webrick
from harness import RealCase, Server, until

# Around the sizes of a packet (AJP), a record (FastCGI), a buffer, and above the memory bound.
SIZES = (0, 1, 8184, 8186, 65535, 65536, 65537, 3 << 20)

PIECE = b"0123456789abcdef" * 4096


def load_tests(loader, tests, pattern):
    """Loads all tests when the module is named, none in discovery."""
    return tests if pattern is None else unittest.TestSuite()


def pattern(length):
    return (PIECE * (length // len(PIECE) + 1))[:length]


def expected(method, path, body):
    return f"{method} {path} {len(body)} {hashlib.md5(body).hexdigest()}"


class Front(Server):
    """The real server in front of a back end."""

    def __init__(self, backend, route=""):
        config = backend.folder / "penstock.toml"
        config.write_text(backend.config(route))
        super().__init__(config, app=False)

    def __enter__(self):
        super().__enter__()
        # A hundred megabytes through a debug build on a busy machine.
        self._connection.timeout = 120
        return self


class Table:
    """The requests; below is a class for each back end."""

    backend_class = None

    @classmethod
    def setUpClass(cls):
        cls.backend = cls.enterClassContext(cls.backend_class(cls.folder()))
        cls.server = cls.enterClassContext(Front(cls.backend))

    def setUp(self):
        # A broken exchange costs its own test only.
        self.server._connection.close()

    def run(self, result=None):
        before = len(result.failures) + len(result.errors)
        super().run(result)
        if len(result.failures) + len(result.errors) > before:
            self.backend.print_output()

    def test_methods_arrive(self):
        for method in self.backend.methods:
            with self.subTest(method):
                answer = self.server.request(method, "/echo?x=y")
                self.assertEqual(answer.status, 200)
                self.assertEqual(answer.text, expected(method, "/echo", b""))

    def test_bodies_arrive(self):
        for size in SIZES:
            for method in ("POST", "PUT"):
                with self.subTest(f"{method} {size}"):
                    body = pattern(size)
                    answer = self.server.request(method, "/echo", body)
                    self.assertEqual(
                        (answer.status, answer.text), (200, expected(method, "/echo", body))
                    )

    def test_bodies_of_unknown_length_arrive(self):
        for size in SIZES:
            with self.subTest(size):
                body = pattern(size)
                pieces = (body[at : at + 10_000] for at in range(0, size, 10_000))
                answer = self.server.request("POST", "/echo", pieces)
                self.assertEqual(
                    (answer.status, answer.text), (200, expected("POST", "/echo", body))
                )

    def test_the_largest_upload_arrives(self):
        body = pattern(self.backend.largest)
        answer = self.server.request("POST", "/echo", body)
        self.assertEqual((answer.status, answer.text), (200, expected("POST", "/echo", body)))

    def test_answers_come_back(self):
        for size in (*SIZES, self.backend.largest):
            with self.subTest(size):
                answer = self.server.get(f"/big/{size}")
                self.assertEqual((answer.status, len(answer.body)), (200, size))
                self.assertTrue(answer.body == pattern(size), "not the same bytes")
                self.assertEqual(answer.headers.get_all("Content-Length"), [str(size)])

    def test_answers_of_unknown_length_come_back(self):
        answer = self.server.get("/chunks")
        self.assertEqual((answer.status, answer.body), (200, b"one" + b"two" * 5000 + b"three"))

    def test_an_answer_to_head_has_no_body(self):
        for target in ("/echo", "/big/1000", "/chunks", "/status/404"):
            with self.subTest(target):
                head = self.server.request("HEAD", target)
                self.assertEqual(head.body, b"")
                self.assertEqual(head.status, 404 if "404" in target else 200)
                # Left-over bytes would be read as the next response.
                self.assertEqual(self.server.get("/echo").text, expected("GET", "/echo", b""))

    def test_statuses_come_back(self):
        for status in (200, 201, 204, 304, 400, 404, 418, 500, 503):
            with self.subTest(status):
                answer = self.server.get(f"/status/{status}")
                body = b"" if status in (204, 304) else b"why"
                self.assertEqual((answer.status, answer.body), (status, body))
                self.assertEqual(answer.headers["X-Status"], str(status))
                self.assertEqual(self.server.get("/echo").text, expected("GET", "/echo", b""))

    def test_fields_go_both_ways(self):
        path = "/fields/a b/zwölf"
        fields = {"Host": "shop.test:8080", "X-Odd": '1, 2;x="y"', "Cookie": "c=d; e=f"}
        answer = self.server.get(quote(path) + "?q=%20&r", fields)
        lines = dict(line.split("=", 1) for line in answer.text.splitlines())
        self.assertEqual(lines["HTTP_HOST"], "shop.test:8080")
        self.assertEqual(lines["HTTP_X_FORWARDED_FOR"], "127.0.0.1")
        self.assertEqual(lines["HTTP_X_ODD"], fields["X-Odd"])
        self.assertEqual(lines["HTTP_COOKIE"], fields["Cookie"])
        self.assertEqual(lines["QUERY_STRING"], "q=%20&r")
        self.assertEqual(lines["PATH"], path)
        cookies = [cookie.split(";")[0] for cookie in answer.headers.get_all("Set-Cookie")]
        self.assertEqual(cookies, ["a=1", "b=2"])

    def test_a_first_piece_comes_before_the_last_is_there(self):
        if not self.backend.streams:
            self.assertEqual(self.gate("opened", opened=True), b"firstlast")
            return
        self.assertEqual(self.gate("opened-later", opened=False), b"firstlast")

    def gate(self, name, opened):
        gate = self.backend.folder / name
        if opened:
            gate.touch()
        connection = self.server._connection
        connection.request("GET", f"/gate/{name}")
        answer = connection.getresponse()
        body = answer.read(5)
        gate.touch()
        return body + answer.read()

    def test_many_at_once_get_their_own_answers(self):
        wrong, done = [], []

        def ask(number):
            with closing(HTTPConnection("127.0.0.1", self.server.port, timeout=120)) as connection:
                for turn in range(15):
                    body = pattern(1000 * number + turn)
                    connection.request("POST", f"/echo/{number}/{turn}", body)
                    text = connection.getresponse().read().decode()
                    if text != expected("POST", f"/echo/{number}/{turn}", body):
                        wrong.append(text)
            done.append(number)

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        self.assertEqual((wrong, sorted(done)), ([], list(range(12))))


class TestGunicorn(Table, RealCase):
    backend_class = Gunicorn


class TestUwsgi(Table, RealCase):
    backend_class = Uwsgi

    def test_a_large_header_arrives(self):
        # Near the limit of a whole head (32 kB), far above uWSGI's default.
        fields = {f"X-Large-{number}": "v" * 7_000 for number in range(4)}
        self.assertEqual(self.server.get("/echo", fields).status, 200)


class TestUwsgiScgi(Table, RealCase):
    backend_class = UwsgiScgi


class TestUwsgiHttp(Table, RealCase):
    backend_class = UwsgiHttp


class TestPuma(Table, RealCase):
    backend_class = Puma


class TestThin(Table, RealCase):
    backend_class = Thin


class TestUnicorn(Table, RealCase):
    backend_class = Unicorn


class TestWebrick(Table, RealCase):
    backend_class = Webrick


class TestRubyFastCgi(Table, RealCase):
    backend_class = RubyFastCgi


class TestTomcat(Table, RealCase):
    backend_class = Tomcat

    def test_a_wrong_secret_is_refused(self):
        self.backend.settings, settings = 'secret = "another"', self.backend.settings
        try:
            with Front(self.backend) as server:
                self.assertEqual(server.get("/echo").status, 403)
        finally:
            self.backend.settings = settings


class TestPhp(Table, RealCase):
    backend_class = PhpFpm

    def test_every_path_is_the_front_controllers(self):
        answer = self.server.get("/server/and/more?x", {"Proxy": "http://evil.test"})
        lines = dict(line.split("=", 1) for line in answer.text.splitlines())
        root = str(self.backend.folder / "site")
        self.assertEqual(lines["SCRIPT_FILENAME"], f"{root}/index.php")
        self.assertEqual(lines["SCRIPT_NAME"], "/index.php")
        self.assertEqual(lines["DOCUMENT_ROOT"], root)
        self.assertEqual(lines["SERVER_PROTOCOL"], "HTTP/1.1")
        self.assertEqual(lines["GATEWAY_INTERFACE"], "CGI/1.1")
        self.assertEqual((lines["REMOTE_ADDR"], lines["REQUEST_SCHEME"]), ("127.0.0.1", "http"))
        self.assertEqual((lines["HTTPS"], lines["HTTP_PROXY"]), ("(none)", "(none)"))

    def test_another_script_gets_its_own_path(self):
        self.assertIn(self.server.get("/other.php").text, ("other ", "other (none)"))
        self.assertEqual(self.server.get("/other.php/more").text, "other /more")

    def test_a_path_cannot_leave_the_root_or_name_what_is_no_script(self):
        (self.backend.folder / "secret.php").write_text("<?php echo 'secret';")
        for target in (
            "/../secret.php",
            "/%2e%2e/secret.php",
            "/other.php%00.txt",
            "/x/..%2f..%2fsecret.php",
        ):
            with self.subTest(target):
                self.assertNotIn("secret", self.server.get(target).text.replace("/secret", ""))

    def test_a_form_uploads_a_file(self):
        form = self.server.get("/upload")
        self.assertIn('enctype="multipart/form-data"', form.text)
        for size in (0, 1, 100_000, 20 << 20):
            with self.subTest(size):
                content = pattern(size)
                head = (
                    '--border\r\nContent-Disposition: form-data; name="title"\r\n\r\nzwölf\r\n'
                    '--border\r\nContent-Disposition: form-data; name="file"; filename="a.jpg"\r\n'
                    "Content-Type: image/jpeg\r\n\r\n"
                ).encode()
                kind = {"Content-Type": "multipart/form-data; boundary=border"}
                body = head + content + b"\r\n--border--\r\n"
                answer = self.server.request("POST", "/upload", body, kind)
                digest = hashlib.md5(content).hexdigest()
                self.assertEqual(answer.text, f"zwölf a.jpg {size} {digest}")


class Errors(RealCase):
    """What a client gets when the back end is gone, for one protocol of each kind."""

    def test_a_back_end_that_is_gone_is_502(self):
        for kind in (Gunicorn, Uwsgi, UwsgiScgi, PhpFpm):
            with self.subTest(kind.__name__):
                with kind(self.folder()) as backend:
                    backend.settings += "\neject = { max_failures = 0 }"
                    with Front(backend) as self.server:
                        self.assertEqual(self.server.get("/echo").status, 200)
                        for child in backend._children:
                            child.kill()
                        gone = until("502", lambda: self.server.get("/echo").status == 502, 10)
                        self.assertTrue(gone)


if __name__ == "__main__":
    unittest.main()
