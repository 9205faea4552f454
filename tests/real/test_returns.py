"""Clients of event streams that all return: after a stop and a start, and after a crash.

The clients follow the rules of `EventSource` (HTML, Server-sent events): any status but 200 is the
end for ever, and after everything else they reconnect when the last `retry` is over. One of them is
Chromium. `PENSTOCK_RETURNING` is their number (300).
"""

import asyncio
import contextlib
import json
import os
import re
import resource
import signal
import threading
import time
from collections import Counter
from pathlib import Path

from browser import Browser
from harness import RealCase, until
from listening import PATIENCE, Events, Front

CLIENTS = int(os.environ.get("PENSTOCK_RETURNING", "300"))
# The application begins 400 streams a second at most.
RETRY_SECONDS = max(2, CLIENTS // 300)
DRAIN_SECONDS = 5
PATIENCE_FOR_ALL = PATIENCE + CLIENTS / 50

CONFIG = """\
[server]
threads = 2
keep_alive_drain = "100ms"

[hub]
drain_timeout = "{drain}s"
retry_interval = "{retry}s"
max_streams = {streams}

[apps.returning]
dir = {folder}
kind = "wsgi"
entry = "returning:application"
processes = 2
threads = 1
grip = true
queue = {{ max = {queue} }}
"""


class EventSource:
    """One client, as a task of an event loop."""

    def __init__(self, port):
        self.port = port
        self.delay = 3.0
        self.is_held = False
        # A status that ended it.
        self.failure = None
        # When it first had a response, and how many it had.
        self.answered_at = None
        self.answers = 0

    async def run(self):
        while self.failure is None:
            writer = None
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, ValueError):
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.write(
                    b"GET /stream HTTP/1.1\r\nHost: a\r\nAccept: text/event-stream\r\n\r\n"
                )
                await self.follow(reader)
            self.is_held = False
            if writer:
                writer.close()
            await asyncio.sleep(self.delay)

    async def follow(self, reader):
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        self.answered_at = self.answered_at or time.monotonic()
        self.answers += 1
        if not head.startswith("http/1.1 200 ") or "text/event-stream" not in head:
            self.failure = head.split("\r\n")[0]
            return
        if length := re.search(r"\r\ncontent-length: (\d+)", head):
            self.read(await reader.readexactly(int(length[1])))
            return
        while size := int(await reader.readline(), 16):
            self.read(await reader.readexactly(size))
            await reader.readexactly(2)

    def read(self, data):
        """Each event arrives in one piece."""
        if retry := re.search(rb"^retry: (\d+)$", data, re.MULTILINE):
            self.delay = int(retry[1]) / 1000
        if b"data: held\n\n" in data:
            self.is_held = True


class Crowd:
    """All clients, on an event loop in a thread; a context manager."""

    def __init__(self, port):
        self.clients = [EventSource(port) for _ in range(CLIENTS)]
        self._loop = asyncio.new_event_loop()

    def __enter__(self):
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def _run(self):
        asyncio.set_event_loop(self._loop)
        self._all = asyncio.gather(*(client.run() for client in self.clients))
        with contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._all)

    def __exit__(self, kind, error, trace):
        self._loop.call_soon_threadsafe(self._all.cancel)
        self._thread.join(PATIENCE)

    def wait_held(self):
        def look():
            failures = Counter(client.failure for client in self.clients if client.failure)
            assert not failures, failures
            return all(client.is_held for client in self.clients)

        until(f"{CLIENTS} clients are held", look, PATIENCE_FOR_ALL)

    def forget(self):
        for client in self.clients:
            client.answered_at, client.answers = None, 0


class Returning(RealCase):
    def setUp(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))

    def front(self, streams, retry=RETRY_SECONDS):
        settings = self.folder() / "penstock.toml"
        folder = json.dumps(str(Path(__file__).parent / "streams"))
        queue = max(10, CLIENTS // 4)
        values = {"drain": DRAIN_SECONDS, "retry": retry, "streams": streams}
        settings.write_text(CONFIG.format(folder=folder, queue=queue, **values))
        return Front(settings)

    def test_all_are_held_again_after_a_stop_and_after_a_crash(self):
        self.server = self.front(CLIENTS + 10)
        self.server.__enter__()
        # The next servers have the same address.
        listen = self.server.command.index("127.0.0.1:0")
        self.server.command[listen] = f"127.0.0.1:{self.server.port}"
        with Crowd(self.server.port) as crowd, Browser() as browser:
            crowd.wait_held()
            browser.go(self.server.url)
            browser.wait_text("#state", "held")
            crowd.forget()
            self.server.__exit__(None, None, None)
            self.server.__enter__()
            crowd.wait_held()
            self.assert_spread(crowd)
            self.wait_browser(browser)

            # As clients that were never told when to return: all at once.
            for client in crowd.clients:
                client.delay = 0.5
            crowd.forget()
            os.kill(self.server._child.pid, signal.SIGKILL)
            self.server._child.kill()
            self.server.__enter__()
            crowd.wait_held()
            refused = sum(client.answers > 1 for client in crowd.clients)
            print(f"after a crash: {CLIENTS} are held, {refused} of them after a refusal")
            self.wait_browser(browser)
        self.server.__exit__(None, None, None)

    def assert_spread(self, crowd):
        times = sorted(client.answered_at for client in crowd.clients)
        seconds = times[-1] - times[0]
        most = max(Counter(int(at - times[0]) for at in times).values())
        mean = CLIENTS / seconds
        print(f"after a stop: over {seconds:.1f} s, {mean:.0f} a second, at most {most}")
        self.assertLessEqual(most, 2 * mean)

    def wait_browser(self, browser):
        def look():
            state = browser.run("return document.querySelector('#state').textContent")
            self.assertNotEqual(state, "closed")
            return state == "held" and browser.run("return source.readyState") == 1

        until("Chromium is held", look, PATIENCE_FOR_ALL)

    def test_chromium_returns_when_there_is_room(self):
        self.server = self.enterContext(self.front(1, retry=1))
        with Browser() as browser:
            with Events(f"{self.server.url}/stream") as first:
                first.wait_for("held")
                browser.go(self.server.url)
                browser.wait_text("#state", "connecting")
            self.wait_browser(browser)


if __name__ == "__main__":
    import unittest

    unittest.main()
