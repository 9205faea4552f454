"""Back ends that hold connections: a WebSocket echo behind a route, Redis behind TCP mode.

A named extra like `test_backends`. The WebSocket client is written out here (RFC 6455), so that
every frame on the wire is known.
"""

import base64
import hashlib
import os
import socket
import struct
import unittest

from backends.in_others import Redis
from backends.in_python import WebSocketEcho
from harness import READY_SECONDS, Child, RealCase, Server
from test_backends import Front

TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10


def load_tests(loader, tests, pattern):
    """Loads all tests when the module is named, none in discovery."""
    return tests if pattern is None else unittest.TestSuite()


class WebSocket:
    """One WebSocket connection; a context manager."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        self.file = self.socket.makefile("rb")
        key = base64.b64encode(os.urandom(16)).decode()
        self.socket.sendall(
            f"GET /echo HTTP/1.1\r\nHost: a.test\r\nConnection: keep-alive, Upgrade\r\n"
            f"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n".encode()
        )
        self.status = self.file.readline().decode().split(" ")[1]
        self.fields = {}
        while line := self.file.readline().decode().strip():
            name, value = line.split(": ", 1)
            self.fields[name.lower()] = value
        magic = key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.accepted = base64.b64encode(hashlib.sha1(magic.encode()).digest()).decode()

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.file.close()
        self.socket.close()

    def send(self, kind, payload):
        mask = os.urandom(4)
        size = len(payload)
        if size < 126:
            head = struct.pack("!BB", 0x80 | kind, 0x80 | size)
        elif size < 1 << 16:
            head = struct.pack("!BBH", 0x80 | kind, 0x80 | 126, size)
        else:
            head = struct.pack("!BBQ", 0x80 | kind, 0x80 | 127, size)
        repeated = (mask * (size // 4 + 1))[:size]
        masked = int.from_bytes(payload, "big") ^ int.from_bytes(repeated, "big")
        self.socket.sendall(head + mask + masked.to_bytes(size, "big"))

    def receive(self):
        first, size = self.file.read(2)
        if size == 126:
            (size,) = struct.unpack("!H", self.file.read(2))
        elif size == 127:
            (size,) = struct.unpack("!Q", self.file.read(8))
        return first & 15, self.file.read(size)


class WebSockets(RealCase):
    @classmethod
    def setUpClass(cls):
        cls.backend = cls.enterClassContext(WebSocketEcho(cls.folder()))
        cls.server = cls.enterClassContext(Front(cls.backend))

    def test_messages_of_every_size_come_back(self):
        with WebSocket(self.server.port) as client:
            self.assertEqual(client.status, "101")
            self.assertEqual(client.fields["sec-websocket-accept"], client.accepted)
            self.assertEqual(client.fields["upgrade"].lower(), "websocket")
            for size in (0, 1, 125, 126, 65535, 65536, 1 << 20):
                payload = os.urandom(size)
                client.send(BINARY, payload)
                self.assertEqual(client.receive(), (BINARY, payload), size)
            client.send(TEXT, "zwölf".encode())
            self.assertEqual(client.receive(), (TEXT, "zwölf".encode()))
            client.send(PING, b"beat")
            self.assertEqual(client.receive(), (PONG, b"beat"))
            client.send(CLOSE, struct.pack("!H", 1000))
            self.assertEqual(client.receive(), (CLOSE, struct.pack("!H", 1000)))
            self.assertEqual(client.file.read(), b"")

    def test_many_are_open_at_once_and_nobody_gets_anothers_messages(self):
        clients = [self.enterContext(WebSocket(self.server.port)) for _ in range(100)]
        for turn in range(3):
            for number, client in enumerate(clients):
                client.send(TEXT, f"{number} {turn}".encode())
            for number, client in enumerate(clients):
                self.assertEqual(client.receive(), (TEXT, f"{number} {turn}".encode()))

    def test_what_is_no_upgrade_is_an_ordinary_answer(self):
        answer = self.server.get("/echo")
        self.assertEqual(answer.status, 426)
        self.assertIn("WebSocket", answer.text)


class RedisBehindAStream(RealCase):
    @classmethod
    def setUpClass(cls):
        cls.backend = cls.enterClassContext(Redis(cls.folder()))
        config = cls.backend.folder / "penstock.toml"
        config.write_text(cls.backend.config())
        cls.front = Child([Server([]).command[0], "serve", config, "--admin", "127.0.0.1:0"])
        cls.addClassCleanup(cls.front.kill)
        found = cls.front.wait_for(r"^listening tcp://127\.0\.0\.1:(\d+)", READY_SECONDS)
        cls.port = int(found[1])

    def connect(self):
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        self.addCleanup(connection.close)
        file = connection.makefile("rb")
        self.addCleanup(file.close)
        return connection, file

    def test_commands_get_their_answers(self):
        connection, file = self.connect()
        connection.sendall(b"PING\r\n")
        self.assertEqual(file.readline(), b"+PONG\r\n")
        value = os.urandom(5 << 20)
        connection.sendall(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$%d\r\n%b\r\n" % (len(value), value))
        self.assertEqual(file.readline(), b"+OK\r\n")
        other, answers = self.connect()
        other.sendall(b"GET k\r\n")
        self.assertEqual(answers.readline(), b"$%d\r\n" % len(value))
        self.assertTrue(answers.read(len(value)) == value, "not the same bytes")

    def test_what_one_publishes_another_hears(self):
        listening, heard = self.connect()
        listening.sendall(b"SUBSCRIBE c\r\n")
        for line in (b"*3\r\n", b"$9\r\n", b"subscribe\r\n", b"$1\r\n", b"c\r\n", b":1\r\n"):
            self.assertEqual(heard.readline(), line)
        speaking, answers = self.connect()
        speaking.sendall(b"PUBLISH c hello\r\n")
        self.assertEqual(answers.readline(), b":1\r\n")
        self.assertEqual([heard.readline() for _ in range(7)][-1], b"hello\r\n")

    def test_an_end_is_passed_on(self):
        connection, file = self.connect()
        connection.sendall(b"PING\r\nQUIT\r\n")
        self.assertEqual(file.read(), b"+PONG\r\n+OK\r\n")


if __name__ == "__main__":
    unittest.main()
