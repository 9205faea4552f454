"""The native part against the scripts: the same frames must give the same bytes and calls.

The other test modules run on either, by `PENSTOCK_NATIVE`; this one starts a process of each.
"""

import hashlib
import json
import os
import random
import socket
import subprocess
import sys
import threading
import unittest

from harness import ROOT, encode_environ

NATIVE = os.environ.get("PENSTOCK_NATIVE", "off")
CASES = 400
DEADLINE = 120.0

#: Serves each line of standard input, frames in hexadecimal, on a slot of its own; writes what came
#: back, what the application saw and how the thread ended.
SERVER = r"""
import io, json, mmap, os, socket, struct, sys, threading
from penstock_worker import native, wire, wsgi

assert bool(native.module) == (os.environ["PENSTOCK_NATIVE"] != "off")
seen = []

def application(environ, start):
    path = environ.get("PATH_INFO", "")
    shown = sorted((k, v) for k, v in environ.items() if isinstance(v, str))
    seen.append([shown, environ["wsgi.input"].read().decode("latin-1")])
    if path == "/raise":
        raise ValueError("asked to")
    if path == "/exit":
        raise SystemExit(3)
    if path == "/bad-type":
        start("200 OK", [("A", 1)])
    if path == "/bad-char":
        start("200 OK", [("A", "x\ny")])
    if path == "/long-status":
        start("200 " + "x" * 300_000, [])
    if path == "/dict":
        start("200 OK", {})
    if path == "/none-info":
        start("200 OK", [("A", "b")], None)
        return [b"none"]
    if path == "/latin":
        start("200 \xe4", [("A", "\xfc"), ("B", "tab\there")])
        return [b"latin"]
    if path == "/twice":
        start("200 OK", [])
        start("500 X", [])
    if path == "/again":
        start("200 OK", [("A", "b")])
        try:
            raise KeyError("x")
        except KeyError:
            start("503 X", [("C", "d")], exc_info=sys.exc_info())
        return [b"again"]
    if path == "/notice":
        environ["penstock.extend_timeout"](5)
    if path == "/none":
        return [b"no head"]
    start("200 OK", [("Content-Length", "5"), ("X", path)])
    if path == "/two":
        return [b"he", b"llo"]
    if path == "/tuple":
        return (b"hello",)
    if path == "/text":
        return ["hello"]
    if path == "/large":
        return [b"l" * 70_000]
    return [b"hello"]

def masked(data):
    # The time that a response took.
    out, at = bytearray(data), 0
    while len(out) - at >= 8:
        if out[at] == wire.HEAD and len(out) - at >= 12:
            out[at + 8 : at + 12] = bytes(4)
        at += 8 + int.from_bytes(out[at + 4 : at + 8], "little")
    return out.hex()

class Ring:
    # The server's end of a ring of answers.
    memory, taken = None, 0

    def __init__(self):
        self.answers = {}

    def open(self, fd):
        self.memory = mmap.mmap(fd, 36_864)
        self.memory[128:132] = (1).to_bytes(4, "little")
        os.close(fd)

    def take(self):
        if self.memory is None:
            return
        written = int.from_bytes(self.memory[:4], "little")
        while self.taken != written:
            number, size = struct.unpack("<II", self.part(8))
            self.taken += 8
            self.answers[number] = self.part(size)
            self.taken += (size + 7) // 8 * 8
        self.memory[64:68] = self.taken.to_bytes(4, "little")

    def part(self, size):
        at = self.taken % 32_768
        data = self.memory[4096:] * 2
        return data[at : at + size]

def frame_of(data):
    size = 8 + int.from_bytes(data[4:8], "little") if len(data) >= 8 else len(data)
    return data[:size], data[size:]

def merged(data, answers, number):
    # What the server would have read by both ways, by the numbers of requests.
    out = b""
    while data or number in answers:
        if number in answers:
            out += answers.pop(number)
            number += 1
            continue
        frame, data = frame_of(data)
        if frame[0] == 27:
            continue
        out += frame
        is_last = frame[0] in (wire.HEAD, wire.BODY, wire.FILE) and frame[1] & wire.FLAG_END
        number += bool(is_last or frame[0] in (wire.ABORT, wire.FAILED))
    assert not answers, "answers before their requests"
    return out

def run(data):
    ours, theirs = socket.socketpair()
    seen.clear()
    sys.stderr = log = io.StringIO()
    slot, end, ring = wire.Slot(theirs), [], Ring()
    first = bytes.fromhex(os.environ["TEST_RING"])
    has_ring = bool(first)
    if has_ring:
        slot._may_have_ring = True
    def serve():
        try:
            wsgi.serve(slot, application, wsgi.base_environ(True, slot))
            end.append("closed")
        except BaseException as error:
            end.append(type(error).__name__)
        finally:
            theirs.close()
    thread = threading.Thread(target=serve)
    thread.start()
    if has_ring:
        # Two at once: the first offers the ring.
        ours.sendall(first * 2)
        primed = b""
        while primed.count(b"200 OK") < 2 or ring.memory is None:
            piece, fds, _, _ = socket.recv_fds(ours, 1 << 16, 1)
            assert piece
            primed += piece
            for fd in fds:
                ring.open(fd)
        seen.clear()
    def feed():
        try:
            ours.sendall(data)
            ours.shutdown(socket.SHUT_WR)
        except OSError:
            pass
    feeder = threading.Thread(target=feed)
    feeder.start()
    got = b""
    try:
        while True:
            piece, fds, _, _ = socket.recv_fds(ours, 1 << 16, 1)
            for fd in fds:
                ring.open(fd)
            ring.take()
            if not piece:
                break
            got += piece
    except OSError:
        pass
    thread.join()
    feeder.join()
    ours.close()
    ring.take()
    count = len(ring.answers)
    sent = masked(merged(got, ring.answers, 2 if has_ring else 0))
    return {"sent": sent, "seen": seen, "end": end, "log": log.getvalue(), "ring": count}

for line in sys.stdin:
    print(json.dumps(run(bytes.fromhex(line))), flush=True)
"""

#: None that streams: between its pieces a worker looks whether the server has left, and here that
#: depends on which thread is quicker.
PATHS = [
    "/", "/raise", "/exit", "/bad-type", "/bad-char", "/latin", "/twice", "/again", "/none", "/two",
    "/tuple", "/text", "/large", "/\xe4", "/long-status", "/dict", "/none-info", "/notice",
]  # fmt: skip


def request(environ, body=b"", flags=0):
    encoded = encode_environ(environ)
    payload = len(encoded).to_bytes(4, "little") + encoded + body
    return bytes([1, flags, 0, 0]) + len(payload).to_bytes(4, "little") + payload


def cases(seed):
    """Sequences of frames: right ones, ones with a changed byte, cut ones."""
    chance = random.Random(seed)
    for _ in range(CASES):
        frames = b""
        for _ in range(chance.randint(1, 5)):
            environ = {"PATH_INFO": chance.choice(PATHS), "REQUEST_METHOD": "GET"}
            for number in range(chance.randint(0, 6)):
                size = chance.choice([0, 1, 20, 255, 256, 2000])
                value = "".join(chance.choice("ab\t\xe9 ") for _ in range(size))
                environ[chance.choice(["HTTP_A", "HTTP_B", f"HTTP_{'X' * 70}{number}"])] = value
            frames += request(environ, chance.randbytes(chance.choice([0, 0, 3, 5000])))
        if chance.random() < 0.6:
            changed = bytearray(frames)
            for _ in range(chance.randint(1, 3)):
                # Most of a frame is text: its edges matter more.
                edge = chance.choice([20, len(changed)])
                changed[chance.randrange(min(edge, len(changed)))] = chance.choice(
                    [0, 1, 2, 3, 4, 8, 48, 97, 117, 122, 123, 127, 128, 255]
                )
            frames = bytes(changed)
        if chance.random() < 0.2:
            frames = frames[: chance.randrange(len(frames))]
        yield frames


def outcomes(setting, lines, ring=False):
    environ = {
        **os.environ,
        "PENSTOCK_NATIVE": setting,
        "PYTHONPATH": str(ROOT),
        "TEST_RING": request({"PATH_INFO": "/"}).hex() if ring else "",
    }
    done = subprocess.run(
        [sys.executable, "-B", "-c", SERVER],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        env=environ,
    )
    if done.returncode:
        raise AssertionError(done.stderr)
    return [json.loads(line) for line in done.stdout.splitlines()]


@unittest.skipIf(NATIVE == "off", "PENSTOCK_NATIVE names no native part")
class NativePart(unittest.TestCase):
    def test_frames_have_the_same_outcome_in_both(self):
        seed = int(os.environ.get("PENSTOCK_FUZZ_SEED", "1"))
        lines = [frames.hex() for frames in cases(seed)]
        scripts, native = outcomes("off", lines), outcomes(NATIVE, lines)
        with_ring = outcomes(NATIVE, lines, ring=True)
        self.assertEqual(len(scripts), CASES)
        self.assertGreater(sum(outcome.pop("ring") for outcome in with_ring), CASES // 4)
        for line, one, other, third in zip(lines, scripts, native, with_ring):
            self.assertEqual(one.pop("ring") + other.pop("ring"), 0)
            self.assertEqual(one, other, f"seed {seed}, frames {line[:400]}")
            self.assertEqual(one, third, f"with a ring, seed {seed}, frames {line[:400]}")
        # The cases reach what they are for.
        ends = {outcome["end"][0] for outcome in scripts}
        self.assertLessEqual({"closed", "WireError"}, ends)
        digests = {hashlib.sha256(outcome["sent"].encode()).hexdigest() for outcome in scripts}
        self.assertGreater(len(digests), CASES // 4)

    def test_a_body_that_is_replaced_while_the_socket_is_full_stays(self):
        from penstock_worker import wire, wsgi

        page = [b"A" * 60_000]

        def application(environ, start):
            start("200 OK", [])
            return page

        ours, theirs = socket.socketpair()
        self.addCleanup(ours.close)
        self.addCleanup(theirs.close)
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        ours.settimeout(DEADLINE)
        slot = wire.Slot(theirs)
        base = wsgi.base_environ(True, slot)
        thread = threading.Thread(target=wsgi.serve, args=(slot, application, base), daemon=True)
        thread.start()
        ours.sendall(request({"PATH_INFO": "/"}))
        # It has begun to send, and cannot end.
        ours.recv(1, socket.MSG_PEEK)
        page[0] = b"B" * 60_000
        others = [b"C" * 60_000 for _ in range(200)]
        got = b""
        while len(got) < 16 + 6 + 60_000:
            got += ours.recv(1 << 16)
        self.assertEqual(got[-60_000:], b"A" * 60_000)
        self.assertEqual(len(others), 200)
        ours.shutdown(socket.SHUT_WR)
        thread.join(DEADLINE)

    def test_a_ring_goes_round_and_the_socket_serves_when_it_is_full(self):
        # One burst of requests: nobody takes an answer before the last has been written.
        burst = b"".join(request({"PATH_INFO": path}) for path in ["/", "/two", "/"] * 2000)
        lines = [burst[: 400 * 1024].hex()] * 2
        scripts, with_ring = outcomes("off", lines), outcomes(NATIVE, lines, ring=True)
        for one, other in zip(scripts, with_ring):
            self.assertGreater(other.pop("ring"), 500)
            one.pop("ring")
            self.assertEqual(one, other)

    def test_the_module_is_loaded_here(self):
        from penstock_worker import native, wire, wsgi

        self.assertIsNotNone(native.module)
        self.assertTrue(issubclass(wire.Slot, native.module.SlotState))
        self.assertTrue(issubclass(wsgi.Response, native.module.ResponseState))


if __name__ == "__main__":
    unittest.main()
