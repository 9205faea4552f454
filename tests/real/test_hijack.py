"""Applications that take over their client's connection: Action Cable, flask-sock, Flask-SocketIO,
Rack."""

import asyncio
import http.client
import json
import os
import re
import socket

import aiohttp

from harness import RealCase, Server, until
from socket_apps import CLIENTS, FOLDER, SocketIoChecks, settings, together
from websockets import handshake


class Case(RealCase):
    def restart(self):
        """Replaces every worker, as `penstock restart` does; waits until the successors serve."""
        status, text = self.server.change("/apps/it/restart")
        self.assertLess(status, 300, text)


class EchoClients(SocketIoChecks):
    """Clients of an application that echoes WebSocket messages at /echo."""

    # 0 is a close without a code.
    close_codes = (0, 1000)

    async def clients(self):
        async with aiohttp.ClientSession() as session:
            await asyncio.gather(*(self.client(session, at) for at in range(CLIENTS)))

    async def client(self, session, number):
        async with session.ws_connect(f"{self.server.url}/echo") as websocket:
            for text in (f"number {number}", "x" * 70_000, "ü"):
                await websocket.send_str(text)
                self.assertEqual(await websocket.receive_str(), text)
            if number % 2:
                # The application ends the connection.
                await websocket.send_str("end")
                message = await websocket.receive()
                self.assertEqual(message.type, aiohttp.WSMsgType.CLOSE)
                self.assertIn(message.data, self.close_codes)


class Flask(EchoClients, Case):
    def test_flask_sock_talks_and_leaves_nothing_behind(self):
        self.check_flask_sock("processes = 1\nthreads = 25\n")

    def test_flask_sock_talks_on_greenlets(self):
        self.check_flask_sock('processes = 1\nasync = "gevent"\n')

    def check_flask_sock(self, more):
        with Server(settings(self, "wsgi", "wsgi_sockets:application", more)) as self.server:
            before = self.state()
            for _ in range(3):
                together(self.clients())

            def is_clean():
                after = self.state()
                # The application opens a few of its own at its first request.
                return after["descriptors"] <= before["descriptors"] + 3

            until("the descriptors are closed", is_clean, 20)
            self.assertEqual(self.state()["pid"], before["pid"])

    def state(self):
        return json.loads(self.server.get("/").text)

    def test_flask_socketio_serves_by_every_transport(self):
        self.check_flask_socketio("threads = 25")

    def test_flask_socketio_serves_by_every_transport_on_greenlets(self):
        for entry in ("application", "greenlets()"):
            with self.subTest(entry=entry):
                self.check_flask_socketio('async = "gevent"', entry)

    def check_flask_socketio(self, more, entry="application"):
        more = f'processes = 2\nsticky = "cookie"\n{more}\n'
        path = settings(self, "wsgi", f"wsgi_socketio:{entry}", more)
        with Server(path) as self.server:
            self.check_every_transport(self.server)


class GeventWebSocket(EchoClients, Case):
    """With gevent-websocket installed, which Flask-SocketIO then uses."""

    close_codes = (1000,)

    def settings(self, entry, more):
        interpreter = FOLDER / ".venv" / "bin" / "python"
        return settings(self, "wsgi", entry, f'async = "gevent"\n{more}', interpreter)

    def test_its_websocket_talks(self):
        path = self.settings("wsgi_gevent_websocket:application", "processes = 1\n")
        with Server(path) as self.server:
            together(self.clients())
            # An unused WebSocket takes nothing over.
            together(self.look("WebSocket"))
            self.assertEqual(self.server.get("/").text, "NoneType")

    async def look(self, expected):
        headers = {
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        }
        async with aiohttp.ClientSession() as session:
            for _ in range(3):
                answer = await session.get(f"{self.server.url}/", headers=headers)
                self.assertEqual((answer.status, await answer.text()), (200, expected))

    def test_flask_socketio_uses_it(self):
        more = 'processes = 2\nsticky = "cookie"\n'
        with Server(self.settings("wsgi_socketio:greenlets()", more)) as self.server:
            self.check_every_transport(self.server)


class Cable(Case):
    def test_action_cable_serves_and_its_streams_survive_a_restart(self):
        self.check("processes = 2\nthreads = 2\n")

    def test_action_cable_serves_on_fibers(self):
        self.check("processes = 2\nasync = true\n")

    def check(self, more):
        with Server(settings(self, "rack", "cable.ru", more)) as self.server:
            together(self.clients())

    async def clients(self):
        # Many more than there are threads: a connection that was taken over needs none.
        async with aiohttp.ClientSession() as session:
            cables = [await self.subscribe(session) for _ in range(CLIENTS)]
            before = {await self.say(cable, "one") for cable in cables}
            await asyncio.to_thread(self.restart)
            fresh = await self.subscribe(session)

            async def is_new():
                return await self.say(fresh, "new") not in before

            while not await is_new():
                await fresh.close()
                fresh = await self.subscribe(session)
            # Earlier connections stay with their process.
            after = {await self.say(cable, "two") for cable in cables}
            self.assertEqual(before, after)
            for cable in [*cables, fresh]:
                await cable.close()

    async def subscribe(self, session):
        cable = await session.ws_connect(
            f"{self.server.url}/cable", protocols=["actioncable-v1-json"]
        )
        self.assertEqual(cable.protocol, "actioncable-v1-json")
        self.assertEqual((await self.next(cable))["type"], "welcome")
        await cable.send_json({"command": "subscribe", "identifier": IDENTIFIER})
        self.assertEqual((await self.next(cable))["type"], "confirm_subscription")
        return cable

    async def say(self, cable, text):
        data = json.dumps({"action": "say", "text": text})
        await cable.send_json({"command": "message", "identifier": IDENTIFIER, "data": data})
        message = (await self.next(cable))["message"]
        self.assertEqual(message["text"], text)
        return message["process"]

    async def next(self, cable):
        """Returns the next message that is no ping."""
        while True:
            message = await cable.receive_json(timeout=20)
            if message.get("type") != "ping":
                return message


IDENTIFIER = json.dumps({"channel": "EchoChannel"})


class Rack(Case):
    MORE = "processes = 1\nthreads = 2\n"

    @classmethod
    def setUpClass(cls):
        path = settings(cls, "rack", "hijack.ru", cls.MORE)
        cls.server = cls.enterClassContext(Server(path))

    def test_a_full_hijack_answers_by_itself(self):
        answer = self.server.get("/raw")
        self.assertEqual((answer.status, answer.headers["X-Own"]), (202, "yes"))
        self.assertEqual(answer.text, "line 0\nline 1\nline 2\n")
        self.assertIn("Date", answer.headers)

    def test_a_partial_hijack_has_the_servers_head(self):
        answer = self.server.get("/partial")
        self.assertEqual(answer.status, 200)
        self.assertEqual(answer.text, "part 0\npart 1\npart 2\n")

    def test_what_is_no_response_costs_its_client_a_502_and_the_worker_nothing(self):
        pid = self.server.get("/state").text.split()[0]
        for path in ("/silent", "/nonsense", "/raises"):
            self.assertEqual(self.server.get(path).status, 502, path)
        self.assertEqual(self.server.get("/state").text.split()[0], pid)

    def test_bytes_go_both_ways_and_each_end_is_told_of_the_other(self):
        before = int(self.server.get("/state").text.split()[1])
        for path in ("/full", "/switch", "/switch_body") * 7:
            with self.upgraded(path) as client:
                client.sendall(b"early")
                self.assertEqual(client.recv(100), b"early")
                data = os.urandom(300_000)
                client.sendall(data)
                got = b""
                while len(got) < len(data):
                    got += client.recv(65536)
                self.assertEqual(got, data)
                client.shutdown(socket.SHUT_WR)
                self.assertEqual(client.recv(100), b"")

        def is_closed():
            return int(self.server.get("/state").text.split()[1]) <= before + 2

        until("the worker's ends are closed", is_closed, 20)

    def upgraded(self, path):
        client = socket.create_connection(("127.0.0.1", self.server.port), timeout=20)
        request, accept = handshake(path, "a")
        # Bytes after the request belong to the new protocol.
        client.sendall(request + b"first")
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += client.recv(1)
        self.assertTrue(head.startswith(b"HTTP/1.1 101 "), head)
        self.assertIn(accept.encode(), head)
        self.assertEqual(len(re.findall(rb"(?i)^upgrade:", head, re.MULTILINE)), 1)
        self.assertEqual(client.recv(5), b"first")
        return client


class Faye(Case):
    """faye-websocket; a thread of EventMachine owns the sockets."""

    def test_it_talks_from_threads_and_fibers(self):
        for more in ("threads = 2", "async = true"):
            path = settings(self, "rack", "faye.ru", f"processes = 1\n{more}\n")
            with self.subTest(more=more), Server(path) as self.server:
                together(self.clients())

    async def clients(self):
        async with aiohttp.ClientSession() as session:
            await asyncio.gather(*(self.client(session, at) for at in range(CLIENTS)))

    async def client(self, session, number):
        async with session.ws_connect(f"{self.server.url}/") as websocket:
            for text in (f"number {number}", "x" * 70_000, "ü"):
                await websocket.send_str(text)
                self.assertEqual(await websocket.receive_str(), text)


class RackOnFibers(Rack):
    MORE = "processes = 1\nasync = true\n"


class Mishaps(Case):
    """Applications that hang or die with a connection that they have taken over."""

    def setUp(self):
        more = 'processes = 1\nthreads = 2\nresponse_timeout = "1s"\n'
        self.server = self.enterContext(Server(settings(self, "rack", "hijack.ru", more)))

    def pid(self):
        return self.server.get("/state").text.split()[0]

    def test_a_worker_that_dies_leaves_no_response_that_looks_complete(self):
        for path in ("/dies", "/dies_with_heir"):
            before = self.pid()
            with self.assertRaises((http.client.IncompleteRead, ConnectionError), msg=path):
                self.server.get(path)
            self.server.close_connection()
            until("another worker serves", lambda before=before: self.pid() != before, 20)

    def test_a_call_that_hangs_without_a_response_costs_its_worker(self):
        before = self.pid()
        self.assertEqual(self.server.get("/hangs").status, 504)
        until("another worker serves", lambda: self.pid() != before, 20)

    def test_a_call_that_hangs_when_its_client_has_left_costs_its_worker(self):
        before = self.pid()
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=20) as client:
            client.sendall(handshake("/hangs_behind", "a")[0])
            self.assertTrue(client.recv(100).startswith(b"HTTP/1.1 101 "))
        until("another worker serves", lambda: self.pid() != before, 20)
