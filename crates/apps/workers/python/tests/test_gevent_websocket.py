"""The handshake of `wsgi.websocket`; the package itself is tested with the real server."""

import importlib.util
import socket
import unittest
from types import SimpleNamespace

from harness import DEADLINE

# isort: split
# Found by way of `harness`.
from penstock_worker import gevent_websocket

KEY = "dGhlIHNhbXBsZSBub25jZQ=="
HANDSHAKE = {
    "REQUEST_METHOD": "GET",
    "HTTP_UPGRADE": "WebSocket",
    "HTTP_SEC_WEBSOCKET_VERSION": "13",
    "HTTP_SEC_WEBSOCKET_KEY": KEY,
}


class Offer(unittest.TestCase):
    def test_what_is_no_handshake_has_none(self):
        for change in (
            {"HTTP_UPGRADE": "h2c"},
            {"REQUEST_METHOD": "POST"},
            {"HTTP_SEC_WEBSOCKET_VERSION": "8"},
            {"HTTP_SEC_WEBSOCKET_KEY": ""},
            {"HTTP_SEC_WEBSOCKET_KEY": "dGhl"},
            {"HTTP_SEC_WEBSOCKET_KEY": KEY[:-1]},
        ):
            environ = {**HANDSHAKE, **change}
            gevent_websocket.offer(None, environ, None)
            self.assertNotIn(gevent_websocket.ENVIRON_KEY, environ, change)

    @unittest.skipIf(importlib.util.find_spec("geventwebsocket"), "the package is installed")
    def test_without_the_package_there_is_none(self):
        environ = dict(HANDSHAKE)
        gevent_websocket.offer(None, environ, None)
        self.assertEqual(environ, HANDSHAKE)

    def test_the_protocol_is_one_that_both_know(self):
        for chosen, offered, expected in (
            ("chat", "soap, chat", "chat"),
            ("chat", "soap, chats", ""),
            ("chat", "", ""),
            ("", "soap", ""),
            (None, "soap", ""),
        ):
            app = SimpleNamespace(app_protocol=lambda path, chosen=chosen: chosen)
            environ = {"PATH_INFO": "/", "HTTP_SEC_WEBSOCKET_PROTOCOL": offered}
            self.assertEqual(gevent_websocket._select_subprotocol(environ, app), expected)
        self.assertEqual(gevent_websocket._select_subprotocol({}, object()), "")


class Streams(unittest.TestCase):
    def setUp(self):
        ours, self.client = socket.socketpair()
        self.addCleanup(ours.close)
        self.addCleanup(self.client.close)
        self.client.settimeout(DEADLINE)
        head = gevent_websocket._response_head(KEY, "chat")
        self.stream = gevent_websocket.WebSocketStream(ours, head)

    def test_the_first_use_answers_the_handshake_once(self):
        self.client.sendall(b"ab")
        self.assertEqual(self.stream.read(2), b"ab")
        self.stream.write(b"\x81\x01x")
        # The response of RFC 6455's own example (section 1.3).
        expected = (
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n"
            b"Sec-WebSocket-Protocol: chat\r\n\r\n\x81\x01x"
        )
        with self.client.makefile("rb") as got:
            self.assertEqual(got.read(len(expected)), expected)

    def test_a_close_alone_accepts_nothing(self):
        with self.assertRaises(OSError):
            self.stream.write(b"\x88\x02\x03\xe8")
        self.client.setblocking(False)
        with self.assertRaises(BlockingIOError):
            self.client.recv(1)


if __name__ == "__main__":
    unittest.main()
