"""HTTP requests to ASGI applications: real worker processes; the test plays the server."""

import json
import os
import signal
import unittest

from channel_harness import ReactorWorker, channel, gone, open_frame, wire

# Each test requests a path; the function of that name is the application.
APP = """
import asyncio, contextvars, os, signal, sys

async def application(scope, receive, send):
    if scope["type"] == "lifespan":
        raise NotImplementedError
    await globals()[scope["path"][1:]](scope, receive, send)

async def start(send, status=200, headers=()):
    await send({"type": "http.response.start", "status": status, "headers": headers})

async def body(send, body=b"", more=False):
    await send({"type": "http.response.body", "body": body, "more_body": more})

async def hello(scope, receive, send):
    await start(send, headers=[(b"content-type", b"text/plain")])
    await body(send, b"hello")

async def echo(scope, receive, send):
    parts = []
    while True:
        event = await receive()
        parts.append(event["body"])
        if not event["more_body"]:
            break
    await start(send, headers=[[b"x-events", b"%d" % len(parts)]])
    await body(send, b"".join(parts))

async def show(scope, receive, send):
    await start(send)
    await body(send, repr(scope).encode())

async def stream(scope, receive, send):
    await start(send)
    for piece in (b"one", b"", b"two"):
        await body(send, piece, True)
    await body(send, b"three")

release = None

async def wait(scope, receive, send):
    global release
    release = release or asyncio.Event()
    await release.wait()
    await hello(scope, receive, send)

async def go(scope, receive, send):
    release.set()
    await hello(scope, receive, send)

async def large(scope, receive, send):
    await start(send)
    for letter in b"abcdefgh":
        await body(send, bytes([letter]) * 100_000, True)
    await body(send)
    sys.stderr.write("large is done\\n")

async def huge(scope, receive, send):
    await start(send)
    await body(send, b"x" * (33 << 20))

async def whole(scope, receive, send):
    await start(send)
    await body(send, b"x" * (4 << 20))

async def left(scope, receive, send):
    await receive()
    event = await receive()
    sys.stderr.write(f"received {event['type']}\\n")
    try:
        await start(send)
    except OSError as error:
        sys.stderr.write(f"send raised OSError: {error}\\n")

async def careless(scope, receive, send):
    await receive()
    await receive()
    await hello(scope, receive, send)

async def wrapped(scope, receive, send):
    await receive()
    await receive()
    try:
        await hello(scope, receive, send)
    except OSError as error:
        raise ValueError("framework's own") from error

async def twice(scope, receive, send):
    async def one():
        return (await receive())["type"]
    await receive()
    tasks = [asyncio.ensure_future(one()) for _ in range(3)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    await hello(scope, receive, send)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    sys.stderr.write(f"receivers: {[r if isinstance(r, str) else type(r).__name__ for r in results]}\\n")

async def raise_early(scope, receive, send):
    raise ValueError("before the head")

async def raise_after_start(scope, receive, send):
    await start(send)
    raise ValueError("after start")

async def raise_late(scope, receive, send):
    await start(send)
    await body(send, b"part", True)
    raise ValueError("in the stream")

async def raise_after_end(scope, receive, send):
    await hello(scope, receive, send)
    raise ValueError("after the end")

async def leave_system(scope, receive, send):
    sys.exit(3)

async def cancel_self(scope, receive, send):
    raise asyncio.CancelledError

async def task_exits(scope, receive, send):
    async def leave():
        raise SystemExit(4)
    task = asyncio.ensure_future(leave())
    await asyncio.wait([task])
    await hello(scope, receive, send)

async def nothing(scope, receive, send):
    pass

async def half(scope, receive, send):
    await start(send)

async def unfinished(scope, receive, send):
    await start(send)
    await body(send, b"part", True)

async def no_head(scope, receive, send):
    await body(send, b"x")

async def two_heads(scope, receive, send):
    await start(send)
    await start(send)

async def wrong_kind(scope, receive, send):
    await send({"type": "http.response.end"})

async def after_end(scope, receive, send):
    await hello(scope, receive, send)
    try:
        await body(send, b"more")
    except RuntimeError as error:
        sys.stderr.write(f"refused: {error}\\n")

async def text_body(scope, receive, send):
    await start(send)
    await body(send, "text")

async def view_body(scope, receive, send):
    await start(send)
    await body(send, memoryview(b"view"))

async def split_header(scope, receive, send):
    await start(send, headers=[(b"x", b"a\\r\\nset-cookie: b")])

async def text_header(scope, receive, send):
    await start(send, headers=[("x", "a")])

async def bad_status(scope, receive, send):
    await start(send, 99)

variable = contextvars.ContextVar("variable", default="unset")

async def context(scope, receive, send):
    seen = variable.get()
    variable.set("set")
    await start(send)
    await body(send, seen.encode())

async def spin(scope, receive, send):
    import time
    sys.stderr.write("spinning\\n")
    end = time.monotonic() + 20
    while time.monotonic() < end and not os.path.exists("enough"):
        pass
    await hello(scope, receive, send)

async def fork(scope, receive, send):
    if os.fork() == 0:
        return
    await hello(scope, receive, send)

async def after_response(scope, receive, send):
    await hello(scope, receive, send)
    await asyncio.sleep(0.2)
    sys.stderr.write("background work is done\\n")
"""


class Http(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.worker = ReactorWorker(APP)
        cls.worker.__enter__().ready()

    @classmethod
    def tearDownClass(cls):
        cls.worker.__exit__()

    stream = 100

    def ask(self, path, body=b"", flags=0, **scope):
        type(self).stream += 1
        return self.worker.ask(open_frame(self.stream, body, flags, path="/" + path, **scope))

    def wait_for_log(self, text):
        """Reads responses until the log has the text: every response comes after what it logs."""
        for _ in range(1000):
            if text in self.worker.log():
                return
            self.ask("hello")
        self.fail(f"{text!r} is not in {self.worker.log()}")

    def test_a_whole_response_is_one_frame(self):
        answer = self.ask("hello")
        self.assertEqual(answer.strings, ["200", "content-type", "text/plain"])
        self.assertEqual((answer.body, answer.kinds), (b"hello", [channel.STREAM_RESPONSE]))

    def test_the_scope_is_complete(self):
        scope = eval(self.ask("show", query_string=b"a=1", method="PUT").body)
        self.assertEqual(scope["asgi"], {"version": "3.0", "spec_version": "2.3"})
        self.assertEqual((scope["extensions"], scope["state"]), ({}, {}))
        self.assertEqual((scope["method"], scope["query_string"]), ("PUT", b"a=1"))
        self.assertEqual(scope["headers"][0], (b"host", b"example.com"))
        self.assertEqual(scope["client"], ("127.0.0.1", 40000))

    def test_a_session_of_tls_stays_in_the_extensions(self):
        extensions = {"tls": {"server_cert": None, "tls_version": 772}}
        scope = eval(self.ask("show", extensions=extensions).body)
        self.assertEqual(scope["extensions"], extensions)

    def test_a_body_comes_at_once(self):
        answer = self.ask("echo", b"x" * 300_000)
        self.assertEqual((answer.header("x-events"), len(answer.body)), ("1", 300_000))

    def test_a_body_file_comes_in_pieces(self):
        content = os.urandom(200_001)
        for size, events in ((200_001, "4"), (1 << 16, "1"), (1, "1"), (0, "1")):
            with self.subTest(size):
                self.worker.send_file(self.stream + 1, content[:size])
                answer = self.ask("echo", flags=wire.FLAG_BODY_FILE)
                self.assertEqual((answer.header("x-events"), answer.body), (events, content[:size]))

    def test_body_files_do_not_stay_open(self):
        before = len(os.listdir(f"/proc/{self.worker.process.pid}/fd"))
        for path in ("hello", "raise_early", "echo"):
            self.worker.send_file(self.stream + 1, b"content")
            self.ask(path, flags=wire.FLAG_BODY_FILE)
        self.ask("hello")
        self.assertEqual(len(os.listdir(f"/proc/{self.worker.process.pid}/fd")), before)

    def test_a_stream_leaves_piece_by_piece(self):
        answer = self.ask("stream")
        self.assertEqual(answer.body, b"onetwothree")
        self.assertEqual(answer.kinds, [channel.STREAM_RESPONSE, channel.DATA, channel.DATA])
        self.assertEqual(answer.parts[0].flags, wire.FLAG_STREAM)

    def test_a_slow_window_stops_its_stream_alone(self):
        worker = self.worker
        worker.send(open_frame(1, path="/large"))
        slow = worker.answer(1)
        worker.read_until(lambda: slow.size == channel.WINDOW_BYTES)
        for _ in range(20):
            self.assertEqual(self.ask("hello").body, b"hello")
        self.assertEqual(len(slow.body), channel.WINDOW_BYTES)
        worker.send(channel.encode_window(1, 10))
        worker.read_until(lambda: slow.size == channel.WINDOW_BYTES + 10)
        worker.send(channel.encode_window(1, 1 << 20))
        worker.read_until(lambda: slow.is_ended)
        self.assertEqual(slow.body, b"".join(bytes([letter]) * 100_000 for letter in b"abcdefgh"))
        worker.answers.pop(1)

    def test_a_body_beyond_the_whole_is_streamed(self):
        worker = self.worker
        worker.send(open_frame(2, path="/huge"))
        answer = worker.answer(2)
        while not answer.is_ended:
            before = answer.size
            worker.read()
            if answer.size > before:
                worker.send(channel.encode_window(2, answer.size - before))
        self.assertEqual(answer.size, 33 << 20)
        worker.answers.pop(2)

    def test_thousand_requests_at_once(self):
        worker = self.worker
        streams = range(1000, 2000)
        worker.send(*(open_frame(stream, path="/wait") for stream in streams))
        worker.send(open_frame(3, path="/go"))
        worker.read_until(lambda: all(worker.answer(stream).is_ended for stream in streams))
        self.assertEqual({worker.answer(stream).body for stream in streams}, {b"hello"})
        for stream in (3, *streams):
            worker.answers.pop(stream)

    def test_more_than_the_socket_holds_waits_for_the_server(self):
        worker = self.worker
        streams = range(2000, 2012)
        worker.send(*(open_frame(stream, path="/whole") for stream in streams))
        worker.read_until(lambda: all(worker.answer(stream).is_ended for stream in streams))
        self.assertEqual({worker.answers.pop(stream).size for stream in streams}, {4 << 20})

    def test_a_client_that_leaves(self):
        self.worker.send(open_frame(4, path="/left"), gone(4))
        answer = self.worker.answer(4)
        self.worker.read_until(lambda: answer.is_ended)
        self.assertEqual((answer.reason, answer.status), ("cancelled", None))
        self.wait_for_log("received http.disconnect\nsend raised OSError: the client has left\n")
        self.worker.answers.pop(4)

    def test_a_client_that_leaves_is_no_error(self):
        for path in ("careless", "wrapped"):
            before = self.worker.log().count("error in")
            self.worker.send(open_frame(5, path="/" + path), gone(5))
            self.worker.read_until(lambda: self.worker.answer(5).is_ended)
            self.assertEqual(self.worker.answers.pop(5).reason, "cancelled")
            self.assertEqual(self.worker.log().count("error in"), before)

    def test_a_client_that_leaves_a_waiting_stream(self):
        worker = self.worker
        worker.send(open_frame(6, path="/large"))
        slow = worker.answer(6)
        worker.read_until(lambda: slow.size == channel.WINDOW_BYTES)
        worker.send(gone(6))
        worker.read_until(lambda: slow.is_ended)
        self.assertEqual(worker.answers.pop(6).reason, "cancelled")

    def test_what_comes_for_an_ended_stream_is_ignored(self):
        self.ask("hello")
        self.worker.send(gone(self.stream), channel.encode_window(self.stream, 5))
        self.assertEqual(self.ask("hello").body, b"hello")

    def test_several_receivers_wait_and_one_is_cancelled(self):
        self.ask("twice")
        self.wait_for_log("receivers: ['CancelledError', 'http.disconnect', 'http.disconnect']\n")

    def test_exceptions(self):
        for path, reason, kinds in (
            ("raise_early", "application raised ValueError", [channel.RESET]),
            ("raise_after_start", "application raised ValueError", [channel.RESET]),
            (
                "raise_late",
                "application raised ValueError",
                [channel.STREAM_RESPONSE, channel.RESET],
            ),
            ("leave_system", "application raised SystemExit", [channel.RESET]),
            ("cancel_self", "application raised CancelledError", [channel.RESET]),
        ):
            with self.subTest(path):
                answer = self.ask(path)
                self.assertEqual((answer.reason, answer.kinds), (reason, kinds))
                self.assertEqual(answer.parts[-1].flags, 0)
                self.assertIn(f"error in GET /{path}\nTraceback (most recent", self.worker.log())
                self.assertNotIn("await app(", self.worker.log())
        self.assertEqual(self.ask("raise_after_end").body, b"hello")
        self.wait_for_log("ValueError: after the end")

    def test_a_task_that_exits_does_not_end_the_worker(self):
        self.assertEqual(self.ask("task_exits").body, b"hello")
        self.assertEqual(self.ask("hello").body, b"hello")

    def test_responses_that_are_not_complete(self):
        for path, reason, flags in (
            ("nothing", "no response", wire.FLAG_PROTOCOL_ERROR),
            ("half", "no response", wire.FLAG_PROTOCOL_ERROR),
            ("unfinished", "the response is not complete", 0),
        ):
            with self.subTest(path):
                answer = self.ask(path)
                self.assertEqual((answer.reason, answer.parts[-1].flags), (reason, flags))
                self.assertIn(f"error in GET /{path}\nthe application returned", self.worker.log())

    def test_broken_rules_are_named(self):
        for path, reason in (
            ("no_head", "'http.response.body' before 'http.response.start'"),
            ("two_heads", "'http.response.start' after 'http.response.start'"),
            ("wrong_kind", "'http.response.end' before 'http.response.start'"),
            ("text_body", "a body of str, not bytes"),
            ("split_header", "bad headers: a control character"),
            (
                "text_header",
                "bad headers: sequence item 1: expected a bytes-like object, str found",
            ),
            ("bad_status", "a status of 99"),
        ):
            with self.subTest(path):
                answer = self.ask(path)
                self.assertEqual(answer.reason, reason)
                self.assertEqual(answer.parts[-1].flags, wire.FLAG_PROTOCOL_ERROR)
        self.assertEqual(self.ask("view_body").body, b"view")
        self.ask("after_end")
        self.wait_for_log("refused: 'http.response.body' after the end\n")

    def test_each_request_has_a_context_of_its_own(self):
        self.assertEqual([self.ask("context").body for _ in range(2)], [b"unset", b"unset"])

    def test_what_the_application_forks_does_not_answer(self):
        self.assertEqual(self.ask("fork").body, b"hello")
        self.wait_for_log("forked by the application, came back from it and was ended")
        self.assertEqual(self.ask("hello").body, b"hello")

    def test_an_id_comes_back_while_the_application_still_works(self):
        worker = self.worker
        for _ in range(2):
            self.assertEqual(worker.ask(open_frame(7, path="/after_response")).body, b"hello")
        self.assertEqual(worker.ask(open_frame(7, path="/hello")).body, b"hello")

    def test_stacks_of_tasks_on_sigquit(self):
        worker = self.worker
        worker.send(open_frame(8, path="/left"))
        self.ask("hello")
        worker.process.send_signal(signal.SIGQUIT)
        self.wait_for_log("stack of every task (pid ")
        self.assertIn("GET /left\n", worker.log())
        self.assertIn(", in left\n", worker.log())
        # The event loop itself is busy.
        worker.send(open_frame(9, path="/spin"))
        while "spinning" not in worker.log():
            pass
        worker.process.send_signal(signal.SIGQUIT)
        while worker.log().count("stack of every task (pid ") < 2:
            pass
        self.assertRegex(worker.log(), r"in spin\n")
        open(os.path.join(worker.folder.name, "enough"), "w").close()
        worker.send(gone(8))
        worker.read_until(lambda: worker.answer(8).is_ended and worker.answer(9).is_ended)
        self.assertEqual(worker.answers.pop(9).body, b"hello")
        worker.answers.pop(8)


class End(unittest.TestCase):
    def test_background_work_is_waited_for(self):
        with ReactorWorker(APP) as worker:
            worker.ready().ask(open_frame(1, path="/after_response"))
            worker.channel.sock.close()
            self.assertEqual(worker.wait(), 0)
            self.assertIn("background work is done", worker.log())

    def test_what_never_ends_is_cancelled(self):
        with ReactorWorker(APP, stop_timeout=0.2) as worker:
            worker.ready().send(open_frame(1, path="/wait"))
            worker.ask(open_frame(2, path="/hello"))
            worker.channel.sock.close()
            self.assertEqual(worker.wait(), 0)
            self.assertEqual(worker.log(), "")

    def test_nonsense_ends_the_process(self):
        for frame in (
            channel.encode_data(1, 0, b"x"),
            channel.encode_message(1, 0, b"x"),
            open_frame(1, environ=b"\xff\xff"),
        ):
            with self.subTest(frame), ReactorWorker(APP) as worker:
                worker.ready().send(open_frame(1, path="/wait"), frame)
                self.assertEqual(worker.wait(), 1)
                self.assertIn("WireError", worker.log())

    def test_another_stream_s_body_ends_the_process(self):
        with ReactorWorker(APP) as worker:
            worker.ready().send_file(2, b"theirs")
            worker.send(open_frame(1, b"", wire.FLAG_BODY_FILE, path="/echo"))
            self.assertEqual(worker.wait(), 1)
            self.assertIn("promised a body file, and got stream 2's", worker.log())

    def test_a_factory_makes_the_application(self):
        source = APP + "def make():\n    return application\n"
        with ReactorWorker(source, entry="app:make()") as worker:
            answer = worker.ready().ask(open_frame(1, path="/hello"))
            self.assertEqual(answer.body, b"hello")
        with ReactorWorker(source + "def nothing():\n    return 1\n", "app:nothing()") as worker:
            frame = worker.control.frame()
            self.assertEqual(frame.kind, wire.BOOT_FAILED)
            self.assertIn("app:nothing() is a int, not an ASGI application", frame.payload.decode())

    def test_the_application_is_described(self):
        with ReactorWorker(APP) as worker:
            frame = worker.control.frame()
            self.assertEqual(frame.kind, wire.READY)
            self.assertEqual(json.loads(frame.payload)["interface"], "asgi 3.0")


if __name__ == "__main__":
    unittest.main()
