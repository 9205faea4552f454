"""Request bodies that arrive while the application runs: WSGI, on gevent_reactor too, and ASGI."""

import importlib.util
import io
import socket
import struct
import threading
import time
import unittest

from channel_harness import ReactorWorker, channel, gone, open_frame, open_wsgi, wire

from harness import DEADLINE, Peer, Worker, request

# isort: split
# Found by way of `harness`.
from penstock_worker.request_body import RequestBodyCut, StreamedBody

WSGI = """
import threading

def application(environ, start_response):
    body = environ["wsgi.input"]
    return globals()[environ["PATH_INFO"][1:]](body, start_response)

def whole(body, start_response):
    data = body.read()
    start_response("200 OK", [])
    return [data]

def echo(body, start_response):
    start_response("200 OK", [])
    yield b"go"
    while True:
        piece = body.read1()
        if not piece:
            break
        yield b"<" + piece + b">"

def early(body, start_response):
    start_response("200 OK", [])
    return [b"early"]

def beside(body, start_response):
    # A thread of its own reads, this one answers.
    seen = []
    def read():
        try:
            for line in body:
                seen.append(line)
        except OSError as error:
            seen.append(type(error).__name__.encode())
    reader = threading.Thread(target=read)
    reader.start()
    start_response("200 OK", [])
    yield b"go"
    if body_is_waited_for:
        reader.join()
        yield b"|".join(seen)

body_is_waited_for = True

def leave(body, start_response):
    global body_is_waited_for
    body_is_waited_for = False
    return beside(body, start_response)

def caught(body, start_response):
    answers = []
    for _ in range(2):
        try:
            answers.append(body.read())
        except OSError as error:
            answers.append(type(error).__name__.encode())
    start_response("200 OK", [])
    return [b" ".join(answers)]
"""

ASGI = """
import asyncio

async def application(scope, receive, send):
    if scope["path"] == "/spec":
        await start(send)
        spec = scope["asgi"]["spec_version"].encode()
        return await send({"type": "http.response.body", "body": spec})
    await globals()[scope["path"][1:]](receive, send)

async def start(send):
    await send({"type": "http.response.start", "status": 200, "headers": []})

async def show(receive, send):
    await start(send)
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        text = b"%r %d;" % (message["body"], message["more_body"])
        await send({"type": "http.response.body", "body": text, "more_body": message["more_body"]})
        if not message["more_body"]:
            return

async def early(receive, send):
    await start(send)
    await send({"type": "http.response.body", "body": b"early"})

async def two(receive, send):
    # The first thread gets the piece, the other the next.
    tasks = [asyncio.ensure_future(receive()) for _ in range(2)]
    done = await asyncio.gather(*tasks)
    await start(send)
    text = b" ".join(sorted(message.get("body", b"-") for message in done))
    await send({"type": "http.response.body", "body": text})
"""


def streamed(body=b"", **environ):
    """Returns a REQUEST with these first bytes of its body."""
    frame = bytearray(request(body, CONTENT_LENGTH=None, **environ))
    frame[1] = wire.FLAG_BODY_STREAM
    return bytes(frame)


def slot_input(data=b"", flags=0):
    return struct.pack("<BBHI", wire.INPUT, flags, 0, len(data)) + data


def stream_input(stream, data=b"", flags=0):
    return struct.pack("<BBHII", channel.INPUT, flags, 0, 4 + len(data), stream) + data


class Reads(unittest.TestCase):
    """The reads of the input, by pieces."""

    def body(self, first, *pieces):
        pieces = iter([*pieces, None])
        return io.BufferedReader(StreamedBody(lambda: next(pieces), first), 100)

    def test_all_the_ways_to_read(self):
        for pieces in ([(b"one\ntwo\nth", False), (b"ree", True)], [(b"one\ntwo\nthree", True)]):
            self.assertEqual(self.body(b"", *pieces).read(), b"one\ntwo\nthree")
            self.assertEqual(list(self.body(b"", *pieces)), [b"one\n", b"two\n", b"three"])
            self.assertEqual(self.body(b"0", *pieces).readline(), b"0one\n")
            self.assertEqual(self.body(b"", *pieces).readlines()[1:], [b"two\n", b"three"])
            body = self.body(b"", *pieces)
            self.assertEqual([body.read(12), body.read(12)], [b"one\ntwo\nthre", b"e"])
            self.assertEqual(body.read(1), b"")
        self.assertEqual(self.body(b"ab", (b"", True)).read(), b"ab")
        self.assertEqual(self.body(b"ab").read1(), b"ab")

    def test_a_cut_body_never_looks_complete(self):
        for read in (
            lambda body: body.read(),
            lambda body: body.read(100),
            lambda body: body.readline(),
            lambda body: body.readlines(),
            lambda body: list(body),
        ):
            body = self.body(b"first", (b"second", False))
            for _ in range(3):
                with self.assertRaises(RequestBodyCut):
                    read(body)


class Threads(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.worker = Worker(WSGI)
        cls.worker.__enter__().ready()
        cls.slot = cls.worker.slots[0]

    @classmethod
    def tearDownClass(cls):
        cls.worker.__exit__()

    def expect_pull(self):
        self.assertEqual(self.slot.frame().kind, wire.PULL)

    def test_a_body_is_pulled_piece_by_piece(self):
        self.slot.send(streamed(b"one ", PATH_INFO="/whole"))
        for data, flags in ((b"two ", 0), (b"three", wire.FLAG_END)):
            self.expect_pull()
            self.slot.send(slot_input(data, flags))
        self.assertEqual(self.slot.reply().body, b"one two three")

    def test_an_answer_goes_on_between_the_pieces(self):
        self.slot.send(streamed(PATH_INFO="/echo"))
        head = self.slot.frame()
        self.assertEqual((head.kind, head.payload[-2:]), (wire.HEAD, b"go"))
        for data in (b"one", b"two"):
            self.expect_pull()
            self.slot.send(slot_input(data))
            self.assertEqual(self.slot.frame().payload, b"<" + data + b">")
        self.expect_pull()
        self.slot.send(slot_input(flags=wire.FLAG_END))
        self.assertEqual(self.slot.frame().flags, wire.FLAG_END)

    def test_a_cut_body_is_an_error_of_nobody_s(self):
        before = self.worker.log()
        self.slot.send(streamed(b"one", PATH_INFO="/whole"))
        self.expect_pull()
        self.slot.send(slot_input(flags=wire.FLAG_INPUT_ABORTED))
        self.assertEqual(self.slot.reply().frames, [wire.FAILED])
        self.assertEqual(self.worker.log(), before)
        # Also for a second read, and the server is not asked.
        self.slot.send(streamed(b"one", PATH_INFO="/caught"))
        self.expect_pull()
        self.slot.send(slot_input(flags=wire.FLAG_INPUT_ABORTED))
        self.assertEqual(self.slot.reply().body, b"RequestBodyCut RequestBodyCut")

    def test_what_nobody_reads_is_not_pulled(self):
        for _ in range(3):
            self.slot.send(streamed(b"one", PATH_INFO="/early"))
            self.assertEqual(self.slot.reply().body, b"early")

    def test_a_thread_of_the_application_s_reads_while_this_one_answers(self):
        self.slot.send(streamed(PATH_INFO="/beside"))
        frames = sorted(self.slot.frame().kind for _ in range(2))
        self.assertEqual(frames, [wire.HEAD, wire.PULL])
        self.slot.send(slot_input(b"one\ntwo", wire.FLAG_END))
        self.assertEqual(self.slot.frame().payload, b"one\n|two")
        self.assertEqual(self.slot.frame().flags, wire.FLAG_END)

    def test_a_thread_that_still_waits_takes_nothing_of_the_next_request(self):
        self.slot.send(streamed(PATH_INFO="/leave"))
        kinds = sorted(self.slot.frame().kind for _ in range(3))
        self.assertEqual(kinds, [wire.HEAD, wire.BODY, wire.PULL])
        # Like the server after a response: it answers the pull, then sends the next request.
        self.slot.send(slot_input(flags=wire.FLAG_INPUT_ABORTED) + request(PATH_INFO="/early"))
        self.assertEqual(self.slot.reply().body, b"early")

    def test_a_client_that_leaves_is_noticed_between_the_pieces(self):
        ours, theirs = socket.socketpair()
        self.addCleanup(ours.close)
        self.addCleanup(theirs.close)
        peer, slot = Peer(ours), wire.Slot(theirs)
        peer.send(streamed(b"one"))
        slot.receive()
        self.assertFalse(slot.is_cancelled())
        pull = slot.body_puller()
        peer.send(struct.pack("<BBHII", wire.CANCEL, 0, 0, 4, 0) + slot_input(b"x"))
        self.assertEqual(pull(), (b"x", False))
        self.assertTrue(slot.is_cancelled(), "it was in front of the piece")
        reader = threading.Thread(target=pull)
        reader.start()
        peer.take(16)
        self.assertTrue(slot.is_cancelled(), "while another thread reads")
        peer.send(slot_input(flags=wire.FLAG_INPUT_ABORTED))
        reader.join(DEADLINE)

    def test_a_pull_for_a_request_that_is_over_says_nothing(self):
        ours, theirs = socket.socketpair()
        self.addCleanup(ours.close)
        self.addCleanup(theirs.close)
        peer, slot = Peer(ours), wire.Slot(theirs)
        peer.send(streamed(b"one"))
        slot.receive()
        pull = slot.body_puller()
        slot.send_whole(1, b"200", 0, b"")
        self.assertIsNone(pull())
        peer.send(streamed(b"two"))
        slot.receive()
        self.assertIsNone(pull())
        peer.reply()
        peer.sock.settimeout(0.05)
        with self.assertRaises(socket.timeout):
            peer.take(1)


class Tasks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.worker = ReactorWorker(ASGI)
        cls.worker.__enter__().ready()

    @classmethod
    def tearDownClass(cls):
        cls.worker.__exit__()

    stream = 100

    def begin(self, path, body=b""):
        type(self).stream += 1
        self.worker.send(open_frame(self.stream, body, channel.FLAG_BODY_STREAM, path="/" + path))
        return self.worker.answer(self.stream)

    def expect_pull(self):
        part = self.worker.part()
        self.assertEqual((part.kind, part.stream, part.payload), (channel.PULL, self.stream, b""))

    def test_events_come_with_the_pieces(self):
        answer = self.begin("show", b"one")
        self.worker.read()
        self.expect_pull()
        self.worker.send(stream_input(self.stream, b"two"))
        self.worker.read()
        self.assertEqual(answer.body, b"b'one' 1;b'two' 1;")
        self.expect_pull()
        self.worker.send(stream_input(self.stream, flags=wire.FLAG_END))
        self.worker.read_until(lambda: answer.is_ended)
        self.assertEqual(answer.body, b"b'one' 1;b'two' 1;b'' 0;")

    def test_nothing_there_is_no_event(self):
        answer = self.begin("show")
        self.expect_pull()
        self.worker.send(stream_input(self.stream, b"all", wire.FLAG_END))
        self.worker.read_until(lambda: answer.is_ended)
        self.assertEqual(answer.body, b"b'all' 0;")

    def test_what_nobody_reads_is_not_pulled(self):
        answer = self.begin("early", b"one")
        self.worker.read_until(lambda: answer.is_ended)
        self.assertEqual(answer.body, b"early")

    def test_a_client_that_leaves_is_a_disconnect(self):
        answer = self.begin("show", b"one")
        self.worker.read()
        self.expect_pull()
        self.worker.send(gone(self.stream))
        self.worker.read_until(lambda: answer.is_ended)
        self.assertEqual(answer.reason, "cancelled")
        # A piece that crossed the end of the stream is ignored.
        self.worker.send(stream_input(self.stream, b"two"))
        self.assertEqual(self.begin_and_end().body, b"early")

    def begin_and_end(self):
        answer = self.begin("early")
        self.worker.read_until(lambda: answer.is_ended)
        return answer

    def test_nobody_is_told_to_listen_beside_a_body_that_comes(self):
        answer = self.begin("spec")
        self.worker.read_until(lambda: answer.is_ended)
        whole = self.worker.ask(open_frame(99, b"whole", path="/spec"))
        self.assertEqual((answer.body, whole.body), (b"2.4", b"2.3"))

    def test_two_who_wait_get_a_piece_each(self):
        answer = self.begin("two")
        for piece in (b"one", b"two"):
            self.expect_pull()
            self.worker.send(stream_input(self.stream, piece))
        self.worker.read_until(lambda: answer.is_ended)
        self.assertEqual(answer.body, b"one two")

    def test_a_piece_that_nobody_asked_for_ends_the_process(self):
        with ReactorWorker(ASGI) as worker:
            worker.ready()
            worker.send(open_frame(1, b"one", channel.FLAG_BODY_STREAM, path="/early"))
            worker.send(open_frame(2, b"one", path="/two"), stream_input(2, b"two"))
            self.assertEqual(worker.wait(), 1)


@unittest.skipUnless(importlib.util.find_spec("gevent"), "gevent is not installed")
class Greenlets(unittest.TestCase):
    def test_bodies_are_pulled_and_cut(self):
        with ReactorWorker(WSGI, interface="wsgi", reactor="gevent") as worker:
            worker.ready()
            for path, stream in (("echo", 1), ("whole", 2)):
                flags = channel.FLAG_BODY_STREAM
                worker.send(open_wsgi(stream, b"one", flags, PATH_INFO="/" + path))
            answers = {stream: worker.answer(stream) for stream in (1, 2)}
            pulled = {1: 0, 2: 0}

            def read():
                part = worker.part()
                if part.kind == channel.PULL:
                    pulled[part.stream] += 1
                else:
                    answers[part.stream].take(part)

            end = time.monotonic() + DEADLINE
            while pulled != {1: 1, 2: 1} and time.monotonic() < end:
                read()
            # A stream that waits stops no other.
            worker.send(stream_input(1, b"two", wire.FLAG_END))
            while not answers[1].is_ended:
                read()
            self.assertEqual(answers[1].body, b"go<one><two>")
            worker.send(gone(2))
            while not answers[2].is_ended:
                read()
            self.assertEqual(worker.log(), "")


if __name__ == "__main__":
    unittest.main()
