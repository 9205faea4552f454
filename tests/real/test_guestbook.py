"""The guestbook example (Flask and SQLite, several processes) as a visitor uses it."""

import re
from html import unescape
from urllib.parse import urlencode

from harness import EXAMPLES, RealCase, Server

FORM = {"Content-Type": "application/x-www-form-urlencoded"}


def post(server, **fields):
    return server.request("POST", "/", urlencode(fields), FORM)


def messages(server):
    found = re.findall(r'<p class="message"[^>]*>(.*?)</p>', server.get("/").text, re.DOTALL)
    return [unescape(message) for message in found]


class Guestbook(RealCase):
    def setUp(self):
        self.database = self.folder() / "guestbook.db"
        self.server = self.start()

    def start(self):
        server = Server(EXAMPLES / "guestbook", env={"GUESTBOOK_DB": str(self.database)})
        return self.enterContext(server)

    def test_an_empty_book_says_so(self):
        page = self.server.get("/")
        self.assertEqual(page.status, 200)
        self.assertEqual(page.headers["Content-Type"], "text/html; charset=utf-8")
        self.assertIn("Nobody has written anything yet.", page.text)

    def test_entries_are_listed_newest_first_and_escaped(self):
        texts = ["first", "<script>alert(1)</script>", "zwölf € & more\r\nsecond line"]
        for text in texts:
            answer = post(self.server, name="Ada", message=text)
            self.assertEqual((answer.status, answer.headers["Location"]), (303, "/"))
        self.assertNotIn("<script>", self.server.get("/").text)
        self.assertEqual(messages(self.server), [t.replace("\r\n", "\n") for t in reversed(texts)])

    def test_a_form_with_mistakes_comes_back_with_the_typed_text(self):
        rows = {
            "no name": (
                {"name": " ", "message": "kept <text>"},
                "Please write a name.",
                "kept &lt;text&gt;",
            ),
            "no message": (
                {"name": "kept <name>", "message": ""},
                "Please write a message.",
                "kept &lt;name&gt;",
            ),
            "name too long": ({"name": "n" * 61, "message": "kept"}, "60 is the most", "n" * 61),
            "message too long": (
                {"name": "Ada", "message": "m" * 2001},
                "2000 is the most",
                "m" * 2001,
            ),
        }
        for row, (fields, error, kept) in rows.items():
            with self.subTest(row):
                answer = post(self.server, **fields)
                self.assertEqual(answer.status, 400)
                self.assertIn(error, answer.text)
                self.assertIn(kept, answer.text)
        self.assertEqual(messages(self.server), [])

    def test_a_form_past_the_limit_is_refused(self):
        self.assertEqual(post(self.server, name="Ada", message="m" * 100_000).status, 413)

    def test_an_entry_is_still_there_after_a_restart(self):
        post(self.server, name="Ada", message="to stay")
        self.server.__exit__(None, None, None)
        self.server = self.start()
        self.assertEqual(messages(self.server), ["to stay"])

    def test_public_files_are_sent_with_validators(self):
        rows = {
            "/style.css": "text/css",
            "/favicon.svg": "image/svg+xml",
            "/robots.txt": "text/plain",
        }
        for target, kind in rows.items():
            with self.subTest(target):
                whole = self.server.get(target)
                file = EXAMPLES / "guestbook" / "public" / target[1:]
                self.assertEqual((whole.status, whole.body), (200, file.read_bytes()))
                self.assertEqual(whole.headers.get_content_type(), kind)
                again = self.server.get(target, {"If-None-Match": whole.headers["ETag"]})
                self.assertEqual((again.status, again.body), (304, b""))
                since = {"If-Modified-Since": whole.headers["Last-Modified"]}
                self.assertEqual(self.server.get(target, since).status, 304)

    def test_what_is_no_file_is_the_applications_answer(self):
        answer = self.server.get("/nothing-here")
        self.assertEqual(answer.status, 404)
        self.assertIn("Content-Security-Policy", answer.headers)
