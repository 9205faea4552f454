"""Clients that close their sending side and leave later: their resources are freed all the same.

With a body without chunks the server can send nothing that would show the close, so TCP's own
probes must. A client's system answers those for a minute after a close; here it is set to forget
the connection after a second.
"""

import json
import socket
import sys
from urllib.request import urlopen

from harness import RealCase, Server, until

# The first probe is sent after five seconds; a second after the close the client's system refuses
# it.
PATIENCE = 30

APP = """\
import select
import time

streams = [0]

def tunnel(environ):
    # Says nothing, and goes on until the connection is closed whole.
    connection = environ["werkzeug.socket"]
    connection.sendall(
        b"HTTP/1.1 101 Switching Protocols\\r\\nConnection: Upgrade\\r\\nUpgrade: chat\\r\\n\\r\\n"
    )
    streams[0] += 1
    closed = select.poll()
    closed.register(connection, 0)
    while not closed.poll(50):
        pass
    streams[0] -= 1
    return []

def stream():
    streams[0] += 1
    try:
        yield b"begun"
        while True:
            time.sleep(0.05)
            yield b""
    finally:
        streams[0] -= 1

def application(environ, start):
    path = environ["PATH_INFO"]
    if path == "/tunnel":
        return tunnel(environ)
    headers = [("Content-Type", "text/plain")]
    if path == "/length":
        headers.append(("Content-Length", "100000"))
    start("200 OK", headers)
    return [str(streams[0]).encode()] if path == "/state" else stream()
"""

CONFIG = """\
[apps.it]
entry = "app:application"
interpreter = {python}
processes = 1
threads = 4

[[sites]]
[[sites.routes]]
path = "/events"
hub = {{ channels = ["all"], heartbeat_interval = "1h" }}

[[sites.routes]]
app = "it"
"""


class HalfClosed(RealCase):
    @classmethod
    def setUpClass(cls):
        folder = cls.folder()
        (folder / "app.py").write_text(APP)
        path = folder / "penstock.toml"
        path.write_text(CONFIG.format(python=json.dumps(sys.executable)))
        cls.server = cls.enterClassContext(Server(path))

    def begin(self, target, version, fields="", status=200):
        """Returns a client that has the beginning of a body and has closed its sending side."""
        client = socket.create_connection(("127.0.0.1", self.server.port), timeout=PATIENCE)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_LINGER2, 1)
        client.sendall(f"GET {target} HTTP/{version}\r\nHost: a\r\n{fields}\r\n".encode())
        client.shutdown(socket.SHUT_WR)
        got = b""
        while b"\r\n\r\n" not in got:
            got += client.recv(4096)
        self.assertTrue(got.startswith(f"HTTP/1.1 {status} ".encode()), got)
        return client

    def test_streams_of_applications(self):
        upgrade = "Connection: Upgrade\r\nUpgrade: chat\r\n"
        clients = [
            self.begin("/stream", "1.0"),
            self.begin("/length", "1.1"),
            self.begin("/tunnel", "1.1", upgrade, 101),
        ]
        until("all stream", lambda: self.server.get("/state").text == "3", PATIENCE)
        for client in clients:
            client.close()
        until("all are noticed", lambda: self.server.get("/state").text == "0", PATIENCE)

    def test_held_streams(self):
        client = self.begin("/events", "1.0")
        until("it is held", lambda: self.held() == 1, PATIENCE)
        client.close()
        until("it is noticed", lambda: self.held() == 0, PATIENCE)

    def held(self):
        lines = [line for line in self.server.lines if line.startswith("status ")]
        with urlopen(f"{lines[0].split()[1]}status.json", timeout=20) as answer:
            return json.load(answer)["hub"]["streams"]
