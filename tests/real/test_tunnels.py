"""The server's own memory for each open WebSocket connection.

Thousands of connections are opened through the real server to a plain echo
(`backends/websocket_plain.py`), with one message each way on each; the growth of the server's
memory is divided by their number. The server needs two files for a connection and a process may
open only so many: above `FRONT_MAX` connections there are several servers, each with its share.

`PENSTOCK_TUNNELS` is the number of connections (2000). The measurements are printed.
"""

import base64
import hashlib
import http.client
import json
import os
import resource
import socket
import struct
import sys
import unittest
from pathlib import Path

from harness import READY_SECONDS, Child, RealCase, Server, until

TUNNELS = int(os.environ.get("PENSTOCK_TUNNELS", "2000"))
BYTES_MAX = 3000

ECHO = Path(__file__).resolve().parent / "backends" / "websocket_plain.py"
ECHOES = 2
# With two files for each: half of the usual 20,000, less the server's own files.
FRONT_MAX = 9000
# Opened before the first look and not counted: code that runs for the first time costs memory once.
WARM_UP = 50
# Repetitions, each of which may cost a little more: the allocator's gaps, but no leak.
ROUNDS = 4
GAPS_MAX = 600
PATIENCE = 60

CONFIG = """
[server]
threads = 2

[upstreams.b]
servers = {servers}
connections = {{ max = {tunnels} }}
"""


class Front(Server):
    """The real server, and its status page."""

    def __enter__(self):
        super().__enter__()
        found = self._child.wait_for(r"^status http://127\.0\.0\.1:(\d+)/", READY_SECONDS)
        self._admin = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=PATIENCE)
        return self

    def __exit__(self, kind, error, trace):
        self._admin.close()
        super().__exit__(kind, error, trace)

    def active(self):
        """Returns the number of open tunnels."""
        self._admin.request("GET", "/status.json")
        (upstream,) = json.loads(self._admin.getresponse().read())["upstreams"]
        return sum(it["active"] for it in upstream["servers"])


class Tunnel:
    """One WebSocket connection of a client, as small as possible."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
        key = base64.b64encode(os.urandom(16)).decode()
        self.socket.sendall(
            "GET /echo HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n".encode()
        )
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += self.receive_some(1024)
        magic = (key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()
        accept = base64.b64encode(hashlib.sha1(magic).digest())
        if not head.startswith(b"HTTP/1.1 101 ") or accept not in head:
            raise AssertionError(f"no upgrade: {head!r}")

    def receive_some(self, size):
        if data := self.socket.recv(size):
            return data
        raise AssertionError("closed")

    def send(self, text):
        payload = text.encode()
        mask = os.urandom(4)
        masked = bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))
        self.socket.sendall(struct.pack("!BB", 0x81, 0x80 | len(payload)) + mask + masked)

    def receive(self):
        frame = b""
        while len(frame) < 2 or len(frame) < 2 + frame[1]:
            frame += self.receive_some(2 + frame[1] - len(frame) if len(frame) > 1 else 2)
        if frame[0] != 0x81:
            raise AssertionError(f"no text: {frame!r}")
        return frame[2:].decode()


class Tunnels(RealCase):
    @classmethod
    def setUpClass(cls):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        cls.addClassCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        addresses = []
        for number in range(1, ECHOES + 1):
            # Each with its own address, and so its own client ports.
            echo = Child([sys.executable, ECHO, f"127.0.8.{number}:0"])
            cls.addClassCleanup(echo.kill)
            addresses.append(echo.wait_for(r"^echo on (\S+)", READY_SECONDS)[1])
        config = cls.folder() / "penstock.toml"
        config.write_text(CONFIG.format(servers=json.dumps(addresses), tunnels=WARM_UP + TUNNELS))
        cls.fronts = []
        for _ in range(-(-TUNNELS // FRONT_MAX)):
            cls.fronts.append(cls.enterClassContext(Front(config, app=False)))
        cls.server = cls.fronts[0]

    def setUp(self):
        self.tunnels = []
        self.addCleanup(self.close)

    def open(self, count):
        """Opens `count` more, in turn at each server, with one message each way on all."""
        for number in range(count):
            self.tunnels.append(Tunnel(self.fronts[number % len(self.fronts)].port))
        for number, tunnel in enumerate(self.tunnels):
            tunnel.send(f"message {number}")
        for number, tunnel in enumerate(self.tunnels):
            self.assertEqual(tunnel.receive(), f"message {number}")
        self.assertEqual(self.active(), len(self.tunnels))

    def close(self):
        for tunnel in self.tunnels:
            tunnel.socket.close()
        self.tunnels.clear()
        until("all tunnels are closed", lambda: self.active() == 0, PATIENCE)

    def active(self):
        return sum(front.active() for front in self.fronts)

    def memory(self):
        """Returns the memory of all servers together."""
        each = [front.memory() for front in self.fronts]
        return {kind: sum(it[kind] for it in each) for kind in each[0]}

    def test_an_open_connection_costs_little_memory(self):
        self.open(WARM_UP)
        before = self.memory()
        self.open(TUNNELS)
        during = self.memory()
        for _ in range(ROUNDS):
            self.close()
            closed = self.memory()
            self.open(WARM_UP + TUNNELS)
        again = self.memory()
        each = {}
        for kind in before:
            each[kind] = (during[kind] - before[kind]) / TUNNELS
            print(
                f"tunnels: {TUNNELS} through {len(self.fronts)}, {kind}: {before[kind]} before,"
                f" {during[kind]} open, {closed[kind]} closed, {again[kind]} open again:"
                f" {each[kind]:.0f} bytes each",
                flush=True,
            )
        self.assertLessEqual(each["Anonymous"], BYTES_MAX)
        self.assertLessEqual(each["Rss"], BYTES_MAX)
        # Later connections take the place of the first.
        self.assertLess((again["Anonymous"] - during["Anonymous"]) / TUNNELS, GAPS_MAX)


if __name__ == "__main__":
    unittest.main()
