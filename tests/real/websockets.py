"""A minimal RFC 6455 client: a handshake, whole messages, the closing handshake."""

import base64
import hashlib
import os
import struct

MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10


def handshake(path, host):
    """Returns the request, and the `Sec-WebSocket-Accept` that its response must have."""
    key = base64.b64encode(os.urandom(16))
    lines = [
        f"GET {path} HTTP/1.1",
        f"Host: {host}",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        f"Sec-WebSocket-Key: {key.decode()}",
    ]
    accept = base64.b64encode(hashlib.sha1(key + MAGIC).digest()).decode()
    return ("\r\n".join(lines) + "\r\n\r\n").encode(), accept


def frame(kind, payload):
    """Returns one masked frame with a whole message."""
    mask, size = os.urandom(4), len(payload)
    if size < 126:
        head = struct.pack("!BB", 0x80 | kind, 0x80 | size)
    else:
        head = struct.pack("!BBH", 0x80 | kind, 0x80 | 126, size)
    masked = bytes(byte ^ mask[place % 4] for place, byte in enumerate(payload))
    return head + mask + masked


class WebSocket:
    """An open connection over asyncio's streams."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, streams, path, host):
        """Opens a WebSocket on a new connection; fails if the server does not agree."""
        request, accept = handshake(path, host)
        websocket = cls(*streams)
        websocket.writer.write(request)
        head = (await websocket.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        if not head.startswith("HTTP/1.1 101 ") or accept not in head:
            raise AssertionError(f"no WebSocket: {head!r}")
        return websocket

    def send(self, kind, payload):
        self.writer.write(frame(kind, payload))

    async def receive(self):
        """Returns the next message as (kind, payload); pings are answered."""
        while True:
            first, second = await self.reader.readexactly(2)
            size = second & 0x7F
            if size == 126:
                (size,) = struct.unpack("!H", await self.reader.readexactly(2))
            elif size == 127:
                (size,) = struct.unpack("!Q", await self.reader.readexactly(8))
            payload = await self.reader.readexactly(size)
            if first & 0xF != PING:
                return first & 0xF, payload
            self.send(PONG, payload)

    async def close(self):
        """Sends a close frame, waits for the answer and returns its code."""
        self.send(CLOSE, struct.pack("!H", 1000))
        kind, payload = await self.receive()
        if kind != CLOSE:
            raise AssertionError(f"frame {kind} instead of a close")
        self.writer.close()
        return struct.unpack("!H", payload[:2])[0]
