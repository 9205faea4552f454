"""Starts real workers: what a request may ask of the server, spare slots, and idle collections."""

import os
import socket
import struct
import tempfile
import unittest

from harness import DEADLINE, Worker, alarm, request, wire

WORDS = """
import threading
said = []
def application(environ, start_response):
    path = environ["PATH_INFO"]
    mark, extend = environ["penstock.mark_as_io_bound"], environ["penstock.extend_timeout"]
    if path == "/mark":
        said[:] = [mark(), mark()]
    elif path == "/extend":
        said[:] = [extend(90), extend(1.5)]
    elif path == "/wrong":
        for seconds in (0, -1, 86401, float("nan"), "1"):
            try:
                extend(seconds)
            except (TypeError, ValueError) as error:
                said.append(type(error).__name__)
    elif path == "/thread":
        thread = threading.Thread(target=lambda: said.append(mark()))
        thread.start()
        thread.join()
    elif path == "/late":
        start_response("200 OK", [])
        return Late(mark)
    elif path == "/kept":
        said[:] = [mark]
    elif path == "/stream":
        start_response("200 OK", [])
        return (mark() and b"told" for _ in range(1))
    start_response("200 OK", [])
    return [repr(said).encode()]
class Late(list):
    def __init__(self, mark):
        super().__init__([b"x", b"y"])
        self.mark = mark
    def close(self):
        said[:] = [self.mark()]
"""

# The first request of each process waits for the second, which comes on a spare slot.
PAIRED = """
import threading
both = threading.Barrier(2)
def application(environ, start_response):
    if environ["PATH_INFO"] == "/wait":
        assert environ["penstock.mark_as_io_bound"]()
    both.wait(20)
    start_response("200 OK", [])
    name = threading.current_thread().name
    return [f"{environ['wsgi.multithread']} {name} {threading.active_count()}".encode()]
"""

QUIET = """
import gc
class Knot:
    alive = 0
    def __init__(self):
        self.me = self
        Knot.alive += 1
    def __del__(self):
        Knot.alive -= 1
keep = []
def application(environ, start_response):
    for _ in range(int(environ["HTTP_X_KNOTS"])):
        Knot()
    if "HTTP_X_GROW" in environ:
        keep.append(b"x" * (64 << 20))
    start_response("200 OK", [])
    return [f"{Knot.alive} {gc.isenabled()}".encode()]
"""


def collect():
    return struct.pack("<BBHI", wire.COLLECT_GARBAGE, 0, 0, 0)


class Words(unittest.TestCase):
    def setUp(self):
        self.worker = Worker(WORDS).__enter__()
        self.addCleanup(self.worker.__exit__)
        self.slot = self.worker.ready().slots[0]

    def test_a_request_is_marked_once(self):
        for _ in range(2):
            self.slot.send(request(PATH_INFO="/mark"))
            self.assertEqual(self.slot.frame()[:4], (wire.IO_BOUND, 0, 0, b""))
            self.assertEqual(self.slot.reply().body, b"[True, False]")

    def test_its_time_is_extended_in_whole_seconds(self):
        self.slot.send(request(PATH_INFO="/extend"))
        for seconds in (90, 2):
            frame = self.slot.frame()
            self.assertEqual(frame[:3], (wire.EXTEND_DEADLINE, 0, 0))
            self.assertEqual(struct.unpack("<I", frame.payload), (seconds,))
        self.assertEqual(self.slot.reply().body, b"[True, True]")

    def test_wrong_seconds_are_the_applications_error(self):
        body = self.worker.ask(request(PATH_INFO="/wrong")).body.decode()
        self.assertEqual(eval(body), ["ValueError"] * 4 + ["TypeError"])

    def test_another_thread_may_speak_for_the_request(self):
        self.slot.send(request(PATH_INFO="/thread"))
        self.assertEqual(self.slot.frame().kind, wire.IO_BOUND)
        self.assertEqual(self.slot.reply().body, b"[True]")

    def test_nothing_is_said_after_the_end(self):
        self.assertEqual(self.worker.ask(request(PATH_INFO="/late")).body, b"xy")
        self.assertEqual(self.worker.ask(request(PATH_INFO="/said")).body, b"[False]")

    def test_a_stream_may_be_marked_until_its_end(self):
        self.slot.send(request(PATH_INFO="/stream"))
        kinds = [self.slot.frame().kind for _ in range(3)]
        self.assertEqual(kinds, [wire.IO_BOUND, wire.HEAD, wire.BODY])


class Spares(unittest.TestCase):
    def test_a_spare_slot_serves_while_a_marked_request_waits(self):
        with Worker(PAIRED, spares=2) as worker:
            worker.ready().slots[0].send(request(PATH_INFO="/wait"))
            self.assertEqual(worker.slots[0].frame().kind, wire.IO_BOUND)
            worker.spares[1].send(request())
            replies = {worker.spares[1].reply().body, worker.slots[0].reply().body}
            self.assertEqual(replies, {b"True MainThread 3", b"True io-2 3"})

    def test_threads_of_spare_slots_begin_when_they_are_needed(self):
        source = WORDS.replace("repr(said)", "str(threading.active_count())")
        with Worker(source, spares=3) as worker:
            worker.ready()
            self.assertEqual(worker.ask(request()).body, b"1")
            worker.slots[0].send(request(PATH_INFO="/mark"))
            self.assertEqual(worker.slots[0].frame().kind, wire.IO_BOUND)
            self.assertEqual(worker.slots[0].reply().body, b"4")

    def test_the_process_ends_in_order_when_all_slots_are_closed(self):
        for used in (False, True):
            for slots in (1, 2):
                with self.subTest(used=used, slots=slots):
                    self.check_end(used, slots)

    def check_end(self, used, slots):
        source = WORDS + "import atexit, sys\natexit.register(print, 'bye', file=sys.stderr)\n"
        with Worker(source, slots=slots, spares=2) as worker:
            worker.ready()
            if used:
                worker.slots[0].send(request(PATH_INFO="/mark"))
                self.assertEqual(worker.slots[0].frame().kind, wire.IO_BOUND)
                self.assertEqual(worker.slots[0].reply().status, "200 OK")
            for peer in [*worker.slots, *worker.spares]:
                peer.sock.shutdown(socket.SHUT_WR)
            self.assertEqual(worker.process.wait(DEADLINE), 0)
            self.assertEqual(worker.log(), "bye\n")

    def test_a_closed_control_socket_ends_a_process_whose_spares_are_busy(self):
        with Worker(PAIRED, spares=1) as worker:
            worker.ready().slots[0].send(request(PATH_INFO="/wait"))
            self.assertEqual(worker.slots[0].frame().kind, wire.IO_BOUND)
            worker.spares[0].send(request(PATH_INFO="/x"))
            self.assertEqual(worker.slots[0].reply().status, "200 OK")
            self.assertEqual(worker.spares[0].reply().status, "200 OK")
            worker.spares[0].send(request(PATH_INFO="/x"))
            worker.slots[0].sock.close()
            worker.control.sock.close()
            self.assertEqual(worker.process.wait(DEADLINE), 0)


LAST = """
import atexit, os, sys
atexit.register(lambda: print("the end", file=sys.stderr))
class Body:
    def __init__(self, path):
        self.path = path
    def __iter__(self):
        return iter([b"%d" % os.getpid()])
    def close(self):
        if self.path == "/after":
            with open(os.environ["GATE"]) as gate:
                gate.read()
            print("done afterwards", file=sys.stderr)
def application(environ, start_response):
    length = str(len(b"%d" % os.getpid()))
    start_response("200 OK", [("Content-Length", length)])
    return Body(environ["PATH_INFO"])
"""


def dismiss(worker):
    worker.control.sock.sendall(struct.pack("<BBHI", wire.DISMISS, 0, 0, 0))


class Dismissed(unittest.TestCase):
    def check(self, slots, options=()):
        with tempfile.TemporaryDirectory() as folder:
            gate = os.path.join(folder, "gate")
            os.mkfifo(gate)
            source = f"import os; os.environ['GATE'] = {gate!r}\n{LAST}"
            with Worker(source, slots=slots, options=list(options)) as worker:
                worker.ready()
                self.assertTrue(worker.ask(request(PATH_INFO="/after")).body)
                for slot in worker.slots:
                    slot.sock.close()
                dismiss(worker)
                # Its thread waits here until there is a writer.
                with alarm(DEADLINE), open(gate, "w"):
                    self.assertIsNone(worker.process.poll())
                self.assertEqual(worker.process.wait(DEADLINE), 0)
                self.assertEqual(worker.log().split("\n")[:2], ["done afterwards", "the end"])

    def test_what_a_thread_does_after_its_answer_is_done_before_the_end(self):
        for slots in (1, 3):
            with self.subTest(slots):
                self.check(slots)
                self.check(slots, ["--may-become-template"])

    def test_an_idle_worker_that_stays_ends_in_order(self):
        with Worker(LAST, slots=2, options=["--may-become-template"]) as worker:
            worker.ready().ask(request())
            for slot in worker.slots:
                slot.sock.close()
            dismiss(worker)
            self.assertEqual(worker.process.wait(DEADLINE), 0)
            self.assertIn("the end", worker.log())

    def test_it_becomes_no_template_then(self):
        with Worker(LAST, slots=2, options=["--may-become-template"]) as worker:
            worker.ready()
            promote = struct.pack("<BBHI", wire.PROMOTE, 0, 0, 0)
            dismiss(worker)
            worker.control.sock.sendall(promote)
            self.assertEqual(worker.process.wait(DEADLINE), 1)
            self.assertIn("WireError", worker.log())


class Garbage(unittest.TestCase):
    def ask(self, worker, knots, **more):
        alive, is_on = worker.ask(request(HTTP_X_KNOTS=str(knots), **more)).body.decode().split()
        return int(alive), is_on == "True"

    def collect(self, worker, data=b""):
        worker.slots[0].send(collect() + data)
        self.assertEqual(worker.slots[0].frame()[:4], (wire.GARBAGE_COLLECTED, 0, 0, b""))

    def test_garbage_waits_until_the_server_says_so(self):
        with Worker(QUIET, options=["--gc-when-idle"]) as worker:
            worker.ready()
            self.assertEqual(self.ask(worker, 5000), (5000, False))
            self.collect(worker)
            self.assertEqual(self.ask(worker, 1), (1, False))

    def test_a_collection_may_be_asked_for_together_with_a_request(self):
        with Worker(QUIET) as worker:
            worker.ready()
            self.collect(worker, request(HTTP_X_KNOTS="0"))
            self.assertEqual(worker.slots[0].reply().body, b"0 True")

    def test_a_frame_may_come_in_pieces(self):
        with Worker(QUIET) as worker:
            worker.ready()
            for cut in range(1, 8):
                worker.slots[0].sock.sendall(collect()[:cut])
                worker.slots[0].sock.sendall(collect()[cut:])
                self.assertEqual(worker.slots[0].frame().kind, wire.GARBAGE_COLLECTED)

    def test_without_it_the_interpreter_collects_again_when_memory_doubles(self):
        with Worker(QUIET, options=["--gc-when-idle"]) as worker:
            worker.ready()
            self.ask(worker, 0, HTTP_X_GROW="1")
            states = [self.ask(worker, 0)[1] for _ in range(300)]
            self.assertEqual((states[0], states[-1]), (False, True))
            self.collect(worker)
            self.assertEqual(self.ask(worker, 0), (0, False), "off again after a collection")

    def test_without_it_the_interpreter_collects_again_after_many_requests(self):
        with Worker(QUIET, options=["--gc-when-idle"]) as worker:
            worker.ready()
            batch = request(HTTP_X_KNOTS="0") * 100
            for _ in range(100):
                worker.slots[0].send(batch)
                bodies = [worker.slots[0].reply().body for _ in range(100)]
            self.assertEqual(bodies[0], b"0 False")
            self.assertEqual(self.ask(worker, 0), (0, True))

    def test_a_frame_with_more_in_it_ends_the_process(self):
        with Worker(QUIET) as worker:
            worker.ready().slots[0].send(struct.pack("<BBHII", wire.COLLECT_GARBAGE, 0, 0, 4, 0))
            self.assertEqual(worker.process.wait(DEADLINE), 1)


if __name__ == "__main__":
    unittest.main()
