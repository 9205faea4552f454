"""Listeners to event streams, and a relay to a server that can be cut.

`Events` reads a stream of events with a public library; tests check what it received with `until`.
`Relay` is a port that is known before the server's is, passes bytes on, and drops connections on
request.
"""

import contextlib
import socket
import threading

import requests
import sseclient

from harness import READY_SECONDS, Server, until

PATIENCE = 15


class Front(Server):
    """The real server, with requests to its admin interface."""

    def __enter__(self):
        super().__enter__()
        found = self._child.wait_for(r"^status http://127\.0\.0\.1:(\d+)", READY_SECONDS)
        self.admin_port = int(found[1])
        self.admin_address = f"127.0.0.1:{self.admin_port}"
        self.admin = f"http://{self.admin_address}"
        return self

    def status(self):
        return requests.get(f"{self.admin}/status.json", timeout=PATIENCE).json()

    def wait_held(self, streams, polls=0):
        def look():
            hub = self.status()["hub"]
            return (hub["streams"], hub["long_polls"]) == (streams, polls)

        until(f"{streams} streams and {polls} polls are held", look, 2 * PATIENCE)


class Events:
    """A listener with its own thread; a context manager."""

    def __init__(self, url, **fields):
        self.url, self.fields = url, fields
        self.heard = []
        self.failure = None

    def __enter__(self):
        # A server that sends nothing for so long, not even a heartbeat, fails the test.
        self._answer = requests.get(self.url, headers=self.fields, stream=True, timeout=60)
        self.status, self.headers = self._answer.status_code, self._answer.headers
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def _read(self):
        try:
            for event in sseclient.SSEClient(self._answer).events():
                self.heard.append(event)
        except Exception as error:
            self.failure = error

    def wait_for(self, data):
        """Waits for the first event with this data."""

        def look():
            return [event for event in self.heard if event.data == data]

        return until(f"`{data}` in {self.data}", look, PATIENCE)[0]

    def wait_end(self):
        """Waits for the end of the stream, which must be a proper one."""
        until("the end of the stream", lambda: not self._reader.is_alive(), PATIENCE)
        if self.failure:
            raise AssertionError(f"the stream was cut: {self.failure}")

    @property
    def data(self):
        return [event.data for event in self.heard]

    def __exit__(self, kind, error, trace):
        if self._reader.is_alive():
            self._answer.raw.shutdown()
        self._reader.join(5)
        self._answer.close()


class Relay:
    """Passes bytes both ways to the port `target` while that is set; a context manager."""

    def __enter__(self):
        self.target = None
        self._open = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()
        return self

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def cut(self):
        """Ends all connections; until there is a target again, new ones end at once."""
        self.target = None
        with self._lock:
            for end in self._open:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def __exit__(self, kind, error, trace):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(5)
        self._listener.close()
        self.cut()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._pass_on, args=(client,), daemon=True).start()

    def _pass_on(self, client):
        with contextlib.suppress(OSError), client:
            target = self.target
            if target is None:
                return
            with socket.create_connection(("127.0.0.1", target), timeout=5) as server:
                server.settimeout(None)
                with self._lock:
                    self._open |= {client, server}
                # The relay may have been cut meanwhile.
                if self.target == target:
                    back = threading.Thread(target=self._pump, args=(server, client), daemon=True)
                    back.start()
                    self._pump(client, server)
                    back.join()
                with self._lock:
                    self._open -= {client, server}

    def _pump(self, source, drain):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                drain.sendall(data)
        for end, how in [(drain, socket.SHUT_WR), (source, socket.SHUT_RD)]:
            with contextlib.suppress(OSError):
                end.shutdown(how)
