"""Frames between the server and this worker: the mirror of `crates/wire`.

`wsgi` owns one `Slot` per thread and calls `receive`, then exactly one of the methods that answer;
`boot` writes to the control socket with `send_control`. `PROTOCOL.md` is the contract,
`crates/wire/vectors` its examples.

# Invariants
- Responses leave in the order of the requests.
- A complete response leaves with one system call.
- A length is compared with its bound before it is used.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import functools
import marshal
import os
import select
import socket
import struct
import threading
from time import perf_counter_ns
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from . import native

PROTOCOL_VERSION = 2
MAX_PAYLOAD_BYTES = 64 << 20
MAX_HEAD_BYTES = 256 << 10

REQUEST, CANCEL, COLLECT_GARBAGE, INPUT = 1, 2, 3, 4
FD_REQUEST, HEAD, BODY, FILE, ABORT, FAILED = 16, 17, 18, 19, 20, 21
IO_BOUND, EXTEND_DEADLINE, GARBAGE_COLLECTED, PULL, HIJACK = 22, 23, 24, 25, 26
HELLO, READY, BOOT_FAILED, FORK_FAILED = 32, 33, 34, 35
FORK, SLOTS, PROMOTE, DISMISS = 48, 49, 50, 51

FLAG_BODY_FILE = 1
FLAG_BODY_STREAM = 2
FLAG_END = 1
FLAG_STREAM = 2
FLAG_HAS_FD = 2
FLAG_PROTOCOL_ERROR = 1
FLAG_INPUT_ABORTED = 2

UNTIL_END = 0xFFFF_FFFF_FFFF_FFFF
# A whole body up to this size travels in the head's frame, so that the server knows its length.
MAX_WHOLE_BODY_BYTES = 32 << 20
# Up to here copying is cheaper than a second buffer for the kernel to gather.
MAX_JOIN_BYTES = 64 << 10
MAX_BODY_FRAME_BYTES = 256 << 10
MAX_REASON_BYTES = 1000
# Bytes of a request's body in one INPUT.
MAX_INPUT_BYTES = 60 << 10
# Longest extension of a request's time, in seconds.
MAX_EXTEND_SECONDS = 86_400
# Descriptors that travel with one frame.
MAX_FDS = 64
# Descriptors of ours begin here: out of the reach of code that closes "all" small numbers.
MIN_FD = 100
# One receive takes a batch of requests; a larger request gets a buffer of its own for its time.
BUFFER_BYTES = 64 << 10

# Twelve bytes open every frame that a slot receives: the header and the first word of its payload.
_unpack_header = struct.Struct("<BBHI").unpack_from
_unpack_frame = struct.Struct("<BBHII").unpack_from
_pack_frame = struct.Struct("<BBHI").pack
_pack_head = struct.Struct("<BBHIII").pack
_pack_file = struct.Struct("<BBHIQQ").pack
_pack_word = struct.Struct("<BBHII").pack

_IO_BOUND_FRAME = _pack_frame(IO_BOUND, 0, 0, 0)
_PULL_FRAME = _pack_frame(PULL, 0, 0, 0)
_HIJACK_FRAME = _pack_frame(HIJACK, FLAG_HAS_FD, 0, 0)

# The class as it is now: gevent replaces it in its module when it is asked to.
Socket = socket.socket


class WireError(Exception):
    """The server and this worker do not understand each other: the process must end."""


class Disconnected(Exception):
    """The server has closed this slot: the thread must end."""


class ConnectionHijackedError(Exception):
    """The application has taken the connection over: no response can begin."""


class PartialBody(bytes):
    """The beginning of a request's body, whose rest is to be pulled."""


class _ScriptSlotState:
    """What the native part has of a slot, where there is no native part."""

    __slots__ = (
        "_start",
        "_end",
        "_seq",
        "_ended_seq",
        "_hijacked_seq",
        "_noticed_seq",
        "_scanned_to",
        "_buffer",
        "_has_other_sender",
        "_has_streamed_body",
        "_is_pull_pending",
    )


SlotState: Any = native.module.SlotState if native.module else _ScriptSlotState


class Slot(SlotState):
    """One slot socket: requests in, responses out.

    One thread receives and answers; only `mark_as_io_bound`, `extend_timeout`, `pull` and `hijack`
    may be called from others as well, as long as the response has not ended. `before_io_bound` is
    called before the server hears of an I/O-bound request, `collect` when it asks for a collection
    of garbage."""

    __slots__ = (
        "_input_lock",
        "_io_bound_seq",
        "_lock",
        "_poll",
        "_sendall",
        "_sock",
        "_streaming_seq",
        "_view",
        "_was_cancelled",
        "before_io_bound",
        "collect",
    )

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._sendall = sock.sendall
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._seq = self._ended_seq = self._io_bound_seq = self._streaming_seq = -1
        # Of no request, nor of one that is still to come.
        self._hijacked_seq = self._noticed_seq = -2
        self._scanned_to = 0
        self._lock = threading.Lock()
        self._has_other_sender = False
        # The thread that reads the socket for a body that still arrives has it.
        self._input_lock = threading.Lock()
        # The body of the request at hand still comes; a PULL is not answered; CANCEL came
        # meanwhile.
        self._has_streamed_body = self._is_pull_pending = self._was_cancelled = False
        self.before_io_bound: Callable[[], bool] = lambda: True
        self.collect: Callable[[], None] = lambda: None
        if native.is_of_server:
            self._may_have_ring = True
        self._use_buffer(BUFFER_BYTES, b"")

    def receive(self) -> Optional[Tuple[Dict[str, Any], Optional[bytes]]]:
        """The next request as (environ, body); body is None when it is a file to be asked for, a
        `PartialBody` when the rest is to be pulled. None when the server has closed the socket."""
        if self._is_pull_pending:
            # A thread of the application still waits for a piece. It gets none.
            with self._input_lock:
                pass
        while True:
            start = self._start
            if self._end - start >= 12:
                kind, flags, count, length, first = _unpack_frame(self._buffer, start)
                stop = start + 8 + length
                if kind == REQUEST:
                    if length > MAX_PAYLOAD_BYTES or first + 4 > length or flags > 2 or count:
                        raise WireError("a request frame contradicts itself")
                    if stop <= self._end:
                        middle = start + 12 + first
                        self._start = stop
                        self._seq += 1
                        view = self._view
                        environ = marshal.loads(view[start + 12 : middle])
                        self._has_streamed_body = False
                        if flags:
                            return environ, self._begin_body(flags, middle, stop)
                        return environ, bytes(view[middle:stop]) if middle < stop else b""
                else:
                    # A cancellation that is read here is for a response that has ended: those that
                    # matter are found by `is_cancelled` before the worker comes back here.
                    if kind == COLLECT_GARBAGE:
                        self._answer_gc(flags, count, length)
                    elif kind == INPUT:
                        if not self._skip_input(stop) and not self._fill_buffer():
                            return None
                        continue
                    else:
                        self._check_cancel(kind, flags, count, length)
                    self._start = stop
                    continue
            elif self._end - start >= 8 and self._buffer[start] == COLLECT_GARBAGE:
                self._answer_gc(*_unpack_header(self._buffer, start)[1:])
                self._start = start + 8
                continue
            elif self._end - start >= 8 and self._buffer[start] == INPUT:
                if self._skip_input(start + 8 + _unpack_header(self._buffer, start)[3]):
                    continue
            if not self._fill_buffer():
                return None

    def is_cancelled(self) -> bool:
        """Whether the server has cancelled the request received last; never blocks."""
        if self._has_streamed_body:
            return self._is_cancelled_beside_body()
        if self._end < len(self._buffer) and self._poll.poll(0) and not self._receive_more():
            raise Disconnected
        at = max(self._scanned_to, self._start)
        while self._end - at >= 12:
            kind, flags, count, length, first = _unpack_frame(self._buffer, at)
            at += 8 + length
            if kind == CANCEL:
                self._check_cancel(kind, flags, count, length)
                self._scanned_to = at
                if first == self._seq & 0xFFFF_FFFF:
                    return True
        return False

    def receive_fd(self) -> int:
        """Asks for the body file of the request received last."""
        self._send(_pack_frame(FD_REQUEST, 0, 0, 0))
        try:
            data, fds = receive_with_fds(self._sock, 1, 1)
        except OSError as error:
            raise Disconnected from error
        if not data:
            raise Disconnected
        if len(fds) != 1:
            raise WireError("a body file was promised and one descriptor did not come")
        return fds[0]

    def body_puller(self) -> Callable[[], Optional[Tuple[bytes, bool]]]:
        """What pulls the body of the request received last, piece by piece."""
        return functools.partial(self.pull, self._seq)

    def pull(self, seq: int) -> Optional[Tuple[bytes, bool]]:
        """Waits for the next piece of the body of this request: its bytes, and whether it is the
        last. None when the rest never comes, or the response has ended."""
        with self._input_lock:
            if not self._is_pull_pending:
                self._is_pull_pending = True
                if not self._send_notice(_PULL_FRAME, seq):
                    self._is_pull_pending = False
                    return None
            elif self._seq != seq:
                return None
            while True:
                at, piece = self._start, self._end - self._start
                if piece >= 8:
                    kind, flags, count, length = _unpack_header(self._buffer, at)
                    stop = at + 8 + length
                    if kind == INPUT:
                        if flags > 2 or count or length > MAX_INPUT_BYTES:
                            raise WireError("an input frame contradicts itself")
                        if stop <= self._end:
                            # Copied before another thread may receive over it.
                            data = bytes(self._view[at + 8 : stop])
                            self._start = stop
                            self._is_pull_pending = False
                            if flags == FLAG_INPUT_ABORTED:
                                return None
                            return data, flags == FLAG_END
                    else:
                        self._check_cancel(kind, flags, count, length)
                        if stop <= self._end:
                            self._record_cancel(at)
                            self._start = stop
                            continue
                if not self._fill_buffer():
                    raise Disconnected

    def mark_as_io_bound(self) -> bool:
        """`penstock.mark_as_io_bound`: the request at hand waits for something else than the
        processor. True when the server was told, False when it knew or the response has ended."""
        if self._io_bound_seq == self._seq or not self.before_io_bound():
            return False
        return self._send_notice(_IO_BOUND_FRAME)

    def extend_timeout(self, seconds: float) -> bool:
        """`penstock.extend_timeout`: the request at hand may take so many seconds from now on (1 to
        86,400). True when the server was told, False when the response has ended."""
        if not 1 <= seconds <= MAX_EXTEND_SECONDS:
            raise ValueError(
                f"extend_timeout takes 1 to {MAX_EXTEND_SECONDS} seconds, not {seconds!r}"
            )
        return self._send_notice(_pack_word(EXTEND_DEADLINE, 0, 0, 4, int(-(-seconds // 1))))

    def fileno(self) -> int:
        """The descriptor of the socket."""
        return self._sock.fileno()

    def close(self) -> None:
        """Closes the socket; what is called after it raises Disconnected."""
        self._sock.close()

    def send_whole(self, count: int, head: bytes, started: int, body: bytes) -> None:
        """Sends a response whose body is complete."""
        size, head_len = len(body), len(head)
        micros = (perf_counter_ns() - started) // 1000 & 0xFFFF_FFFF
        prefix = _pack_head(HEAD, FLAG_END, count, 8 + head_len + size, micros, head_len)
        self._ended_seq = self._seq
        if self._has_other_sender:
            self._wait_for_other_sender()
        if self._hijacked_seq == self._seq:
            self.send_end()
        elif size <= MAX_JOIN_BYTES:
            try:
                self._sendall(prefix + head + body)
            except BaseException as error:
                self._end_interrupted(error)
                raise
        else:
            self._send(prefix + head, body)

    def send_head(self, count: int, head: bytes, started: int, body: bytes) -> None:
        """Sends a head and the first part of its body, at most `MAX_BODY_FRAME_BYTES`; more follows.
        Raises ConnectionHijackedError when another thread was quicker."""
        self._streaming_seq = self._seq
        if self._has_other_sender:
            self._wait_for_other_sender()
        if self._hijacked_seq == self._seq:
            raise ConnectionHijackedError
        self._send(self._stream_head(count, head, started, len(body)), body)

    def send_body(self, chunk: bytes) -> None:
        """Sends a piece of a streamed body."""
        if len(chunk) <= MAX_BODY_FRAME_BYTES:
            self._send(_pack_frame(BODY, 0, 0, len(chunk)), chunk)
            return
        view = memoryview(chunk)
        for at in range(0, len(view), MAX_BODY_FRAME_BYTES):
            piece = view[at : at + MAX_BODY_FRAME_BYTES]
            self._send(_pack_frame(BODY, 0, 0, len(piece)), piece)

    def send_end(self) -> None:
        """Ends a streamed response."""
        self._ended_seq = self._seq
        self._send(_pack_frame(BODY, FLAG_END, 0, 0))

    def send_file(
        self, count: int, head: bytes, started: int, fd: int, offset: int, length: int
    ) -> None:
        """Sends a response whose body is a range of an open file."""
        data = self._stream_head(count, head, started, 0)
        data += _pack_file(FILE, FLAG_END | FLAG_HAS_FD, 0, 16, offset, length)
        # The descriptor must travel with the first byte of the FILE frame, and it does: the kernel
        # ties it to the first byte of this message, and never merges it with an earlier one.
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
        self._ended_seq = self._seq
        self._wait_for_other_sender()
        if self._hijacked_seq == self._seq:
            self.send_end()
            return
        try:
            sent = self._sock.sendmsg([data], rights)
            if sent < len(data):
                self._sendall(data[sent:])
        except BaseException as error:
            self._end_interrupted(error)
            raise

    def hijack(self, sock: socket.socket, seq: int) -> bool:
        """The application answers request `seq` by itself, on the other end of this socket; from
        any thread. What is left to send is the end. False when the response has begun: of that and
        this one sees the other, as in `_send_notice`."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [sock.fileno()]))]
        with self._lock:
            self._has_other_sender = True
            try:
                if self._seq != seq or seq in (self._streaming_seq, self._ended_seq):
                    return False
                self._hijacked_seq = seq
                self._sock.sendmsg([_HIJACK_FRAME], rights)
            except OSError as error:
                raise Disconnected from error
            finally:
                self._has_other_sender = False
        return True

    def is_hijacked(self) -> bool:
        """Whether the application answers the request at hand by itself."""
        return self._hijacked_seq == self._seq

    def request_number(self) -> int:
        """The number of the request at hand."""
        return self._seq

    def send_failure(self, kind: int, flags: int, reason: str) -> None:
        """Sends ABORT or FAILED."""
        text = reason[:MAX_REASON_BYTES].encode("utf-8", "replace")
        self._ended_seq = self._seq
        if self._has_other_sender:
            self._wait_for_other_sender()
        if self._hijacked_seq == self._seq:
            self.send_end()
        else:
            self._send(_pack_frame(kind, flags, 0, len(text)) + text)

    def _stream_head(self, count: int, head: bytes, started: int, size: int) -> bytes:
        micros = (perf_counter_ns() - started) // 1000 & 0xFFFF_FFFF
        length = 8 + len(head) + size
        return _pack_head(HEAD, FLAG_STREAM, count, length, micros, len(head)) + head

    def _send(self, prefix: bytes, payload: Any = b"") -> None:
        with self._lock:
            try:
                if len(payload) <= MAX_JOIN_BYTES:
                    self._sendall(prefix + payload)
                    return
                sent = self._sock.sendmsg([prefix, payload])
                if sent < len(prefix):
                    self._sendall(prefix[sent:])
                    sent = len(prefix)
                if sent < len(prefix) + len(payload):
                    self._sendall(memoryview(payload)[sent - len(prefix) :])
            except BaseException as error:
                self._end_interrupted(error)
                raise

    def _end_interrupted(self, error: BaseException) -> None:
        """Ends the slot after a send that failed. A signal's handler may have raised in the middle of
        a frame: what would be sent next would be read as the rest of it, by another client."""
        if isinstance(error, OSError):
            raise Disconnected from error
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def _send_notice(self, frame: bytes, about: Optional[int] = None) -> bool:
        """Sends a frame about the request at hand (that it is this one, if it matters), from any
        thread, unless its response has ended.

        `_has_other_sender` is set before `_ended_seq` is looked at, and a response sets `_ended_seq` before it
        looks at `_has_other_sender`: one of the two sees the other, and the usual response takes no
        lock."""
        with self._lock:
            self._has_other_sender = True
            try:
                seq = self._seq
                if about is not None and about != seq:
                    return False
                if self._ended_seq == seq or (
                    frame is _IO_BOUND_FRAME and self._io_bound_seq == seq
                ):
                    return False
                if frame is _IO_BOUND_FRAME:
                    self._io_bound_seq = seq
                self._noticed_seq = seq
                self._sendall(frame)
                return True
            except OSError:
                return False
            finally:
                self._has_other_sender = False

    def _begin_body(self, flags: int, at: int, stop: int) -> Optional[bytes]:
        if flags == FLAG_BODY_FILE:
            return None
        self._has_streamed_body, self._was_cancelled = True, False
        return PartialBody(self._view[at:stop])

    def _is_cancelled_beside_body(self) -> bool:
        """As `is_cancelled`, while a thread of the application's may read the body."""
        if not self._input_lock.acquire(blocking=False):
            return self._was_cancelled
        try:
            if self._end < len(self._buffer) and self._poll.poll(0) and not self._receive_more():
                raise Disconnected
            at = self._start
            while self._end - at >= 8:
                kind, _, _, length = _unpack_header(self._buffer, at)
                if kind == CANCEL and self._end - at >= 12:
                    self._record_cancel(at)
                at += 8 + length
            return self._was_cancelled
        finally:
            self._input_lock.release()

    def _record_cancel(self, at: int) -> None:
        if _unpack_frame(self._buffer, at)[4] == self._seq & 0xFFFF_FFFF:
            self._was_cancelled = True

    def _skip_input(self, stop: int) -> bool:
        """Leaves out a piece that came too late for its request; False while it is not whole."""
        if not self._is_pull_pending or stop - self._start > 8 + MAX_INPUT_BYTES:
            raise WireError("unknown frame")
        if stop > self._end:
            return False
        self._start = stop
        self._is_pull_pending = False
        return True

    def _wait_for_other_sender(self) -> None:
        with self._lock:
            pass

    def _answer_gc(self, flags: int, count: int, length: int) -> None:
        if flags or count or length:
            raise WireError("unknown frame")
        self.collect()
        self._send(_pack_frame(GARBAGE_COLLECTED, 0, 0, 0))

    def _fill_buffer(self) -> bool:
        """Receives at least one byte more, after making room for the whole frame."""
        left = self._end - self._start
        self._scanned_to = 0
        if left == 0:
            if len(self._buffer) > BUFFER_BYTES:
                self._use_buffer(BUFFER_BYTES, b"")
            self._start = self._end = 0
            return self._receive_more()
        needed = 12
        if left >= 12:
            needed = 8 + _unpack_frame(self._buffer, self._start)[3]
        if self._start + needed > len(self._buffer):
            rest = bytes(self._view[self._start : self._end])
            self._use_buffer(max(needed, BUFFER_BYTES), rest)
        return self._receive_more()

    def _receive_more(self) -> bool:
        end = self._end
        try:
            got = self._sock.recv_into(self._view[end:] if end else self._buffer)
        except OSError:
            return False
        self._end = end + got
        return got > 0

    def _use_buffer(self, size: int, rest: bytes) -> None:
        self._buffer = bytearray(size)
        self._view = memoryview(self._buffer)
        self._start, self._end = 0, len(rest)
        self._buffer[: len(rest)] = rest

    @staticmethod
    def _check_cancel(kind: int, flags: int, count: int, length: int) -> None:
        if kind != CANCEL or flags or count or length != 4:
            raise WireError("unknown frame")


def join_head(strings: Sequence[str]) -> bytes:
    """Status line, names and values as they travel.

    Raises ValueError when one holds a control character (one of them is the border between strings)
    or is no latin-1, TypeError when one is no text."""
    head = "\0".join(strings).encode("latin-1")
    if len(head.translate(None, _CONTROL_CHARS)) != len(head) - len(strings) + 1:
        raise ValueError("a control character")
    if len(head) > MAX_HEAD_BYTES or len(strings) > 0xFFFF:
        raise ValueError("more than 256 KiB")
    return head


def adopt_socket(fd: int) -> socket.socket:
    """The socket of a descriptor that this process was given, at a number of `MIN_FD` or more."""
    sock = Socket(fileno=move_fd(fd))
    sock.setblocking(True)
    return sock


def move_fd(fd: int) -> int:
    """The same file at a number of `MIN_FD` or more; no program inherits it."""
    try:
        number = duplicate_fd(fd)
    except OSError:
        # The limit on open files is that low.
        os.set_inheritable(fd, False)
        return fd
    os.close(fd)
    return number


def duplicate_fd(fd: int) -> int:
    """A second descriptor of the same file, at `MIN_FD` or more; no program inherits it."""
    return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, MIN_FD)


def receive_with_fds(sock: socket.socket, size: int, max_fds: int) -> Tuple[bytes, List[int]]:
    """Up to `size` bytes, and the descriptors that came with the first of them.

    Raises WireError when there were more than `max_fds`, OSError when the socket is broken."""
    fds = array.array("i")
    space = socket.CMSG_SPACE(4 * max_fds)
    data, ancillary, flags, _ = sock.recvmsg(size, space, socket.MSG_CMSG_CLOEXEC)
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(payload[: len(payload) // 4 * 4])
    if flags & socket.MSG_CTRUNC or len(fds) > max_fds:
        raise WireError("more descriptors came than were promised")
    return data, list(fds)


def receive_control(sock: socket.socket) -> Optional[Tuple[int, int, bytes, List[int]]]:
    """The next frame on a control socket as (kind, flags, payload, descriptors); None when the
    server has closed it or has gone."""
    try:
        head, fds = receive_with_fds(sock, 8, MAX_FDS)
        while 0 < len(head) < 8:
            more = sock.recv(8 - len(head))
            if not more:
                return None
            head += more
        if not head:
            return None
        kind, flags, count, length = _unpack_header(head)
        if kind not in (FORK, SLOTS, PROMOTE, DISMISS) or count or length > MAX_FDS:
            raise WireError(f"an unknown control frame of kind {kind}")
        payload = b""
        while len(payload) < length:
            more = sock.recv(length - len(payload))
            if not more:
                return None
            payload += more
    except OSError:
        return None
    return kind, flags, payload, fds


def send_control(sock: socket.socket, kind: int, payload: bytes) -> None:
    """Sends HELLO, READY, BOOT_FAILED or FORK_FAILED."""
    sock.sendall(_pack_frame(kind, 0, 0, len(payload)) + payload)


_CONTROL_CHARS = bytes(byte for byte in range(128) if (byte < 32 and byte != 9) or byte == 127)
