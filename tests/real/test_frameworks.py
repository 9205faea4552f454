"""Rails and FastAPI as in production: forms with tokens, sessions, streams, WebSockets."""

import asyncio
import json
import re
from urllib.parse import urlencode

from harness import EXAMPLES, RealCase, Server
from websockets import TEXT, WebSocket

FORM = {"Content-Type": "application/x-www-form-urlencoded"}
JSON = {"Content-Type": "application/json"}


class Rails(RealCase):
    """Several processes, forked from one that loaded the code: they share the sessions' secret."""

    @classmethod
    def setUpClass(cls):
        production = {"RAILS_ENV": "production"}
        folder = EXAMPLES / "rails-weir"
        cls.server = cls.enterClassContext(Server(folder, "--processes", "2", env=production))

    def test_a_form_is_taken_with_its_token_and_kept_in_the_session(self):
        cookies = {}
        for width in ("1.5", "2", "2.5", "3"):
            page = self.get("/", cookies)
            token = re.search(r'name="authenticity_token" value="([^"]+)"', page.text)[1]
            body = urlencode({"authenticity_token": token, "width": width, "head": "0.3"})
            answer = self.server.request("POST", "/flows", body, FORM | sent(cookies))
            self.assertEqual(answer.status, 302)
            self.assertEqual(answer.headers["Location"], f"{self.server.url}/flows")
            keep(answer, cookies)
        page = self.get("/flows", cookies)
        self.assertEqual(page.text.count("<li>"), 4)
        self.assertIn("<b>0.4354 m³/s</b>", page.text)

    def test_a_form_without_its_token_is_refused(self):
        body = urlencode({"width": "1", "head": "1"})
        self.assertEqual(self.server.request("POST", "/flows", body, FORM).status, 422)

    def test_a_mistake_is_shown(self):
        cookies = {}
        page = self.get("/", cookies)
        token = re.search(r'name="authenticity_token" value="([^"]+)"', page.text)[1]
        body = urlencode({"authenticity_token": token, "width": "<b>", "head": "1"})
        answer = self.server.request("POST", "/flows", body, FORM | sent(cookies))
        self.assertEqual(answer.status, 422)
        self.assertIn("&lt;b&gt;", answer.text)

    def test_files_of_public_come_from_the_server(self):
        style = self.server.get("/style.css")
        self.assertEqual((style.status, style.headers.get_content_type()), (200, "text/css"))
        self.assertIn("ETag", style.headers)

    def get(self, target, cookies):
        page = self.server.get(target, sent(cookies))
        self.assertEqual(page.status, 200)
        keep(page, cookies)
        return page


def sent(cookies):
    return {"Cookie": "; ".join(f"{name}={value}" for name, value in cookies.items())}


def keep(answer, cookies):
    for field in answer.headers.get_all("Set-Cookie", []):
        name, _, value = field.partition(";")[0].partition("=")
        cookies[name] = value


class FastApi(RealCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(Server(EXAMPLES / "fastapi-levels" / "penstock.toml"))

    def test_readings_are_checked_and_kept(self):
        made = self.add("weir", 1.25)
        self.assertEqual((made.status, json.loads(made.text)["metres"]), (201, 1.25))
        wrong = self.server.request("POST", "/readings", '{"gauge": ""}', JSON)
        self.assertEqual(wrong.status, 422)
        self.assertIn(
            {"gauge": "weir", "metres": 1.25}, json.loads(self.server.get("/readings").text)
        )

    def test_whoever_listens_hears_of_a_reading(self):
        asyncio.run(asyncio.wait_for(self.listen(), 30))

    async def listen(self):
        streams = await asyncio.open_connection("127.0.0.1", self.server.port)
        websocket = await WebSocket.open(streams, "/socket", "localhost")
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        writer.write(b"GET /live HTTP/1.1\r\nHost: a\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        self.assertIn(b"text/event-stream", head)
        await reader.readuntil(b"follow\n\n")

        self.add("mill", 2.5)
        expected = {"gauge": "mill", "metres": 2.5}
        event = await reader.readuntil(b"}\n\n")
        self.assertEqual(json.loads(event[event.index(b"{") :]), expected)
        self.assertEqual(json.loads((await websocket.receive())[1]), expected)

        said = {"gauge": "pond", "metres": 0.5}
        websocket.send(TEXT, json.dumps(said).encode())
        self.assertEqual(json.loads((await websocket.receive())[1]), said)
        event = await reader.readuntil(b"}\n\n")
        self.assertEqual(json.loads(event[event.index(b"{") :]), said)
        self.assertEqual(await websocket.close(), 1000)
        writer.close()

    def add(self, gauge, metres):
        body = json.dumps({"gauge": gauge, "metres": metres})
        return self.server.request("POST", "/readings", body, JSON)
