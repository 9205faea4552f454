"""A connection that is taken over while its response is sent works in either order."""

import copy
import gc
import json
import pprint
import socket
import threading
import time
import unittest

from harness import DEADLINE, Peer, request, wire

# isort: split
# Found by way of `harness`.
from penstock_worker import hijack, wsgi

END = (wire.BODY, wire.FLAG_END)


class HeldBack:
    """A socket that sends a descriptor only once `condition` is true."""

    def __init__(self, sock, condition):
        self.sock = sock
        self.condition = condition

    def sendmsg(self, *args):
        deadline = time.monotonic() + DEADLINE
        while not self.condition():
            if time.monotonic() > deadline:
                raise OSError("the condition never came true")
            time.sleep(0.001)
        return self.sock.sendmsg(*args)


class Races(unittest.TestCase):
    def setUp(self):
        ours, theirs = socket.socketpair()
        self.addCleanup(ours.close)
        self.addCleanup(theirs.close)
        self.peer, self.slot = Peer(ours), wire.Slot(theirs)
        self.sock = theirs
        self.peer.send(request())
        self.slot.receive()

    def connection(self):
        """Returns a connection for the current request."""
        connection = hijack.offer(self.slot, {})
        self.addCleanup(connection.finish)
        return connection

    def frames(self, count):
        return [tuple(self.peer.frame())[:2] for _ in range(count)]

    def race(self, respond, has_begun):
        """Another thread begins to take the connection over, and a response overtakes it."""
        self.slot._sock = HeldBack(self.sock, has_begun)
        connection = self.connection()
        taker = threading.Thread(target=connection.sendall, args=(b"x",))
        taker.start()
        deadline = time.monotonic() + DEADLINE
        while not self.slot.is_hijacked():
            self.assertLess(time.monotonic(), deadline, "it never takes the connection over")
        try:
            respond()
        finally:
            taker.join(DEADLINE)
        self.assertTrue(self.slot.is_hijacked())

    def test_a_whole_response_that_comes_second_is_only_an_end(self):
        slot = self.slot
        self.race(
            lambda: slot.send_whole(1, b"200", 0, b"late"), lambda: slot._ended_seq == slot._seq
        )
        self.assertEqual(self.frames(2), [(wire.HIJACK, wire.FLAG_HAS_FD), END])

    def test_a_file_that_comes_second_is_only_an_end(self):
        slot = self.slot

        def respond():
            with open(__file__, "rb") as file:
                slot.send_file(1, b"200", 0, file.fileno(), 0, 10)

        self.race(respond, lambda: slot._ended_seq == slot._seq)
        self.assertEqual(self.frames(2), [(wire.HIJACK, wire.FLAG_HAS_FD), END])

    def test_a_failure_that_comes_second_is_only_an_end(self):
        slot = self.slot
        self.race(
            lambda: slot.send_failure(wire.FAILED, 0, "late"), lambda: slot._ended_seq == slot._seq
        )
        self.assertEqual(self.frames(2), [(wire.HIJACK, wire.FLAG_HAS_FD), END])

    def test_a_stream_that_comes_second_is_told(self):
        slot = self.slot

        def respond():
            with self.assertRaises(wire.ConnectionHijackedError):
                slot.send_head(1, b"200", 0, b"late")

        self.race(respond, lambda: slot._streaming_seq == slot._seq)
        slot.send_end()
        self.assertEqual(self.frames(2), [(wire.HIJACK, wire.FLAG_HAS_FD), END])

    def test_an_application_that_streams_too_late_is_ended(self):
        slot, response = self.slot, wsgi.Response(self.slot, 0)
        response.connection = self.connection()

        def app(environ, start):
            write = start("200 OK", [])
            self.race(lambda: write(b"late"), lambda: slot._hijacked_seq == slot._seq)
            return [b"more"]

        wsgi.run_request(app, {}, response)
        self.assertEqual(self.frames(2), [(wire.HIJACK, wire.FLAG_HAS_FD), END])

    def test_what_only_looks_at_a_connection_takes_nothing_over(self):
        connection = self.connection()
        environ = {"werkzeug.socket": connection}
        looks = (
            lambda: repr(environ),
            lambda: f"{connection} {connection!r}",
            lambda: json.dumps(environ, default=str),
            lambda: pprint.pformat(environ),
            lambda: bool(connection) and connection == connection and hash(connection),
            lambda: (connection.getsockname(), connection.getpeername()),
            lambda: (connection.gettimeout(), connection.settimeout(1), connection.family),
            lambda: self.assertRaises(TypeError, copy.copy, connection),
            gc.collect,
        )
        for look in looks:
            look()
            self.assertFalse(self.slot.is_hijacked())
        self.slot.send_whole(1, b"200", 0, b"first")
        self.assertEqual(self.frames(1), [(wire.HEAD, wire.FLAG_END)])

    def test_a_connection_of_an_earlier_request_takes_nothing_over(self):
        connection = self.connection()
        self.slot.send_whole(1, b"200", 0, b"first")
        self.peer.send(request())
        self.slot.receive()
        with self.assertRaises(OSError):
            connection.sendall(b"x")
        self.slot.send_whole(1, b"200", 0, b"second")
        self.assertEqual(self.frames(2), [(wire.HEAD, wire.FLAG_END)] * 2)


if __name__ == "__main__":
    unittest.main()
