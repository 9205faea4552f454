"""The smaller examples: the hellos, Sinatra, and a directory of files."""

from urllib.parse import urlencode

from harness import EXAMPLES, RealCase, Server


class Hello(RealCase):
    def check(self, *target, **how):
        with Server(*target, **how) as self.server:
            answer = self.server.get("/")
            self.assertEqual((answer.status, answer.body), (200, b"Hello, world!\n"))
            self.assertEqual(answer.headers["Content-Type"], "text/plain")
            head = self.server.request("HEAD", "/")
            self.assertEqual((head.body, head.headers["Content-Length"]), (b"", "14"))

    def test_wsgi_from_a_folder(self):
        self.check(EXAMPLES / "wsgi-hello")

    def test_asgi_from_a_folder(self):
        self.check(EXAMPLES / "asgi-hello")

    def test_wsgi_from_a_module_and_a_callable(self):
        self.check("app:application", cwd=EXAMPLES / "wsgi-hello")

    def test_any_http_server_from_its_command(self):
        with Server(EXAMPLES / "command-http" / "penstock.toml") as server:
            for _ in range(4):
                answer = server.get("/")
                self.assertEqual(answer.status, 200)

    def test_rack_from_a_folder(self):
        self.check(EXAMPLES / "rack-hello")

    def test_rack_from_a_config_ru(self):
        self.check(EXAMPLES / "rack-hello" / "config.ru")


class Sinatra(RealCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(Server(EXAMPLES / "sinatra"))

    def test_a_value_is_converted(self):
        page = self.server.get("/?" + urlencode({"value": "26.2", "from": "mi", "to": "km"}))
        self.assertEqual(page.status, 200)
        self.assertIn("<strong>42.1648128</strong>", page.text)

    def test_a_mistake_is_shown_and_escaped(self):
        page = self.server.get("/?" + urlencode({"value": "<x", "from": "mi", "to": "km"}))
        self.assertEqual(page.status, 400)
        self.assertIn("&lt;x", page.text)
        self.assertNotIn("<x", page.text)

    def test_a_long_list_is_converted_by_post(self):
        values = [str(number) for number in range(10_000)]
        body = urlencode({"from": "km", "to": "m", "values": "\n".join(values)})
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        table = self.server.request("POST", "/list", body, kind)
        self.assertEqual((table.status, table.headers.get_content_type()), (200, "text/csv"))
        expected = ["0,0"] + [f"{value},{value}000" for value in values[1:]]
        self.assertEqual(table.text.splitlines(), ["km,m", *expected])

    def test_the_style_sheet_comes_from_the_public_folder(self):
        style = self.server.get("/converter.css")
        self.assertEqual((style.status, style.headers.get_content_type()), (200, "text/css"))
        self.assertIn("ETag", style.headers)

    def test_what_is_no_file_is_the_applications_answer(self):
        self.assertEqual(self.server.get("/nothing-here").status, 404)


class Static(RealCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(Server(EXAMPLES / "static", app=False))

    def test_files_are_sent_as_they_are(self):
        rows = {
            "/": ("index.html", "text/html"),
            "/index.html": ("index.html", "text/html"),
            "/guide/": ("guide/index.html", "text/html"),
            "/style.css": ("style.css", "text/css"),
            "/weir.svg": ("weir.svg", "image/svg+xml"),
        }
        for target, (file, kind) in rows.items():
            with self.subTest(target):
                answer = self.server.get(target)
                self.assertEqual(answer.status, 200)
                self.assertEqual(answer.headers.get_content_type(), kind)
                self.assertEqual(answer.body, (EXAMPLES / "static" / file).read_bytes())

    def test_a_folder_without_its_slash_leads_to_its_index(self):
        answer = self.server.get("/guide")
        if answer.status in (301, 302, 307, 308):
            answer = self.server.get(answer.headers["Location"].removeprefix(self.server.url))
        self.assertEqual(answer.status, 200)
        self.assertIn("<h1>Guide</h1>", answer.text)

    def test_what_is_missing_is_not_found(self):
        for target in (
            "/nothing-here",
            "/guide/nothing",
            "/style.css/",
            "/../README.md",
            "/%2e%2e/README.md",
        ):
            with self.subTest(target):
                self.assertIn(self.server.get(target).status, (400, 404))

    def test_only_reading_is_allowed(self):
        answer = self.server.request("POST", "/", b"x")
        self.assertEqual(answer.status, 405)
        self.assertIn("GET", answer.headers["Allow"])

    def test_a_range_is_sent_alone(self):
        whole = (EXAMPLES / "static" / "index.html").read_bytes()
        rows = {
            "bytes=0-9": (206, whole[:10], f"bytes 0-9/{len(whole)}"),
            "bytes=-5": (206, whole[-5:], f"bytes {len(whole) - 5}-{len(whole) - 1}/{len(whole)}"),
            f"bytes={len(whole)}-": (416, None, f"bytes */{len(whole)}"),
        }
        for wanted, (status, body, place) in rows.items():
            with self.subTest(wanted):
                answer = self.server.get("/index.html", {"Range": wanted})
                self.assertEqual((answer.status, answer.headers["Content-Range"]), (status, place))
                if body is not None:
                    self.assertEqual(answer.body, body)
