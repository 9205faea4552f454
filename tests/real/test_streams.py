"""Held streams with public libraries and programs: GRIP, WebSocket-over-HTTP, Mercure.

Unmodified django-grip and django-eventstream, plain WSGI with gripcontrol, Sinatra with Net::HTTP;
Mercure's clients for Python, and Chromium with `EventSource`. All publish and listen through the real server. The
applications are in `streams/`, each with one process and one thread: a held client must not occupy
it.
"""

import asyncio
import json
import sys
import threading
import time
from pathlib import Path

import jwt
import requests
from gripcontrol import GripPubControl, WebSocketMessageFormat, parse_grip_uri
from mercure_publisher import MercureConfig, MercurePublisher, MercurePublishError
from pubcontrol import Item
from pymercure.consumer import Consumer

from browser import Browser
from harness import RealCase, until
from listening import PATIENCE, Events, Front, Relay
from websockets import BINARY, CLOSE, TEXT, WebSocket

APPS = Path(__file__).resolve().parent / "streams"
GRIP_KEY = "a key of this test, which is long enough"

APP = """\
[server]
threads = 2
keep_alive_drain = "100ms"

[hub]
{key}

[apps.rooms]
dir = {folder}
kind = "{kind}"
entry = "{entry}"
{interpreter}
processes = 1
threads = 1
grip = true
env = {{ VERIFY_KEY = "{verify_key}" }}

[[sites]]
[[sites.routes]]
app = "rooms"
"""


def app_config(kind, entry, key="", verify_key=""):
    interpreter = f"interpreter = {json.dumps(sys.executable)}" if kind != "rack" else ""
    return APP.format(
        folder=json.dumps(str(APPS)),
        kind=kind,
        entry=entry,
        interpreter=interpreter,
        key=key,
        verify_key=verify_key,
    )


class Rooms(RealCase):
    """The tests that applications of all kinds share."""

    def serve(self, *app, **more):
        """Starts a server whose application publishes by the `GRIP_URL` that it is given."""
        settings = self.folder() / "penstock.toml"
        settings.write_text(app_config(*app, **more))
        self.server = self.enterContext(Front(settings))

    def say(self, room, words):
        answer = self.server.request("POST", f"/say/{room}", words)
        self.assertEqual(answer.status, 200, answer.text)

    def listen(self, room, **fields):
        return self.enterContext(Events(f"{self.server.url}/events/{room}", **fields))

    def check_streams(self):
        listeners = [self.listen("news") for _ in range(20)]
        other = self.listen("other")
        for listener in [*listeners, other]:
            self.assertEqual(listener.status, 200)
            self.assertEqual(
                listener.headers["Content-Type"].partition(";")[0], "text/event-stream"
            )
            self.assertFalse([name for name in listener.headers if name.lower().startswith("grip")])
            listener.wait_for("welcome")
        self.server.wait_held(21)
        # Its only thread is free, for example to publish.
        self.say("news", "first")
        self.say("other", "elsewhere")
        self.say("news", "last")
        for listener in listeners:
            listener.wait_for("last")
            self.assertEqual(listener.data, ["welcome", "first", "last"])
        other.wait_for("elsewhere")
        self.assertEqual(other.data, ["welcome", "elsewhere"])
        return listeners

    def check_polls(self):
        """All waiting clients get the same message."""
        answers = []

        def poll():
            answers.append(requests.get(f"{self.server.url}/next/polled", timeout=PATIENCE))

        held = self.server.status()["hub"]["streams"]
        pollers = [threading.Thread(target=poll) for _ in range(5)]
        for poller in pollers:
            poller.start()
        self.server.wait_held(held, polls=5)
        self.say("polled", "at last")
        for poller in pollers:
            poller.join(PATIENCE)
        self.assertEqual([answer.text for answer in answers], ["at last\n"] * 5)

    def check_websockets(self, reply="{}"):
        asyncio.run(asyncio.wait_for(self.converse(reply), 2 * PATIENCE))

    async def converse(self, reply):
        async def join():
            streams = await asyncio.open_connection("127.0.0.1", self.server.port)
            return await WebSocket.open(streams, "/chat/lobby", "localhost")

        ada, bob, eve = await join(), await join(), await join()
        for count, words in enumerate(["one", "", "Grüße " * 50], 1):
            ada.send(TEXT, words.encode())
            said = reply.format(words, count=count).encode()
            self.assertEqual(await ada.receive(), (TEXT, said))
        self.assertEqual(self.server.status()["hub"]["connections"]["used"], 3)
        bob.send(BINARY, b"\x01\x02\xff\r\n")
        self.assertEqual(await bob.receive(), (BINARY, b"\n\r\xff\x02\x01"))
        # A published message reaches all.
        await asyncio.to_thread(self.publish_to_sockets, "lobby", "to all of you")
        for socket in (ada, bob, eve):
            self.assertEqual(await socket.receive(), (TEXT, b"to all of you"))
        # The client closes, and the application's close code comes back.
        self.assertEqual(await ada.close(), 1000)
        # The application closes.
        bob.send(TEXT, b"leave")
        self.assertEqual(await bob.receive(), (CLOSE, (4001).to_bytes(2, "big")))
        bob.writer.close()
        # The other client is still connected.
        eve.send(TEXT, b"alone")
        self.assertEqual(await eve.receive(), (TEXT, reply.format("alone", count=1).encode()))
        self.assertEqual(await eve.close(), 1000)

    def publish_to_sockets(self, room, words):
        self.say(room, words)


class Django(Rooms):
    """django-grip, unmodified."""

    def setUp(self):
        self.serve("wsgi", "django_rooms:application")

    def test_views_hold_streams_and_publish(self):
        listeners = self.check_streams()
        self.assertEqual(self.server.get("/close/news").text, "closed\n")
        for listener in listeners:
            listener.wait_end()
        self.server.wait_held(1)

    def test_views_hold_long_polls(self):
        self.check_polls()
        # The shortest possible timeout.
        self.assertEqual(self.server.get("/next/quiet?timeout=5").text, "nothing new\n")

    def test_requests_are_signed(self):
        about = json.loads(self.server.get("/about").text)
        self.assertEqual(about, {"proxied": True, "signed": True})
        forged = self.server.get("/about", {"Grip-Sig": "forged"})
        self.assertEqual(json.loads(forged.text), {"proxied": True, "signed": True})

    def test_websockets_are_told_to_views(self):
        self.check_websockets("{count}: {}")


class OneKeyForAll(Rooms):
    """Signed by `hub.grip_key`, published by the application's own."""

    def test_views_know_the_key_and_publish_by_their_own(self):
        key = f'grip_key = "{GRIP_KEY}"'
        self.serve("wsgi", "django_rooms:application", key=key, verify_key=GRIP_KEY)
        about = json.loads(self.server.get("/about").text)
        self.assertEqual(about, {"proxied": True, "signed": True})
        listener = self.listen("news")
        self.say("news", "heard")
        listener.wait_for("heard")


class DjangoEventstream(Rooms):
    """django-eventstream, unmodified: its views would stream by themselves without a signature."""

    def check_events(self, *app, **more):
        self.serve(*app, **more)
        listeners = [self.enterContext(Events(f"{self.server.url}/events/")) for _ in range(5)]
        for listener in listeners:
            listener.wait_for("")  # stream-open
        self.server.wait_held(5)
        self.assertEqual(self.server.get("/send").text, "sent\n")
        for listener in listeners:
            listener.wait_for('{"text": "hello world"}')
        self.assertNotIn("holds a stream of events itself", "".join(self.server.lines))

    def test_as_wsgi(self):
        self.check_events("wsgi", "django_events:application")

    def test_as_asgi(self):
        self.check_events("asgi", "django_events:asgi")

    def test_with_one_key_for_all(self):
        self.check_events("wsgi", "django_events:application", key=f'grip_key = "{GRIP_KEY}"')


class Unsigned(Rooms):
    def test_a_token_that_a_client_brings_is_taken_away(self):
        self.serve("wsgi", "django_rooms:application", verify_key=GRIP_KEY)
        claims = {"iss": "penstock", "exp": int(time.time()) + 3600}
        token = jwt.encode(claims, GRIP_KEY, algorithm="HS256")
        about = self.server.get("/about", {"Grip-Sig": token})
        self.assertEqual(json.loads(about.text), {"proxied": False, "signed": False})
        self.assertEqual(self.server.get("/events/news", {"Grip-Sig": token}).status, 501)


class Plain(Rooms):
    """Unmodified WSGI and gripcontrol; it publishes through the library from outside."""

    def setUp(self):
        self.serve("wsgi", "plain:application")

    def test_websockets_without_a_framework(self):
        self.check_websockets()
        self.assertEqual(self.server.get("/chat/lobby").status, 426)

    def test_a_stop_says_goodbye_to_websockets(self):
        asyncio.run(asyncio.wait_for(self.stop_under_them(), 2 * PATIENCE))

    async def stop_under_them(self):
        sockets = []
        for _ in range(10):
            streams = await asyncio.open_connection("127.0.0.1", self.server.port)
            sockets.append(await WebSocket.open(streams, "/chat/lobby", "localhost"))
        stopped = asyncio.create_task(asyncio.to_thread(self.server.__exit__, None, None, None))
        for socket in sockets:
            self.assertEqual(await socket.receive(), (CLOSE, (1001).to_bytes(2, "big")))
            socket.writer.close()
        await stopped

    def publish_to_sockets(self, room, words):
        control = GripPubControl(parse_grip_uri(self.server.get("/grip-url").text))
        control.publish(room, Item(WebSocketMessageFormat(words)), blocking=True)


class Sinatra(Rooms):
    """Rack; publishes by Net::HTTP."""

    def setUp(self):
        self.serve("rack", "config.ru")

    def test_it_holds_streams_and_publishes(self):
        self.check_streams()
        self.check_polls()

    def test_websockets_are_told_to_it(self):
        self.check_websockets()


MERCURE_KEY = "!ChangeThisMercureHubJWTSecretKey!"
HUB = "/.well-known/mercure"

MERCURE = """\
[server]
threads = 2
keep_alive_drain = "100ms"

[hub]
drain_timeout = "500ms"

[[sites]]
[[sites.routes]]
path = "/.well-known/mercure"
mercure = {{ publisher_key = "{key}", anonymous = true }}

[[sites.routes]]
files = {{ root = {page} }}
"""

BOOKS = "https://example.com/books/{number}"


def book(number):
    return f"https://example.com/books/{number}"


class Mercure(RealCase):
    def setUp(self):
        self.settings = self.folder() / "penstock.toml"
        page = json.dumps(str(APPS / "page"))
        self.settings.write_text(MERCURE.format(key=MERCURE_KEY, page=page))
        self.server = self.enterContext(self.start())

    def start(self):
        return Front(self.settings, app=False)

    def publisher(self, url, topics=("*",), key=MERCURE_KEY):
        config = MercureConfig(
            hub_url=url + HUB, publisher_jwt_key=key, publish_topics=list(topics)
        )
        return self.enterContext(MercurePublisher(config))

    def test_the_clients_for_python_publish_and_listen(self):
        heard = []
        consumer = Consumer(self.server.url + HUB, [book(1), book(2)], heard.append)
        consumer.daemon = True
        consumer.start_consumption()
        self.server.wait_held(1)
        publisher = self.publisher(self.server.url)
        first = publisher.publish(book(1), {"price": 12})
        publisher.publish(book(3), "not for this one")
        publisher.publish(book(1), "private", private=True)
        second = publisher.publish([book(2), book(9)], "sold\nout", type="sold", id="own-id")
        self.assertEqual(second, "own-id")
        until("two updates", lambda: len(heard) >= 2, PATIENCE)
        self.assertEqual(
            [(message.message_id, message.event_type, message.data) for message in heard],
            [(first, "message", '{"price": 12}'), (second, "sold", "sold\nout")],
        )
        wrong = self.publisher(self.server.url, key="another key, as long as the right one is")
        with self.assertRaises(MercurePublishError) as refused:
            wrong.publish(book(1), "forged")
        self.assertEqual(refused.exception.status_code, 401)
        # May publish to some topics only.
        one = self.publisher(self.server.url, [book(1)])
        one.publish(book(1), "allowed")
        with self.assertRaises(MercurePublishError) as refused:
            one.publish(book(2), "not allowed")
        self.assertEqual(refused.exception.status_code, 403)
        # The server's end ends its streams properly.
        self.server.__exit__(None, None, None)
        self.server = self.enterContext(self.start())
        consumer.join(PATIENCE)
        self.assertFalse(consumer.is_alive())
        self.assertEqual(len(heard), 3)

    def test_a_browser_comes_back_for_what_it_missed(self):
        relay = self.enterContext(Relay())
        relay.target = self.server.port
        publisher = self.publisher(self.server.url)
        with Browser() as browser:
            browser.go(relay.url)
            browser.wait_text("#state", "listening")
            publisher.publish(book(0), "hidden", private=True)
            publisher.publish(book(1), "seen")
            browser.wait_text("li", "message: seen")
            self.assertEqual(self.shown(browser), ["message: seen"])

            token = jwt.encode({"mercure": {"subscribe": [BOOKS]}}, MERCURE_KEY, algorithm="HS256")
            cookie = {"name": "mercureAuthorization", "value": token, "path": HUB}
            cookie |= {"httpOnly": True, "sameSite": "Strict"}
            browser.call("POST", "/cookie", {"cookie": cookie})
            browser.go(relay.url)
            browser.wait_text("#state", "listening")
            # It connects again soon after this.
            publisher.publish(book(1), "mine alone", private=True, retry=100)
            publisher.publish("https://example.com/shelves/1", "not mine", private=True)
            browser.wait_text("li", "message: mine alone")

            # Its connection is cut, and two updates are published before the relay is open again.
            relay.cut()
            browser.wait_text("#state", "connecting")
            self.server.wait_held(0)
            publisher.publish(book(2), "missed", private=True, type="sold")
            publisher.publish(book(2), "missed too")
            relay.target = self.server.port
            browser.wait_text("li", "message: missed too")

            # Another server has no history of it; the client connects there all the same.
            relay.cut()
            self.server.__exit__(None, None, None)
            self.server = self.enterContext(self.start())
            relay.target = self.server.port
            self.server.wait_held(1)
            self.publisher(self.server.url).publish(book(3), "after the restart", private=True)
            browser.wait_text("li", "message: after the restart")
            expected = ["message: mine alone", "sold: missed", "message: missed too"]
            self.assertEqual(self.shown(browser), [*expected, "message: after the restart"])

    def shown(self, browser):
        return browser.run("return [...document.querySelectorAll('li')].map((li) => li.innerText)")


if __name__ == "__main__":
    import unittest

    unittest.main()
