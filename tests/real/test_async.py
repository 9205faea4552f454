"""One worker with a reactor holds thousands of WebSockets and streaming responses at once.

`examples/asgi-hello` runs in one process. Every WebSocket client sends a message and gets it back,
three times; every stream is read line by line to its end; plain requests are answered meanwhile.
`PENSTOCK_STREAMS` is the number of each (500). The growth of the worker's memory is printed.
"""

import asyncio
import json
import os
import resource
import unittest

from harness import EXAMPLES, RealCase, Server
from websockets import TEXT, WebSocket

STREAMS = int(os.environ.get("PENSTOCK_STREAMS", "500"))
LINES = 5
ECHOES = 3
# Clients that connect at the same moment.
AT_ONCE = 200
PATIENCE = 120

CONFIG = """\
[server]
threads = 1

[apps.hello]
dir = {folder}
kind = "asgi"
entry = "main:application"
processes = 1
max_concurrent = {most}

[[sites]]
[[sites.routes]]
app = "hello"
"""


class Held(RealCase):
    def test_one_worker_holds_websockets_and_streams(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        settings = self.folder() / "penstock.toml"
        folder = json.dumps(str(EXAMPLES / "asgi-hello"))
        settings.write_text(CONFIG.format(folder=folder, most=2 * STREAMS + 100))
        with Server(settings) as self.server:
            asyncio.run(asyncio.wait_for(self.hold(), PATIENCE))

    async def hold(self):
        self.gate = asyncio.Semaphore(AT_ONCE)
        self.open = 0
        self.all_open = asyncio.Event()
        held = [self.websocket(number) for number in range(STREAMS)]
        held += [self.stream() for _ in range(STREAMS)]
        tasks = [asyncio.create_task(one) for one in held]
        await self.all_open.wait()
        for _ in range(10):
            self.assertEqual(await self.plain(), b"Hello, world!\n")
        await asyncio.gather(*tasks)

    async def connect(self):
        async with self.gate:
            return await asyncio.open_connection("127.0.0.1", self.server.port)

    def count(self):
        self.open += 1
        if self.open == 2 * STREAMS:
            self.all_open.set()

    async def websocket(self, number):
        streams = await self.connect()
        websocket = await WebSocket.open(streams, "/", "localhost")
        self.count()
        await self.all_open.wait()
        for turn in range(ECHOES):
            message = f"{number} says {turn}".encode()
            websocket.send(TEXT, message)
            self.assertEqual(await websocket.receive(), (TEXT, message))
        self.assertEqual(await websocket.close(), 1000)

    async def stream(self):
        reader, writer = await self.connect()
        writer.write(f"GET /stream?n={LINES}&ms=1000 HTTP/1.1\r\nHost: a\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        self.assertIn(b"HTTP/1.1 200 ", head)
        self.assertIn(b"ransfer-", head)
        self.count()
        body = b""
        while size := int(await reader.readline(), 16):
            body += await reader.readexactly(size)
            await reader.readexactly(2)
        self.assertEqual(body, b"".join(b"line %d\n" % line for line in range(LINES)))
        writer.close()

    async def plain(self):
        reader, writer = await self.connect()
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        answer = await reader.read()
        writer.close()
        return answer.partition(b"\r\n\r\n")[2]


if __name__ == "__main__":
    unittest.main()
