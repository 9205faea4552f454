"""Socket.IO over two processes, by each of its transports, and compression with a foreign client."""

import asyncio
import json
import sys
from pathlib import Path

import aiohttp
import socketio

from harness import RealCase, Server

HERE = Path(__file__).resolve().parent
CLIENTS = 20
PATIENCE = 60

CONFIG = """\
[apps.it]
dir = {folder}
kind = "asgi"
entry = "{entry}:application"
interpreter = {python}
processes = 2
{more}

[[sites]]
[[sites.routes]]
app = "it"
"""


def settings(case, entry, more=""):
    """A configuration for an application in `sockets`."""
    path = case.folder() / "penstock.toml"
    folder, python = json.dumps(str(HERE / "sockets")), json.dumps(sys.executable)
    path.write_text(CONFIG.format(folder=folder, entry=entry, python=python, more=more))
    return path


class SocketIo(RealCase):
    def test_every_client_is_served_by_every_transport(self):
        with Server(settings(self, "chat", 'sticky = "cookie"')) as self.server:
            for transports in (["websocket"], ["polling", "websocket"], ["polling"]):
                with self.subTest(transports=transports):
                    together = asyncio.wait_for(self.talk(transports), PATIENCE)
                    processes = asyncio.run(together)
                    self.assertEqual(len(processes), CLIENTS)
                    self.assertEqual(len(set(processes)), 2, "both have clients")

    def test_without_cookies_the_address_decides(self):
        with Server(settings(self, "chat", 'sticky = "client_address"')) as self.server:
            together = asyncio.wait_for(self.talk(["polling"]), PATIENCE)
            processes = asyncio.run(together)
            self.assertEqual(len(processes), CLIENTS)
            self.assertEqual(len(set(processes)), 1, "all have one address")

    async def talk(self, transports):
        """The process of each client that has been heard and answered, five times."""
        return await asyncio.gather(*(self.client(transports, at) for at in range(CLIENTS)))

    async def client(self, transports, number):
        # Else it would take no cookies from an address.
        jar = aiohttp.CookieJar(unsafe=True)
        async with aiohttp.ClientSession(cookie_jar=jar) as session:
            client = socketio.AsyncClient(reconnection=False, http_session=session)
            await client.connect(self.server.url, transports=transports)
            try:
                return await self.process_of(client, transports, number)
            finally:
                await client.disconnect()

    async def process_of(self, client, transports, number):
        """The process that has answered all of its calls."""
        processes = set()
        for at in range(5):
            answer = await client.call("say", f"{number}.{at}", timeout=20)
            self.assertEqual(answer["text"], f"{number}.{at}")
            processes.add(answer["process"])
        # The upgrade follows the first answers.
        while client.transport() != transports[-1]:
            await asyncio.sleep(0.01)
        self.assertEqual(len(processes), 1)
        return processes.pop()


class Compression(RealCase):
    def test_a_foreign_client_talks_compressed_and_without(self):
        with Server(settings(self, "echo")) as self.server:
            for window in (15, 12, 9, 0):
                with self.subTest(window=window):
                    asyncio.run(asyncio.wait_for(self.talk(window), PATIENCE))

    async def talk(self, window):
        url = f"{self.server.url}/"
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(url, compress=window, max_msg_size=0) as socket,
        ):
            self.assertEqual(bool(socket.compress), window > 0)
            # Below and above what is compressed, and what does not get shorter.
            noise = bytes(at * at * 31 % 251 for at in range(3000))
            for text in ("", "short", "words " * 100, "words " * 2000, "ü" * 90_000):
                await socket.send_str(text)
                self.assertEqual(await socket.receive_str(), text)
            for data in (b"", noise, b"\0" * 300_000, b"\0" * (1 << 20)):
                await socket.send_bytes(data)
                self.assertEqual(await socket.receive_bytes(), data)
            await socket.send_str("fields")
            fields = (await socket.receive_str()).split()
            for name in ("connection", "upgrade", "sec-websocket-key", "sec-websocket-version"):
                self.assertIn(name, fields)
            # One byte more than a message may have, however short it is on its way.
            await socket.send_bytes(b"\0" * ((1 << 20) + 1))
            message = await socket.receive()
            self.assertEqual((message.type, message.data), (aiohttp.WSMsgType.CLOSE, 1009))
