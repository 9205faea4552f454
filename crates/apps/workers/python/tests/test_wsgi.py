"""Drives a real worker through every rule of PEP 3333 that it keeps or enforces."""

import os
import socket
import tempfile
import unittest
from urllib.parse import quote

from harness import Worker, cancel, request, wire

APP = """
import gzip, io, sys, tempfile
from wsgiref.validate import validator

closed, seen = [], []
OK = [("Content-Type", "text/plain")]


class Closing:
    def __init__(self, chunks):
        self.chunks = chunks
    def __iter__(self):
        return iter(self.chunks)
    def close(self):
        closed.append("x")


class BadClose(Closing):
    def close(self):
        closed.append("x")
        raise KeyError("in close")


def endless():
    while True:
        yield b"tick"


def raising():
    yield b"one"
    raise ValueError("midway")


def talk(environ, start):
    socket = environ["werkzeug.socket"]
    assert environ["gunicorn.socket"] is socket
    socket.sendall(b"hello " + socket.recv(100))
    # The result is dropped.
    start("200 OK", OK)
    return [b"nobody's"]

def talk_and_stop(environ, start):
    environ["werkzeug.socket"].sendall(b"x")
    raise StopIteration

def talk_late(environ, start):
    start("200 OK", OK)(b"first")
    try:
        environ["werkzeug.socket"].sendall(b"x")
    except OSError as error:
        return [str(error).encode()]

def has_socket(environ, start):
    start("200 OK", OK)
    return [repr("werkzeug.socket" in environ).encode()]

def hello(environ, start):
    start("200 OK", OK)
    return [b"hello"]

def echo(environ, start):
    start("200 OK", OK)
    return [environ["wsgi.input"].read()]

def lines(environ, start):
    start("200 OK", OK)
    stream = environ["wsgi.input"]
    return [repr([stream.readline(), stream.read(2), list(stream), stream.read()]).encode()]

def keys(environ, start):
    start("200 OK", OK)
    shown = {k: v for k, v in environ.items() if isinstance(v, (str, bool, tuple))}
    return [repr(shown).encode()]

def several(environ, start):
    start("200 OK", OK)
    return [b"a", b"", b"b"]

def large(environ, start):
    start("200 OK", OK)
    return [b"x" * 3_000_000]

def large_parts(environ, start):
    start("200 OK", OK)
    return [b"x" * 600_000, b"y" * 10]

def nothing(environ, start):
    start("204 No Content", [])
    return []

def generator(environ, start):
    start("200 OK", OK)
    yield b""
    yield b"one"
    yield b""
    yield b"two"

def empty_generator(environ, start):
    start("200 OK", OK)
    return iter(())

def whole_iterable(environ, start):
    start("200 OK", OK + [("Content-Length", "5")])
    return Closing([b"hello"])

def writes(environ, start):
    write = start("200 OK", OK)
    write(b"one")
    write(b"two")
    return [b"three"]

def closes(environ, start):
    start("200 OK", OK)
    return Closing([b"a", b"b"])

def close_raises(environ, start):
    start("200 OK", OK)
    return BadClose([b"a"])

def count(environ, start):
    start("200 OK", OK)
    return [str(len(closed)).encode()]

def raises(environ, start):
    raise ValueError("before")

def exits(environ, start):
    sys.exit(3)

def raises_after_start(environ, start):
    start("200 OK", OK)
    raise ValueError("late")

def raises_midway(environ, start):
    start("200 OK", OK)
    return Closing(raising())

def error_page(environ, start):
    try:
        start("200 OK", OK)
        raise ValueError("shown")
    except ValueError:
        start("500 Oops", OK, sys.exc_info())
    return [b"page"]

def error_page_too_late(environ, start):
    start("200 OK", OK)(b"sent")
    try:
        raise ValueError("late")
    except ValueError:
        start("500 Oops", OK, sys.exc_info())
    return [b"page"]

def cancelled(environ, start):
    start("200 OK", OK)
    return Closing(endless())

def write_for_ever(environ, start):
    write = start("200 OK", OK)
    try:
        while True:
            write(b"x")
    except Exception as error:
        seen[:] = [type(error).__name__, type(error).__base__.__name__]
        raise

def gone(environ, start):
    start("200 OK", OK)
    return [" ".join(seen).encode()]

def twice(environ, start):
    start("200 OK", OK)
    start("200 OK", OK)
    return []

def never(environ, start):
    return [b"x"]

def returns_none(environ, start):
    start("200 OK", OK)

def returns_text(environ, start):
    start("200 OK", OK)
    return ["text"]

def yields_text(environ, start):
    start("200 OK", OK)
    return iter(["text"])

def status_number(environ, start):
    start(200, OK)
    return []

def headers_tuple(environ, start):
    start("200 OK", tuple(OK))
    return []

def header_list(environ, start):
    start("200 OK", [["A", "b"]])
    return []

def header_number(environ, start):
    start("200 OK", [("Content-Length", 5)])
    return []

def header_break(environ, start):
    start("200 OK", [("Location", "/x\\r\\nSet-Cookie: y")])
    return []

def header_nul(environ, start):
    start("200 OK", [("A", "x\\0B\\0y")])
    return []

def header_wide(environ, start):
    start("200 OK", [("A", "\\u20ac")])
    return []

late = []

def keeps_start(environ, start):
    late.append(start)
    start("200 OK", OK)
    return [b"x"]

def uses_kept_start(environ, start):
    late[0]("200 OK", OK)
    return [b"x"]

def file(environ, start):
    start("200 OK", OK)
    handle = tempfile.TemporaryFile()
    handle.write(b"0123456789" * 1000)
    handle.seek(4)
    return environ["wsgi.file_wrapper"](handle)

def file_part(environ, start):
    start("200 OK", OK + [("Content-Length", "3")])
    handle = open(__file__, "rb")
    return environ["wsgi.file_wrapper"](handle)

def file_zipped(environ, start):
    start("200 OK", OK)
    handle = tempfile.TemporaryFile()
    with gzip.open(handle, "wb") as packed:
        packed.write(b"plain")
    handle.seek(0)
    return environ["wsgi.file_wrapper"](gzip.open(handle))

def file_memory(environ, start):
    start("200 OK", OK)
    return environ["wsgi.file_wrapper"](io.BytesIO(b"x" * 20), 8)

@validator
def valid(environ, start):
    body = environ["wsgi.input"].read(10)
    start("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body]

@validator
def valid_stream(environ, start):
    start("200 OK", OK)
    return iter([b"a", b"b"])

def application(environ, start):
    return globals()[environ["PATH_INFO"][1:]](environ, start)
"""


class Wsgi(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.worker = Worker(APP).__enter__().ready()
        cls.addClassCleanup(cls.worker.__exit__)

    def ask(self, name, body=b"", **environ):
        return self.worker.ask(request(body, PATH_INFO="/" + quote(name), **environ))

    def closed(self):
        return int(self.ask("count").body)

    def test_whole_bodies_take_one_frame(self):
        rows = [
            ("hello", b"hello"),
            ("several", b"ab"),
            ("large", b"x" * 3_000_000),
            ("nothing", b""),
            ("empty_generator", b""),
            ("whole_iterable", b"hello"),
            ("error_page", b"page"),
        ]
        for name, body in rows:
            with self.subTest(name):
                reply = self.ask(name)
                self.assertEqual((reply.body, reply.frames), (body, [wire.HEAD]))

    def test_a_connection_that_is_taken_over_goes_to_the_server_at_its_first_use(self):
        peer = self.worker.slots[0]
        for name, said in (("talk", b"hello you"), ("talk_and_stop", b"x")):
            with self.subTest(name):
                peer.send(request(b"", PATH_INFO="/" + name, HTTP_UPGRADE="chat"))
                frame = peer.frame()
                self.assertEqual((frame.kind, frame.flags), (wire.HIJACK, wire.FLAG_HAS_FD))
                with socket.socket(fileno=frame.fds[0]) as theirs:
                    theirs.settimeout(10)
                    if name == "talk":
                        theirs.sendall(b"you")
                    self.assertEqual(theirs.recv(100), said)
                    frame = peer.frame()
                    self.assertEqual((frame.kind, frame.flags), (wire.BODY, wire.FLAG_END))
                    self.assertEqual(frame.payload, b"")
                    # The connection ends with the call.
                    self.assertEqual(theirs.recv(100), b"")
        late = self.ask("talk_late", HTTP_UPGRADE="chat")
        self.assertIn(b"its response has begun", late.body)
        self.assertEqual(self.ask("has_socket").body, b"False")
        self.assertEqual(self.ask("has_socket", HTTP_UPGRADE="chat").body, b"True")

    def test_unknown_lengths_are_streamed_chunk_by_chunk(self):
        head, body = wire.HEAD, wire.BODY
        rows = [
            ("generator", b"onetwo", [head, body, body]),
            ("writes", b"onetwothree", [head, body, body, body]),
            ("large_parts", b"x" * 600_000 + b"y" * 10, [head, body, body, body, body, body]),
        ]
        for name, expected, frames in rows:
            with self.subTest(name):
                reply = self.ask(name)
                self.assertEqual((reply.body, reply.frames), (expected, frames))

    def test_status_and_headers_arrive_as_they_were_given(self):
        reply = self.ask("hello")
        self.assertEqual(reply.status, "200 OK")
        self.assertEqual(reply.headers, [("Content-Type", "text/plain")])

    def test_bodies_arrive_in_memory_and_as_files(self):
        data = os.urandom(100_000)
        self.assertEqual(self.ask("echo", data).body, data)
        self.assertEqual(self.ask("echo").body, b"")
        slot = self.worker.slots[0]
        with tempfile.TemporaryFile() as file:
            file.write(data)
            file.seek(0)
            slot.send(request(b"", has_file=True, PATH_INFO="/echo", CONTENT_LENGTH="100000"))
            self.assertEqual(slot.frame().kind, wire.FD_REQUEST)
            slot.send_fd(file.fileno())
            self.assertEqual(slot.reply().body, data)

    def test_the_input_reads_like_a_file(self):
        reply = self.ask("lines", b"one\ntwo\nthree\nfour")
        self.assertEqual(
            reply.body, repr([b"one\n", b"tw", [b"o\n", b"three\n", b"four"], b""]).encode()
        )

    def test_the_environ_holds_what_the_interface_asks_for(self):
        shown = eval(self.ask("keys", HTTP_X_NAME="caf\u00c3\u00a9").body)
        expected = {
            "wsgi.version": (1, 0),
            "wsgi.url_scheme": "http",
            "wsgi.multithread": False,
            "wsgi.multiprocess": True,
            "wsgi.run_once": False,
            "wsgi.input_terminated": True,
            "HTTP_X_NAME": "caf\u00c3\u00a9",
        }
        self.assertEqual({k: shown[k] for k in expected}, expected)

    def test_results_are_closed_exactly_once(self):
        for name in ["closes", "close_raises", "whole_iterable", "raises_midway"]:
            with self.subTest(name):
                before = self.closed()
                self.ask(name)
                self.assertEqual(self.closed() - before, 1)

    def test_an_application_that_writes_for_ever_hears_that_its_client_has_left(self):
        slot = self.worker.slots[0]
        number = slot.requests
        slot.send(request(PATH_INFO="/write_for_ever"))
        self.assertEqual(slot.frame().kind, wire.HEAD)
        slot.send(cancel(number))
        frame = slot.frame()
        while frame.kind == wire.BODY:
            frame = slot.frame()
        self.assertEqual((frame.kind, frame.payload), (wire.ABORT, b"cancelled"))
        self.assertEqual(self.ask("gone").body, b"ClientDisconnected OSError")
        self.assertNotIn("write_for_ever", self.worker.log())

    def test_a_cancelled_stream_stops_and_is_closed(self):
        before = self.closed()
        slot = self.worker.slots[0]
        number = slot.requests
        slot.send(cancel(0))
        slot.send(request(PATH_INFO="/cancelled"))
        self.assertEqual(slot.frame().kind, wire.HEAD)
        slot.send(request(PATH_INFO="/hello") + cancel(number))
        frame = slot.frame()
        while frame.kind == wire.BODY:
            frame = slot.frame()
        self.assertEqual((frame.kind, frame.payload), (wire.ABORT, b"cancelled"))
        self.assertEqual(slot.reply().body, b"hello")
        self.assertEqual(self.closed() - before, 1)

    def test_exceptions_fail_their_request_only(self):
        rows = [
            ("raises", "ValueError"),
            ("exits", "SystemExit"),
            ("raises_after_start", "ValueError"),
        ]
        for name, error in rows:
            with self.subTest(name):
                reply = self.ask(name)
                self.assertEqual((reply.status, reply.flags), (None, 0))
                self.assertEqual(reply.reason, f"application raised {error}")
                self.assertEqual(self.ask("hello").body, b"hello")
        self.assertIn("error in GET /raises\nTraceback", self.worker.log())
        self.assertIn("ValueError: before\n", self.worker.log())

    def test_exceptions_after_the_head_abort_the_response(self):
        for name, sent in [("raises_midway", b"one"), ("error_page_too_late", b"sent")]:
            with self.subTest(name):
                reply = self.ask(name)
                self.assertEqual(
                    (reply.body, reply.reason), (sent, "application raised ValueError")
                )
                self.assertEqual(reply.frames[-1], wire.ABORT)

    def test_broken_rules_fail_as_such(self):
        rows = [
            ("twice", "start_response called twice without exc_info"),
            ("never", "start_response was not called"),
            ("returns_none", "a NoneType was returned, no iterable"),
            ("returns_text", "the body holds str, not bytes"),
            ("yields_text", "the body holds str, not bytes"),
            ("status_number", "bad status or headers"),
            ("headers_tuple", "headers are no list"),
            ("header_list", "a header is no tuple of two"),
            ("header_number", "bad status or headers"),
            ("header_break", "a control character"),
            ("header_nul", "a control character"),
            ("header_wide", "bad status or headers"),
        ]
        for name, reason in rows:
            with self.subTest(name):
                reply = self.ask(name)
                self.assertEqual((reply.status, reply.flags), (None, wire.FLAG_PROTOCOL_ERROR))
                self.assertIn(reason, reply.reason)
        self.assertEqual(self.ask("hello").body, b"hello")

    def test_a_start_response_kept_from_before_changes_nothing(self):
        self.ask("keeps_start")
        self.assertIsNone(self.ask("uses_kept_start").status)

    def test_plain_files_travel_as_descriptors(self):
        reply = self.ask("file")
        self.assertEqual(reply.frames, [wire.HEAD, wire.FILE])
        self.assertEqual(reply.body, (b"0123456789" * 1000)[4:])
        reply = self.ask("file_part")
        self.assertEqual((reply.frames, reply.body), ([wire.HEAD, wire.FILE], b"\nim"))

    def test_other_files_are_read(self):
        rows = [("file_zipped", b"plain"), ("file_memory", b"x" * 20)]
        for name, body in rows:
            with self.subTest(name):
                reply = self.ask(name)
                self.assertNotIn(wire.FILE, reply.frames)
                self.assertEqual(reply.body, body)

    def test_the_validator_of_the_standard_library_agrees(self):
        self.assertEqual(self.ask("valid", b"abc", REQUEST_METHOD="POST").body, b"abc")
        self.assertEqual(self.ask("valid_stream").body, b"ab")
        self.assertEqual(self.ask("valid", SCRIPT_NAME="/mount").body, b"")

    def test_batches_are_answered_in_order(self):
        slot = self.worker.slots[0]
        names = ["hello", "raises", "generator", "never", "several"] * 4
        slot.send(b"".join(request(PATH_INFO="/" + name) for name in names))
        bodies = [slot.reply().body for _ in names]
        self.assertEqual(bodies, [b"hello", b"", b"onetwo", b"", b"ab"] * 4)


if __name__ == "__main__":
    unittest.main()
