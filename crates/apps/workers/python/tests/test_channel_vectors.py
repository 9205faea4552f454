"""Replays the channel's vectors in `crates/wire/vectors`, and tests `FrameReader` and
`FrameWriter`."""

import json
import marshal
import os
import socket
import struct
import tempfile
import unittest

from channel_harness import SCOPE, channel, encode_value, open_frame, wire
from test_vectors import blocks

KINDS = {"open": 64, "gone": 65, "window": 66, "message": 67, "close": 68, "input": 69}


def latin(text):
    return text.encode("latin-1")


def scope_of(block):
    """Returns a scope of the vectors, with bytes written as text there."""
    scope = json.loads(block["scope"])
    for name in ("raw_path", "query_string"):
        if name in scope:
            scope[name] = latin(scope[name])
    for name in ("client", "server"):
        if scope.get(name) is not None:
            scope[name] = tuple(scope[name])
    if "headers" in scope:
        scope["headers"] = [(latin(name), latin(value)) for name, value in scope["headers"]]
    return scope


def written(send):
    """Returns the frames of one `send` of the vectors."""
    kind, stream, *rest = send
    if kind in ("answer", "stream", "cut"):
        head = channel.join_fields([latin(text) for text in rest[0]])
        flags = wire.FLAG_END if kind == "answer" else wire.FLAG_STREAM
        first = channel.encode_response(stream, flags, len(rest[0]), 0, head, latin(rest[1]))
        if kind == "cut":
            return first + channel.encode_reset(stream, 0, rest[2])
        more = rest[2] if kind == "stream" else []
        pieces = [channel.encode_data(stream, 0, latin(piece)) for piece in more]
        end = [channel.encode_data(stream, wire.FLAG_END, b"")] if kind == "stream" else []
        return b"".join([first, *pieces, *end])
    if kind == "accept":
        strings = [latin(text) for text in rest[0]]
        return channel.encode_accept(stream, len(strings), channel.join_fields(strings))
    if kind == "reset":
        return channel.encode_reset(stream, int(rest[1]), rest[0])
    if kind == "pull":
        return channel.encode_pull(stream)
    if kind == "hijack":
        return channel.encode_hijack(stream)
    if kind == "message":
        return channel.encode_message(stream, int(rest[0]), latin(rest[1]))
    return {"close": channel.encode_close, "window": channel.encode_window}[kind](stream, *rest)


class Vectors(unittest.TestCase):
    def pair(self):
        ours, theirs = socket.socketpair()
        self.addCleanup(ours.close)
        self.addCleanup(theirs.close)
        theirs.setblocking(False)
        return ours, theirs

    def seen(self, inbox, frames):
        for kind, flags, stream, at, stop in frames:
            if kind == channel.OPEN:
                yield kind, flags, stream, inbox.parse_open(at, stop)
            elif kind == channel.CLOSE:
                yield kind, flags, stream, inbox.parse_close(at, stop)
            elif kind == channel.WINDOW:
                yield kind, flags, stream, inbox.parse_window(at)
            else:
                yield kind, flags, stream, bytes(inbox.buffer[at:stop])

    def expected(self, block):
        kind, stream = KINDS[block["kind"]], int(block["id"])
        if kind == channel.OPEN:
            flags = json.loads(block["file"]) * 1 + json.loads(block["websocket"]) * 2
            flags |= channel.FLAG_BODY_STREAM if "stream" in block else 0
            body = latin(json.loads(block["body"]))
            return kind, flags, stream, (dict(json.loads(block["pairs"])), body)
        if kind == channel.INPUT:
            return kind, int(json.loads(block["last"])), stream, latin(json.loads(block["data"]))
        if kind == channel.MESSAGE:
            return kind, int(json.loads(block["text"])), stream, latin(json.loads(block["data"]))
        if kind == channel.CLOSE:
            return kind, 0, stream, (int(block["code"]), json.loads(block["reason"]))
        return kind, 0, stream, int(block["bytes"]) if kind == channel.WINDOW else b""

    def test_frames_are_received_wherever_they_are_cut(self):
        cases = list(blocks("channel_to_worker"))
        self.assertGreater(len(cases), 5)
        for block in cases:
            frame = bytes.fromhex(block.get("python") or block["hex"])
            for cut in range(len(frame) * 2):
                with self.subTest(block["name"], cut=cut):
                    ours, theirs = self.pair()
                    inbox, seen = channel.FrameReader(theirs), []
                    for data in (frame * 2)[:cut], (frame * 2)[cut:]:
                        ours.sendall(data)
                        seen += self.seen(inbox, inbox.receive())
                    self.assertEqual(seen, [self.expected(block)] * 2)

    def test_frames_are_written(self):
        cases = list(blocks("channel_from_worker"))
        self.assertGreater(len(cases), 5)
        for block in cases:
            with self.subTest(block["name"]):
                self.assertEqual(written(json.loads(block["send"])).hex(), block["hex"])

    def test_scopes_load(self):
        cases = list(blocks("channel_scope"))
        self.assertTrue(cases)
        for block in cases:
            with self.subTest(block["name"]):
                data, scope = bytes.fromhex(block["hex"]), scope_of(block)
                self.assertEqual(marshal.loads(data), scope)
        self.assertEqual(marshal.loads(encode_value(SCOPE)), SCOPE)

    def test_what_the_server_cannot_mean_is_refused(self):
        for name, data in {
            "a frame of a slot": struct.pack("<BBHII", wire.REQUEST, 0, 0, 4, 1),
            "a frame of the worker's": channel.encode_data(1, 0, b"x"),
            "an unknown type": struct.pack("<BBHII", 99, 0, 0, 4, 1),
            "an unknown flag": struct.pack("<BBHII", channel.STREAM_CANCEL, 1, 0, 4, 1),
            "a count": struct.pack("<BBHII", channel.STREAM_CANCEL, 0, 1, 4, 1),
            "a window without bytes": struct.pack("<BBHII", channel.WINDOW, 0, 0, 4, 1),
            "more than 64 MiB": struct.pack("<BBHII", channel.OPEN, 0, 0, (64 << 20) + 1, 1),
            "a long reason": struct.pack("<BBHII", channel.CLOSE, 0, 0, 5000, 1),
        }.items():
            with self.subTest(name):
                ours, theirs = self.pair()
                ours.sendall(data)
                with self.assertRaises(wire.WireError):
                    channel.FrameReader(theirs).receive()

    def test_an_environment_longer_than_its_frame_is_refused(self):
        ours, theirs = self.pair()
        ours.sendall(struct.pack("<BBHIII", channel.OPEN, 0, 0, 12, 1, 9) + b"N234")
        inbox = channel.FrameReader(theirs)
        [(_, _, _, at, stop)] = inbox.receive()
        with self.assertRaises(wire.WireError):
            inbox.parse_open(at, stop)

    def test_a_frame_larger_than_the_buffer_is_received_and_the_buffer_shrinks(self):
        ours, theirs = self.pair()
        inbox, body = channel.FrameReader(theirs), os.urandom(3 << 20)
        data, sent, bodies = open_frame(1) + open_frame(2, body) + open_frame(3), 0, {}
        ours.setblocking(False)
        while len(bodies) < 3:
            if sent < len(data):
                try:
                    sent += ours.send(data[sent:])
                except BlockingIOError:
                    pass
            for _, _, stream, at, stop in inbox.receive():
                bodies[stream] = inbox.parse_open(at, stop)[1]
        self.assertEqual(bodies, {1: b"", 2: body, 3: b""})
        self.assertEqual(inbox.receive(), [])
        self.assertEqual(len(inbox.buffer), channel.BUFFER_BYTES)
        ours.close()
        self.assertIsNone(inbox.receive())

    def test_an_outbox_sends_everything_in_order(self):
        for sizes in [(1, 5, 70_000), (3 << 20, 1, 2 << 20), (100,) * 3000, (300_000,) * 9]:
            with self.subTest(sizes[:3]):
                ours, theirs = self.pair()
                outbox, expected = channel.FrameWriter(theirs), b""
                for number, size in enumerate(sizes):
                    frame = bytes([number % 251]) * size
                    outbox.queue(frame)
                    expected += frame
                received = b""
                while not outbox.flush():
                    received += ours.recv(1 << 20)
                while len(received) < len(expected):
                    received += ours.recv(1 << 20)
                self.assertEqual(received, expected)
                self.assertEqual(outbox.size, 0)

    def test_a_body_file_is_one_descriptor(self):
        ours, theirs = self.pair()
        with tempfile.TemporaryFile() as file:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", file.fileno()))]
            for stream in (7, 7, 8):
                ours.sendmsg([struct.pack("<I", stream)], rights)
            fd = channel.receive_fd(theirs, 7)
            self.addCleanup(os.close, fd)
            self.assertTrue(os.path.sameopenfile(fd, file.fileno()))
            before = len(os.listdir("/proc/self/fd"))
            for wrong in (8, 7):
                with self.assertRaisesRegex(wire.WireError, f"stream {wrong} .* got stream"):
                    channel.receive_fd(theirs, wrong)
            self.assertEqual(len(os.listdir("/proc/self/fd")), before)
        ours.sendall(struct.pack("<I", 7))
        with self.assertRaisesRegex(wire.WireError, "did not come"):
            channel.receive_fd(theirs, 7)

    def test_a_close_reason_is_cut_between_characters(self):
        frame = channel.encode_close(1, 1000, "é" * 100)
        self.assertEqual(frame[14:].decode(), "é" * 61)


if __name__ == "__main__":
    unittest.main()
