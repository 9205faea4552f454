"""Two servers form one hub through Redis, which is paused, killed, and restarted with old or no
data.

Both publish numbers all the while. Every listener of either gets each number once, and those of one
server in their order; where one is missing, an event `gap` follows its publication.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import threading

from harness import RealCase, until
from listening import PATIENCE, Events, Front

CONFIG = """\
[server]
threads = 2
keep_alive_drain = "100ms"
redis = {redis}

[hub]
history = {{ max_messages = 5000 }}    # so that all that is published in an outage fits into Redis' streams

[[sites]]
[[sites.routes]]
path = "/events/*"
hub = "{{path.2}}"
"""

LISTENERS = 3

# Seconds between two numbers of a server.
EVERY = 0.01


class Redis:
    """A `redis-server` on a Unix socket; a context manager."""

    def __init__(self, folder):
        self.folder = folder
        self.address = folder / "redis.sock"
        self._process = None

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, kind, error, trace):
        self.kill()

    def start(self):
        program = shutil.which("redis-server")
        if not program:
            raise AssertionError("redis-server is needed: `scripts/setup test` installs it")
        options = ["--port", "0", "--unixsocket", self.address, "--dir", self.folder, "--save", ""]
        self._process = subprocess.Popen(
            [program, *options], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        until("redis-server answers", lambda: self.say("PING") == b"+PONG\r\n", PATIENCE)

    def kill(self):
        self._process.kill()
        self._process.wait()

    def pause(self):
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self):
        self._process.send_signal(signal.SIGCONT)

    def say(self, words):
        """Returns the answer to one command; None while it does not listen."""
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as client:
            client.settimeout(PATIENCE)
            client.connect(str(self.address))
            client.sendall(f"{words}\r\n".encode())
            return client.recv(100)
        return b""


class Publisher:
    """Publishes `NAME-0`, `NAME-1`, ... on one server, on its own thread; a context manager."""

    def __init__(self, name, server):
        self.name, self.server = name, server
        self.sent = 0
        self.failure = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, kind, error, trace):
        self._is_over.set()
        self._thread.join(PATIENCE)

    def _run(self):
        try:
            while not self._is_over.wait(EVERY):
                self._publish(f"{self.name}-{self.sent}")
                self.sent += 1
        except Exception as error:
            self.failure = error

    def _publish(self, data):
        item = {"channel": "news", "event": {"data": data}}
        status, text = self.server.change("/publish/", json.dumps({"items": [item]}))
        if status != 200:
            raise AssertionError(f"{data}: {status} {text}")

    def wait_for_more(self, count=30):
        goal = self.sent + count

        def look():
            if self.failure:
                raise AssertionError(f"{self.name} cannot publish: {self.failure}")
            return self.sent >= goal

        until(f"{self.name} has published {goal}", look, PATIENCE)


class OneHub(RealCase):
    def setUp(self):
        folder = self.folder()
        self.redis = self.enterContext(Redis(folder))
        config = folder / "penstock.toml"
        config.write_text(CONFIG.format(redis=json.dumps(f"unix:{self.redis.address}")))
        self.servers = [self.enterContext(Front(config, app=False)) for _ in range(2)]
        self.server = self.servers[0]
        self.wait_shared()
        self.listeners = [
            self.enterContext(Events(f"{server.url}/events/news"))
            for server in self.servers
            for _ in range(LISTENERS)
        ]
        for server in self.servers:
            server.wait_held(LISTENERS)

    def wait_shared(self):
        """Waits until both deliver in one order again."""

        def nodes():
            return [server.status()["hub"]["cluster"] for server in self.servers]

        def look():
            return all(each["connected"] and not each["standalone"] for each in nodes())

        until("both servers have Redis", look, PATIENCE)

    def publish_over(self, *troubles):
        """Publishes numbers before, during and after each of the `troubles`."""
        with contextlib.ExitStack() as stack:
            publishers = [
                stack.enter_context(Publisher(name, server))
                for name, server in zip("ab", self.servers, strict=True)
            ]
            for trouble in troubles:
                for publisher in publishers:
                    publisher.wait_for_more()
                trouble(publishers)
                self.wait_shared()
            for publisher in publishers:
                publisher.wait_for_more()
        return publishers

    def check(self, publishers):
        """Checks what all listeners received, once the last numbers are there."""
        for listener in self.listeners:
            for publisher in publishers:
                listener.wait_for(f"{publisher.name}-{publisher.sent - 1}")
            heard = [(event.event, event.data) for event in listener.heard]
            for publisher in publishers:
                self.check_numbers(publisher, heard)

    def check_numbers(self, publisher, heard):
        expected, gap_since = 0, False
        for kind, data in heard:
            name, _, number = data.partition("-")
            if kind == "gap":
                self.assertEqual(data, "{}")
                gap_since = True
            elif name == publisher.name:
                number = int(number)
                self.assertGreaterEqual(number, expected, f"{data} came twice or late")
                self.assertTrue(number == expected or gap_since, f"{data} without {expected}")
                expected, gap_since = number + 1, False

    def test_what_is_published_comes_once_while_redis_comes_and_goes(self):
        def pauses(publishers):
            self.redis.pause()
            for publisher in publishers:
                publisher.wait_for_more()
            self.redis.go_on()

        def forgets(publishers):
            self.redis.kill()
            for publisher in publishers:
                publisher.wait_for_more()
            self.redis.start()

        def is_emptied(_):
            self.assertEqual(self.redis.say("FLUSHALL"), b"+OK\r\n")

        def comes_back_with_older_data(publishers):
            self.assertEqual(self.redis.say("SAVE"), b"+OK\r\n")
            for publisher in publishers:
                publisher.wait_for_more()
            forgets(publishers)
            os.unlink(self.redis.folder / "dump.rdb")

        publishers = self.publish_over(
            pauses, forgets, is_emptied, comes_back_with_older_data, pauses, forgets
        )
        self.check(publishers)
        # None of these was long enough to lose anything.
        gaps = [
            event for listener in self.listeners for event in listener.heard if event.event == "gap"
        ]
        self.assertEqual(gaps, [])

    def test_what_is_published_at_the_end_of_a_server_reaches_the_other(self):
        first = self.servers[0]
        for number in range(200):
            item = {"channel": "news", "event": {"data": f"a-{number}"}}
            status, text = first.change("/publish/", json.dumps({"items": [item]}))
            self.assertEqual(status, 200, text)
        ending = first._child._process
        ending.send_signal(signal.SIGTERM)
        for listener in self.listeners[LISTENERS:]:
            listener.wait_for("a-199")
            self.assertEqual(listener.data, [f"a-{number}" for number in range(200)])
        self.assertEqual(ending.wait(PATIENCE), 0)
