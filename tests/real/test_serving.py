"""The promises of serving applications, tested from outside: correct, bounded, fair and reported.

Applications behind their interfaces' own validators (`wsgiref.validate`, `Rack::Lint`) receive and
send bodies that the server must not keep in memory. Slow clients stand beside a quick one. Workers
are killed under load, one after another. More requests come at once than may wait. Thousands of
connections are idle. Clients that stall or dribble are closed, each by its limit.

The tests assert responses and bounds, and print measurements. `PENSTOCK_SERVING_FULL=1` takes the
full sizes, and the default limits on slow clients: some four minutes. Needs ruby with Rack.
"""

import asyncio
import collections
import contextlib
import hashlib
import http.client
import itertools
import json
import os
import re
import resource
import select
import selectors
import signal
import socket
import statistics
import threading
import time
import unittest

from harness import RealCase, until
from listening import Front

FULL = os.environ.get("PENSTOCK_SERVING_FULL") == "1"

# A large body, either way.
BODY_BYTES = (1 << 30) if FULL else (32 << 20)
SERVER_BYTES_MAX = 64 << 20

SLOW_CLIENTS = 200 if FULL else 60
# Seconds that the quick client is watched, alone and beside slow ones: in full, past the limits on
# slow clients.
QUIET_SECONDS, SLOW_SECONDS = (10, 20) if FULL else (2, 4)
# The size for a slow reader: more than the kernel buffers.
SLOW_BYTES = 4 << 20

KILLS = 20 if FULL else 5
BUSY_CLIENTS = 64

AT_ONCE = 1000
WORKERS = 4
QUEUE_MAX = 100
WORK_SECONDS = 0.05
# The total includes time that no other clock counts: the server's own work, and its wait for a busy
# processor, which others share in CI. Single requests may wait long for one, half of them do not.
TIMES_APART_MAX = 0.05 if FULL else 0.25
# The parts are rounded to milliseconds.
CLOCK_STEP = 0.005

IDLE = 15_000 if FULL else 2_000
IDLE_BYTES_MAX = 1536
# Opened before the first look and not counted: code that runs for the first time costs memory once.
IDLE_WARM_UP = 100
# Connections from one address.
IDLE_EACH = 5_000

# header_timeout, body_rate_grace, body_idle_timeout and idle_timeout, in seconds.
LIMITS = (10, 10, 30, 75) if FULL else (1, 1, 2.5, 4.5)
EARLY_MAX, LATE_MAX = 0.2, 2.5

PATIENCE = 60

CONFIG = """
[server]
threads = 2
access_log = {{ path = "access.log", format = "json" }}
{limits}
[apps.app]
entry = "{entry}"
processes = {processes}
{app}
"""

APP = """\
import time


def application(environ, start_response):
    path, value = environ["PATH_INFO"], environ["QUERY_STRING"]
    if path == "/pause":
        time.sleep(float(value))
    body = b"x" * (int(value) if path == "/large" else 6)
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body]
"""

# Both return the length and digest of a request's body; `/stream?n` is n pieces, as `pieces` makes
# them.
VALIDATED = """\
import hashlib
from wsgiref.validate import validator


def plain(environ, start_response):
    path = environ["PATH_INFO"]
    if path == "/none":
        start_response("204 No Content", [])
        return []
    if path == "/stream":
        start_response("200 OK", [("Content-Type", "text/plain")])
        return (b"%015d\\n" % n * 4096 for n in range(int(environ["QUERY_STRING"])))
    size, digest = 0, hashlib.sha256()
    while piece := environ["wsgi.input"].read(65536):
        size += len(piece)
        digest.update(piece)
    text = f"{size} {digest.hexdigest()}".encode()
    fields = [("Content-Type", "text/plain"), ("Content-Length", str(len(text)))]
    start_response("200 OK", [] if path == "/wrong" else fields)
    return [text]


application = validator(plain)
"""

LINTED = """\
require "digest"
# Lint of Rack 2.2 parses URIs and leaves loading that to others.
require "uri"

use Rack::Lint
run(lambda do |env|
  kind = { "Content-Type" => "text/plain" }
  case env["PATH_INFO"]
  when "/none" then next [204, {}, []]
  when "/wrong" then next [200, { "Content-Type" => 1 }, []]
  when "/stream"
    count = Integer(env["QUERY_STRING"])
    next [200, kind, (0...count).lazy.map { |n| format("%015d\\n", n) * 4096 }]
  end
  size, digest = 0, Digest::SHA256.new
  while (piece = env["rack.input"].read(65_536))
    size += piece.bytesize
    digest << piece
  end
  text = "#{size} #{digest.hexdigest}"
  body = env["REQUEST_METHOD"] == "HEAD" ? [] : [text]
  [200, kind.merge("Content-Length" => text.bytesize.to_s), body]
end)
"""


def say(text):
    print(f"serving: {text}", flush=True)


def milliseconds(*seconds):
    return ", ".join(f"{1000 * it:.1f}" for it in seconds) + " ms"


def pieces(size):
    """Returns a body of this size in which every misplaced byte shows."""
    return (b"%015d\n" % number * 4096 for number in range(size >> 16))


class ServingCase(RealCase):
    @classmethod
    def serve(cls, code=APP, file="app.py", processes=1, app="", limits=""):
        """Serves the application on the real server; its access log is `cls.log`."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        cls.addClassCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        folder = cls.folder()
        (folder / file).write_text(code)
        entry = file if file.endswith(".ru") else "app:application"
        config = folder / "penstock.toml"
        config.write_text(CONFIG.format(entry=entry, processes=processes, app=app, limits=limits))
        cls.log = folder / "access.log"
        cls.server = cls.enterClassContext(Front(config))

    def connect(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=PATIENCE)
        return contextlib.closing(connection)

    def connect_plainly(self, source=None):
        return socket.create_connection(("127.0.0.1", self.server.port), PATIENCE, source)

    def wait_used(self, count):
        def look():
            return self.server.status()["connections"]["used"] == count

        until(f"{count} connections", look, PATIENCE)

    def app(self):
        """Returns the status of the application."""
        (app,) = self.server.status()["apps"]
        return app


class Validated:
    """The rules that any application and its validator may rely on."""

    LENGTH = {"Content-Length": BODY_BYTES}

    @classmethod
    def setUpClass(cls):
        cls.serve(cls.CODE, cls.FILE)
        until("the worker says that it is ready", cls.is_started, PATIENCE)
        cls.started = len(cls.server.lines)

    @classmethod
    def is_started(cls):
        return any(re.search(r"\]: ready in ", line) for line in cls.server.lines)

    def test_the_validator_finds_nothing_and_the_server_keeps_no_body(self):
        self.small_bodies()
        for act in (self.upload, self.upload_chunked, self.download):
            began = time.monotonic()
            act()
            took = time.monotonic() - began
            say(f"{self.NAME}: {act.__name__} of {BODY_BYTES >> 20} MiB took {took:.1f} s")
        peak = self.server.memory_peak()
        say(f"{self.NAME}: the server's peak is {peak / (1 << 20):.1f} MiB")
        self.assertLess(peak, SERVER_BYTES_MAX)
        self.assertEqual(self.server.lines[self.started :], [])
        # The validator notices errors.
        self.assertEqual(self.server.get("/wrong").status, 500)

    def small_bodies(self):
        # An iterated body is sent in chunks.
        rows = [
            ("a GET", "GET", None, b""),
            ("a POST", "POST", b"gauge=1.25", b"gauge=1.25"),
            ("no bytes", "POST", b"", b""),
            ("chunks", "POST", iter([b"ga", b"uge", b"=" * 10]), b"gauge" + b"=" * 10),
            ("no chunks", "POST", iter([]), b""),
        ]
        for name, method, body, sent in rows:
            with self.subTest(name):
                answer = self.server.request(method, "/a%20b?q=1", body)
                text = f"{len(sent)} {hashlib.sha256(sent).hexdigest()}"
                self.assertEqual((answer.status, answer.text), (200, text))
        head = self.server.request("HEAD", "/")
        self.assertEqual((head.status, head.body, head.headers["Content-Length"]), (200, b"", "66"))
        none = self.server.get("/none")
        self.assertEqual((none.status, none.body), (204, b""))

    def upload_chunked(self):
        self.upload({})

    def upload(self, fields=LENGTH):
        digest = hashlib.sha256()

        def sent():
            for piece in pieces(BODY_BYTES):
                digest.update(piece)
                yield piece

        with self.connect() as connection:
            connection.request("POST", "/", sent(), fields)
            answer = connection.getresponse()
            text = answer.read().decode()
        self.assertEqual((answer.status, text), (200, f"{BODY_BYTES} {digest.hexdigest()}"))

    def download(self):
        with self.connect() as connection:
            connection.request("GET", f"/stream?{BODY_BYTES >> 16}")
            answer = connection.getresponse()
            self.assertEqual(answer.status, 200)
            for number, piece in enumerate(pieces(BODY_BYTES)):
                self.assertEqual(answer.read(len(piece)), piece, f"piece {number}")
            self.assertEqual(answer.read(), b"")


class ValidatedWsgi(Validated, ServingCase):
    NAME, CODE, FILE = "wsgiref.validate", VALIDATED, "app.py"


class ValidatedRack(Validated, ServingCase):
    NAME, CODE, FILE = "Rack::Lint", LINTED, "config.ru"


class SlowClient:
    """Sends or reads one byte each `step`, and connects again when it is closed."""

    BEGINNINGS = {
        "head": "GET / HTTP/1.1\r\nHost: a\r\nX-Slow: ",
        "body": "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n",
        "reader": f"GET /large?{SLOW_BYTES} HTTP/1.1\r\nHost: a\r\n\r\n",
    }

    def __init__(self, kind, port):
        self.kind, self.port = kind, port
        # The first bytes of each final response.
        self.ends = []
        self.open()

    def open(self):
        self.socket = socket.socket()
        if self.kind == "reader":
            # Set before it connects, for the smallest window.
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.settimeout(PATIENCE)
        self.socket.connect(("127.0.0.1", self.port))
        self.socket.sendall(self.BEGINNINGS[self.kind].encode())
        self.socket.setblocking(False)

    def step(self):
        is_reader = self.kind == "reader"
        heard = b""
        with contextlib.suppress(ConnectionError):
            if not self.is_ended():
                with contextlib.suppress(BlockingIOError):
                    self.socket.recv(1) if is_reader else self.socket.send(b"a")
                return
            heard = self.socket.recv(12)
        self.ends.append("cut" if is_reader else heard.decode())
        self.socket.close()
        self.open()

    def is_ended(self):
        """Returns whether the server has closed, even with bytes left to read."""
        poll = select.poll()
        poll.register(self.socket, select.POLLRDHUP)
        return bool(poll.poll(0))


@contextlib.contextmanager
def slow_clients(count, port):
    """Runs `count` clients of all kinds, each with a step a second."""
    kinds = itertools.islice(itertools.cycle(SlowClient.BEGINNINGS), count)
    clients = [SlowClient(kind, port) for kind in kinds]
    end = threading.Event()

    def step():
        for client in itertools.cycle(clients):
            if end.wait(1 / count):
                return
            client.step()

    thread = threading.Thread(target=step, daemon=True)
    thread.start()
    try:
        yield clients
    finally:
        end.set()
        thread.join(PATIENCE)
        for client in clients:
            client.socket.close()


class BesideSlowClients(ServingCase):
    @classmethod
    def setUpClass(cls):
        cls.serve(processes=2)

    def test_a_quick_client_is_answered_beside_many_slow_ones(self):
        alone = self.quick_client(QUIET_SECONDS)
        with slow_clients(SLOW_CLIENTS, self.server.port) as slow:
            until("the slow ones are there", self.slow_are_there, PATIENCE)
            beside = self.quick_client(SLOW_SECONDS)
            until("they are still", self.slow_are_there, PATIENCE)
        for name, times in [("alone", alone), (f"beside {SLOW_CLIENTS} slow ones", beside)]:
            cuts = statistics.quantiles(times, n=100)
            say(f"{len(times)} requests {name}: p50, p99: {milliseconds(cuts[49], cuts[98])}")
        ends = collections.Counter((it.kind, how) for it in slow for how in it.ends)
        say(f"slow ones ended: {dict(ends)}")
        self.assertLessEqual({how for kind, how in ends if kind != "reader"}, {"HTTP/1.1 408"})

    def slow_are_there(self):
        # The workers are done with the large responses.
        is_quiet = self.app()["queue"]["active"] == 0
        return is_quiet and self.server.status()["connections"]["used"] >= SLOW_CLIENTS

    def quick_client(self, seconds):
        """Sends a request a hundred times a second; returns the times of the responses."""
        times, pace, deadline = [], threading.Event(), time.monotonic() + seconds
        while time.monotonic() < deadline:
            began = time.monotonic()
            self.assertEqual(self.server.get("/").status, 200)
            times.append(time.monotonic() - began)
            pace.wait(0.01)
        return times


class BusyClient(threading.Thread):
    """Sends requests on one connection without a pause; records all but 200."""

    def __init__(self, connection, target, end):
        super().__init__(daemon=True)
        self.answers, self.failures = 0, []
        self._connection, self._target, self._end = connection, target, end

    def run(self):
        while not self._end.is_set():
            try:
                self._connection.request("GET", self._target)
                answer = self._connection.getresponse()
                status, text = answer.status, answer.read().decode()
            except (OSError, http.client.HTTPException) as error:
                status, text = None, repr(error)
                self._connection.close()
            self.answers += 1
            if status != 200:
                self.failures.append((status, text))


class KilledWorkers(ServingCase):
    @classmethod
    def setUpClass(cls):
        cls.serve(processes=WORKERS)

    def test_a_death_costs_at_most_the_request_inside(self):
        for target in ("/pause?0.01", "/"):
            with self.subTest(target):
                self.kill_under_load(target)

    def kill_under_load(self, target):
        with contextlib.ExitStack() as stack:
            end = threading.Event()
            connections = [stack.enter_context(self.connect()) for _ in range(BUSY_CLIENTS)]
            self.clients = [BusyClient(connection, target, end) for connection in connections]
            for client in self.clients:
                client.start()
                stack.callback(client.join, PATIENCE)
            stack.callback(end.set)
            self.wait_more_answers()
            seconds, costs = zip(*map(self.kill, range(KILLS)), strict=True)
        self.assertEqual(len(self.failures()), sum(costs), "failed without a death")
        for status, text in self.failures():
            self.assertEqual(status, 502, text)
            self.assertIn("worker ended", text)
        shown = milliseconds(min(seconds), statistics.median(seconds), max(seconds))
        answers = sum(client.answers for client in self.clients)
        say(
            f"{target}: {KILLS} deaths cost {sum(costs)} of {answers} requests; all workers ready"
            f" after (least, median, most) {shown}"
        )

    def kill(self, number):
        """Kills a worker; returns the seconds until all are there, and the requests it cost."""
        known = len(self.failures())
        pid = self.ready()[number % WORKERS]
        began = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        until("all are ready", lambda: len({*self.ready()} - {pid}) == WORKERS, PATIENCE)
        took = time.monotonic() - began
        self.wait_more_answers()
        cost = len(self.failures()) - known
        self.assertLessEqual(cost, 1)
        return took, cost

    def ready(self):
        """Returns the process ids of the serving workers."""
        return [it["pid"] for it in self.app()["workers"] if it["state"] == "ready"]

    def failures(self):
        return [it for client in self.clients for it in client.failures]

    def wait_more_answers(self):
        """Waits until every client has had a response to a new request."""
        enough = [client.answers + 2 for client in self.clients]

        def look():
            return all(it.answers >= count for it, count in zip(self.clients, enough, strict=True))

        until("all clients are answered", look, PATIENCE)


class Overload(ServingCase):
    @classmethod
    def setUpClass(cls):
        cls.serve(processes=WORKERS, app=f"queue = {{ max = {QUEUE_MAX} }}")

    def test_what_cannot_wait_is_refused_at_once_and_all_times_add_up(self):
        answers = self.ask_all()
        accepted = [took for status, _, took in answers if status == 200]
        refused = [took for status, again, took in answers if (status, again) == (503, "1")]
        self.assertEqual(len(accepted) + len(refused), AT_ONCE)
        say(
            f"{AT_ONCE} at once: {len(accepted)} accepted, the last answered after"
            f" {milliseconds(max(accepted))}; {len(refused)} refused, median and last after"
            f" {milliseconds(statistics.median(refused), max(refused))}"
        )
        self.assertLess(max(refused), max(accepted))
        # Besides those that fit: as many as are answered before the last request has come.
        answered = WORKERS * int(max(refused) / WORK_SECONDS + 1)
        self.assertGreaterEqual(len(accepted), WORKERS + QUEUE_MAX)
        self.assertLessEqual(len(accepted), WORKERS + QUEUE_MAX + answered)
        self.check_times(len(accepted))

    def ask_all(self):
        """Returns status, `Retry-After` and seconds of each response."""
        request = f"GET /pause?{WORK_SECONDS} HTTP/1.1\r\nHost: a\r\n\r\n".encode()
        answers = []
        with contextlib.ExitStack() as stack:
            waiting = stack.enter_context(selectors.DefaultSelector())
            for _ in range(AT_ONCE):
                client = stack.enter_context(self.connect_plainly())
                waiting.register(client, selectors.EVENT_READ)
            # Connections opened later would come after the first responses.
            self.wait_used(AT_ONCE)
            began = time.monotonic()
            for key in [*waiting.get_map().values()]:
                key.fileobj.sendall(request)
            while waiting.get_map():
                for key, _ in waiting.select(PATIENCE) or self.fail("no answers any more"):
                    took = time.monotonic() - began
                    head = key.fileobj.recv(4096).decode().partition("\r\n\r\n")[0].lower()
                    again = re.search(r"^retry-after: (\d+)", head, re.MULTILINE)
                    answers.append((int(head.split()[1]), again and again[1], took))
                    waiting.unregister(key.fileobj)
        return answers

    def check_times(self, accepted):
        """Checks that queue and application time of each accepted request add up to its total."""
        until("the log is written", lambda: self.log.read_text().count("\n") == AT_ONCE, PATIENCE)
        lines = [json.loads(line) for line in self.log.read_text().splitlines()]
        lines = [line for line in lines if line["status"] == 200]
        self.assertEqual(len(lines), accepted)
        apart = [it["total_time"] - it["queue_time"] - it["app_time"] for it in lines]
        waited = max(it["queue_time"] for it in lines)
        say(
            f"queued for up to {milliseconds(waited)}; total less queue and application:"
            f" {milliseconds(min(apart), max(apart))}"
        )
        self.assertGreater(min(apart), -CLOCK_STEP)
        self.assertLess(statistics.median(apart), TIMES_APART_MAX)
        self.assertGreaterEqual(min(it["app_time"] for it in lines), WORK_SECONDS)


class IdleConnections(ServingCase):
    @classmethod
    def setUpClass(cls):
        cls.serve()

    def test_an_idle_connection_costs_little_memory(self):
        with contextlib.ExitStack() as stack:
            self.open(stack, IDLE_WARM_UP)
        self.wait_used(0)
        before = self.server.memory()
        with contextlib.ExitStack() as stack:
            self.open(stack, IDLE)
            self.wait_used(IDLE)
            during = self.server.memory()
        self.wait_used(0)
        each = {kind: (during[kind] - before[kind]) / IDLE for kind in before}
        shown = ", ".join(f"{kind} {size:.0f}" for kind, size in each.items())
        say(f"{IDLE} idle connections, bytes each: {shown}")
        self.assertLessEqual(max(each.values()), IDLE_BYTES_MAX)

    def open(self, stack, count):
        """Opens connections, each kept after a request."""
        for number in range(count):
            source = f"127.0.10.{1 + number // IDLE_EACH}", 0
            client = stack.enter_context(self.connect_plainly(source))
            client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nUser-Agent: idle\r\nAccept: */*\r\n\r\n")
            answer = b""
            while not answer.endswith(b"\r\n\r\nxxxxxx"):
                answer += client.recv(1024) or self.fail(f"closed after {answer!r}")
            self.assertTrue(answer.startswith(b"HTTP/1.1 200 "), answer)


class TimeOuts(ServingCase):
    """The limit for each kind of slow client closes it, however it dribbles."""

    POST = "POST / HTTP/1.1\r\nHost: a\r\n"
    BODY = f"{POST}Content-Length: 200000\r\n\r\n"
    CHUNKED = f"{POST}Transfer-Encoding: chunked\r\n\r\n"
    HEADER, GRACE, STALL, IDLE = range(4)
    # The bytes sent at once, those dribbled then, and the limit that closes the connection.
    ROWS = {
        "a head that stalls": ("GET / HTTP/1.1\r\nHo", "", HEADER),
        "a head that dribbles": ("GET / HTTP/1.1\r\nHost: a\r\nX: ", "a", HEADER),
        "a body that never comes": (BODY, "", GRACE),
        "chunks that never come": (CHUNKED, "", GRACE),
        "a body that dribbles": (BODY, "a", GRACE),
        "chunks that dribble": (CHUNKED, "1\r\na\r\n", GRACE),
        "a body that stalls": (BODY + "a" * 50_000, "", STALL),
        "chunks that stall": (f"{CHUNKED}C350\r\n{'a' * 50_000}\r\n", "", STALL),
        "a new connection": ("", "", HEADER),
        "a kept connection": ("", "", IDLE),
    }

    @classmethod
    def setUpClass(cls):
        names = "header_timeout", "body_rate_grace", "body_idle_timeout", "idle_timeout"
        set_to = [f'{name} = "{int(1000 * it)}ms"' for name, it in zip(names, LIMITS, strict=True)]
        cls.serve(limits="" if FULL else "\n".join(["[limits]", *set_to]))

    def test_who_is_slow_is_ended_at_the_moment_that_is_said(self):
        ends = asyncio.run(asyncio.wait_for(self.watch_all(), LIMITS[self.IDLE] + PATIENCE))
        for name, (answer, took) in ends.items():
            say(f"{name}: {answer or 'closed'} after {took:.2f} s")
        for name, (answer, took) in ends.items():
            begun, _, limit = self.ROWS[name]
            with self.subTest(name):
                # A client that has begun no request gets no response.
                self.assertEqual(answer, "HTTP/1.1 408" if begun else "")
                self.assertGreater(took, LIMITS[limit] - EARLY_MAX)
                self.assertLess(took, LIMITS[limit] + LATE_MAX)
        by_moment = sorted(ends, key=lambda name: ends[name][1])
        order = [LIMITS[self.ROWS[name][-1]] for name in by_moment]
        self.assertEqual(order, sorted(order), by_moment)
        # Only the kept connection's request is counted.
        self.assertEqual(self.app()["counters"]["requests"], 1)

    async def watch_all(self):
        ends = await asyncio.gather(*(self.watch(name) for name in self.ROWS))
        return dict(zip(self.ROWS, ends, strict=True))

    async def watch(self, name):
        """Returns the beginning of the response, if any, and the seconds until the connection
        closed."""
        begun, dribbled, _ = self.ROWS[name]
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        if name == "a kept connection":
            writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            await reader.readuntil(b"xxxxxx")
        began = time.monotonic()
        writer.write(begun.encode())
        dribble = asyncio.create_task(self.dribble(writer, dribbled.encode()))
        answer = await reader.read(12)
        took = time.monotonic() - began
        dribble.cancel()
        with contextlib.suppress(ConnectionResetError):
            await reader.read()
        writer.close()
        return answer.decode(), took

    async def dribble(self, writer, dribbled):
        while dribbled:
            await asyncio.sleep(LIMITS[self.HEADER] / 10)
            writer.write(dribbled)


if __name__ == "__main__":
    unittest.main()
