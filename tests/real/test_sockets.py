"""Socket.IO over two processes by each of its transports; compression with a foreign client."""

import aiohttp

from harness import RealCase, Server
from socket_apps import CLIENTS, SocketIoChecks, settings, talk_socketio, together

MORE = "processes = 2\n"


class SocketIo(SocketIoChecks, RealCase):
    def test_every_client_is_served_by_every_transport(self):
        path = settings(self, "asgi", "chat:application", f'{MORE}sticky = "cookie"')
        with Server(path) as self.server:
            self.check_every_transport(self.server)

    def test_without_cookies_the_address_decides(self):
        path = settings(self, "asgi", "chat:application", f'{MORE}sticky = "client_ip"')
        with Server(path) as self.server:
            processes = talk_socketio(self.server.url, ["polling"])
            self.assertEqual(len(processes), CLIENTS)
            self.assertEqual(len(set(processes)), 1, "all have one address")


class Compression(RealCase):
    def test_a_foreign_client_talks_compressed_and_without(self):
        with Server(settings(self, "asgi", "echo:application", MORE)) as self.server:
            for window in (15, 12, 9, 0):
                with self.subTest(window=window):
                    together(self.talk(window))

    async def talk(self, window):
        url = f"{self.server.url}/"
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(url, compress=window, max_msg_size=0) as socket,
        ):
            self.assertEqual(bool(socket.compress), window > 0)
            # Below and above the size that is compressed, and a message that does not shrink.
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
            # One byte above the limit of a message, however short it is compressed.
            await socket.send_bytes(b"\0" * ((1 << 20) + 1))
            message = await socket.receive()
            self.assertEqual((message.type, message.data), (aiohttp.WSMsgType.CLOSE, 1009))
