"""Replays the vectors in `crates/wire/vectors`, which the Rust and Ruby tests replay too."""

import json
import marshal
import os
import socket
import sys
import tempfile
import threading
import time
import unittest

from harness import VECTORS, Peer, encode_environ, send_with_fds, wire


def blocks(name):
    """Returns the blocks of a vector file: `key: value` lines, separated by empty lines."""
    text = (VECTORS / f"{name}.txt").read_text()
    for part in text.split("\n\n"):
        lines = [line for line in part.splitlines() if line and not line.startswith("#")]
        if lines:
            yield dict(line.split(": ", 1) for line in lines)


class Vectors(unittest.TestCase):
    def slot(self):
        """Returns a slot and the server's end of its socket."""
        ours, theirs = socket.socketpair()
        self.addCleanup(ours.close)
        self.addCleanup(theirs.close)
        return Peer(ours), wire.Slot(theirs)

    def test_environments_load(self):
        for block in blocks("environ"):
            with self.subTest(block["name"]):
                pairs = dict(json.loads(block["pairs"]))
                data = bytes.fromhex(block["python"])
                self.assertEqual(marshal.loads(data), pairs)
                self.assertEqual(encode_environ(pairs), data, "the harness writes the same")

    def test_requests_are_received_wherever_they_are_cut(self):
        for block in blocks("to_worker"):
            if "pairs" not in block:
                continue
            frame = bytes.fromhex(block["python"])
            cancel = bytes.fromhex("020000000400000007000000")
            body = (
                None if json.loads(block["file"]) else json.loads(block["body"]).encode("latin-1")
            )
            if "stream" in block:
                body = wire.PartialBody(body)
            expected = (dict(json.loads(block["pairs"])), body)
            for cut in range(1, len(frame) * 2):
                with self.subTest(block["name"], cut=cut):
                    peer, slot = self.slot()
                    data = cancel + frame + frame
                    peer.send(data[:cut])
                    received = []
                    if cut >= len(cancel) + len(frame):
                        received.append(slot.receive())
                    peer.send(data[cut:])
                    peer.sock.shutdown(socket.SHUT_WR)
                    received += iter(slot.receive, None)
                    self.assertEqual(received, [expected, expected])
                    self.assertIs(type(received[0][1]), type(body))

    def test_pieces_of_a_body_are_received_wherever_they_are_cut(self):
        request = next(b for b in blocks("to_worker") if "stream" in b)
        pieces = [b for b in blocks("to_worker") if "input" in b]
        self.assertEqual(len(pieces), 4)
        for block in pieces:
            frame, flags = bytes.fromhex(block["both"]), int(block["flags"])
            piece = (json.loads(block["input"]).encode("latin-1"), flags == wire.FLAG_END)
            for cut in range(len(frame)):
                with self.subTest(block["name"], cut=cut):
                    peer, slot = self.slot()
                    peer.send(bytes.fromhex(request["python"]))
                    self.assertEqual(slot.receive()[1], b"x=\xff")
                    pull, seen = slot.body_puller(), []
                    peer.send(frame[:cut])
                    thread = threading.Thread(target=lambda p=pull, s=seen: s.append(p()))
                    thread.start()
                    self.assertEqual(peer.take(8)[0], wire.PULL)
                    peer.send(frame[cut:])
                    thread.join(10)
                    self.assertEqual(seen, [None if flags == wire.FLAG_INPUT_ABORTED else piece])

    def test_cancels_are_seen_for_the_request_in_progress_only(self):
        for block in blocks("to_worker"):
            if "seq" not in block:
                continue
            with self.subTest(block["name"]):
                peer, slot = self.slot()
                peer.send(bytes.fromhex(block["both"]))
                slot._seq = 3
                self.assertFalse(slot.is_cancelled())
                slot._seq = int(block["seq"])
                slot._scanned_to = 0
                self.assertTrue(slot.is_cancelled())

    def test_frames_beside_responses_are_written(self):
        for block in blocks("words_of_worker"):
            with self.subTest(block["name"]):
                peer, slot = self.slot()
                # The first request has been received.
                slot._seq = 0
                if block["say"] == "io_bound":
                    self.assertTrue(slot.mark_as_io_bound())
                elif block["say"] == "pull":
                    peer.send(bytes.fromhex("0402000000000000"))
                    self.assertIsNone(slot.pull(0))
                elif block["say"] == "extend":
                    self.assertTrue(slot.extend_timeout(int(block["seconds"])))
                else:
                    slot._answer_gc(0, 0, 0)
                expected = bytes.fromhex(block["hex"])
                self.assertEqual(peer.take(len(expected)).hex(), expected.hex())

    def test_a_collection_is_answered_wherever_its_frame_is_cut(self):
        (collect,) = (b for b in blocks("to_worker") if b["name"].startswith("collect"))
        data = bytes.fromhex(collect["both"])
        for cut in range(1, len(data)):
            with self.subTest(cut=cut):
                peer, slot = self.slot()
                done = []
                slot.collect = lambda done=done: done.append(True)
                peer.send(data[:cut])
                peer.send(data[cut:])
                peer.sock.shutdown(socket.SHUT_WR)
                self.assertIsNone(slot.receive())
                self.assertEqual(done, [True])
                self.assertEqual(peer.take(8)[0], wire.GARBAGE_COLLECTED)

    def test_nonsense_ends_the_process(self):
        for block in blocks("to_worker_refused"):
            with self.subTest(block["name"]):
                peer, slot = self.slot()
                peer.send(bytes.fromhex(block["hex"]))
                peer.sock.shutdown(socket.SHUT_WR)
                with self.assertRaises((wire.WireError, ValueError, EOFError, TypeError)):
                    slot.receive()

    def test_responses_are_written(self):
        for block in blocks("from_worker"):
            with self.subTest(block["name"]):
                peer, slot = self.slot()
                send(slot, *json.loads(block["send"]))
                expected = bytes.fromhex(block["hex"])
                data = bytearray(peer.take(len(expected)))
                if data[0] == wire.HEAD:
                    data[8:12] = bytes(4)
                self.assertEqual(data.hex(), expected.hex())

    def test_control_frames_are_written(self):
        for block in blocks("control"):
            ours, theirs = socket.socketpair()
            with self.subTest(block["name"]), ours, theirs:
                kind = int(block["kind"])
                text = json.loads(block.get("text", '"\\u0002\\u0000\\u0000\\u0000"'))
                wire.send_control(ours, kind, text.encode())
                expected = bytes.fromhex(block["hex"])
                self.assertEqual(theirs.recv(100), expected)

    def test_control_frames_are_received_wherever_they_are_cut(self):
        for block in blocks("control_to_process"):
            data = bytes.fromhex(block["hex"])
            fds = 3 if "worker" in block else len(block.get("kinds", ""))
            for cut in range(1, len(data) + 1):
                ours, theirs = socket.socketpair()
                with self.subTest(block["name"], cut=cut), ours, theirs:
                    send_with_fds(Peer(ours), data[:cut], [ours.fileno()] * fds)
                    ours.sendall(data[cut:])
                    kind, flags, payload, received = wire.receive_control(theirs)
                    for fd in received:
                        self.assertFalse(os.get_inheritable(fd))
                        os.close(fd)
                    self.assertEqual((kind, len(received)), (int(block["kind"]), fds))
                    self.assertEqual(flags, int(block.get("last") == "true"))
                    self.assertEqual(payload, data[8:])

    def test_other_control_frames_are_refused(self):
        for data in (b"GET / HTTP/1.1\r\n", bytes([wire.FORK, 0, 0, 0, 65, 0, 0, 0])):
            ours, theirs = socket.socketpair()
            with self.subTest(data), ours, theirs:
                ours.sendall(data)
                with self.assertRaises(wire.WireError):
                    wire.receive_control(theirs)

    def test_a_request_larger_than_the_buffer_is_followed_by_a_small_one(self):
        big, small = os.urandom(300_000), b"x"
        environ = encode_environ({"A": "b"})
        frames = b""
        for body in (small, big, small):
            length = 4 + len(environ) + len(body)
            frames += bytes([wire.REQUEST, 0, 0, 0]) + length.to_bytes(4, "little")
            frames += len(environ).to_bytes(4, "little") + environ + body
        peer, slot = self.slot()
        peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        peer.send(frames)
        bodies = [slot.receive()[1] for _ in range(3)]
        self.assertEqual(bodies, [small, big, small])
        peer.send(frames[:12])
        self.assertFalse(slot.is_cancelled())
        self.assertEqual(len(slot._buffer), wire.BUFFER_BYTES)


def send(slot, what, *rest):
    """Does what a `send` line of the vectors names."""
    started = time.perf_counter_ns()
    if what == "fd_please":
        slot._send(wire._pack_frame(wire.FD_REQUEST, 0, 0, 0))
        return
    if what == "hijack":
        # The first request has been received.
        slot._seq = 0
        ours, theirs = socket.socketpair()
        with ours, theirs:
            assert slot.hijack(theirs, 0)
        slot.send_end()
        return
    if what == "failed":
        slot.send_failure(wire.FAILED, wire.FLAG_PROTOCOL_ERROR if rest[1] else 0, rest[0])
        return
    strings, rest = rest[0], rest[1:]
    head = wire.join_head(strings)
    if what == "whole":
        slot.send_whole(len(strings), head, started, rest[0].encode("latin-1"))
    elif what == "file":
        length = wire.UNTIL_END if rest[1] is None else rest[1]
        with tempfile.TemporaryFile() as file:
            slot.send_file(len(strings), head, started, file.fileno(), rest[0], length)
    else:
        slot.send_head(len(strings), head, started, rest[0].encode("latin-1"))
        for chunk in rest[1]:
            slot.send_body(chunk.encode("latin-1"))
        if what == "abort":
            slot.send_failure(wire.ABORT, 0, rest[2])
        else:
            slot.send_end()


if __name__ == "__main__":
    unittest.main(argv=sys.argv)
