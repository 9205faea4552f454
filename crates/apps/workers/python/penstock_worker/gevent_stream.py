"""One request of `gevent_reactor`, with the methods of `wire.Slot` by which `wsgi` answers.

# Invariants
- The stream ends once.
- A wait for window stops this greenlet alone, and ends with `Disconnected` when the client leaves.
"""

from __future__ import annotations

import os
import socket
from time import monotonic, perf_counter_ns
from typing import TYPE_CHECKING, Any, Callable, Optional, Tuple

from . import channel
from .channel import MAX_DATA_BYTES, WINDOW_BYTES
from .wire import FLAG_END, FLAG_STREAM, UNTIL_END, ConnectionHijackedError, Disconnected, WireError

if TYPE_CHECKING:
    from .gevent_reactor import GeventReactor


class GeventStream:
    """One request, with the methods of `wire.Slot` by which `wsgi` answers."""

    __slots__ = (
        "_change_event",
        "_has_started_response",
        "_is_hijacked",
        "_is_pull_pending",
        "_body_piece",
        "_reactor",
        "_window",
        "body_fd",
        "id",
        "is_ended",
        "is_disconnected",
    )

    def __init__(self, reactor: GeventReactor, stream_id: int) -> None:
        self._reactor = reactor
        self._window = WINDOW_BYTES
        self._change_event: Any = None
        self.id = stream_id
        self.body_fd = -1
        self.is_disconnected = self.is_ended = self._is_pull_pending = False
        self._has_started_response = self._is_hijacked = False
        self._body_piece: Optional[Tuple[bytes, bool]] = None

    def add_window(self, size: int) -> None:
        """So many bytes more may be sent."""
        self._window += size
        if self._change_event is not None:
            self._change_event.set()

    def disconnect(self) -> None:
        """The client has left, or wants no more."""
        self.is_disconnected = True
        if self._change_event is not None:
            self._change_event.set()

    def add_body_piece(self, flags: int, piece: bytes) -> None:
        """The next piece of the body has come."""
        if not self._is_pull_pending:
            raise WireError("a piece of a body that nobody asked for")
        self._is_pull_pending = False
        self._body_piece = piece, bool(flags & FLAG_END)
        if self._change_event is not None:
            self._change_event.set()

    def body_puller(self) -> Callable[[], Optional[Tuple[bytes, bool]]]:
        return self.pull

    def pull(self) -> Optional[Tuple[bytes, bool]]:
        """Waits for the next piece of the body: its bytes, and whether it is the last. None when
        the rest never comes, or the response has ended."""
        while self._body_piece is None:
            if self.is_disconnected or self.is_ended:
                return None
            if not self._is_pull_pending:
                self._is_pull_pending = True
                self._reactor.queue_frame(channel.encode_pull(self.id))
            self._wait_for_change()
        piece, self._body_piece = self._body_piece, None
        return piece

    def receive_fd(self) -> int:
        return self.body_fd

    def is_cancelled(self) -> bool:
        return self.is_disconnected

    def send_whole(self, count: int, head: bytes, started: int, body: bytes) -> None:
        if self._is_hijacked:
            return self.send_end()
        micros = (perf_counter_ns() - started) // 1000
        self._mark_ended()
        self._reactor.queue_frame(
            channel.encode_response(self.id, FLAG_END, count, micros, head, body)
        )
        self._reactor.wait_for_room()

    def hijack(self, sock: socket.socket, _request: int) -> bool:
        """As a slot's. A response may begin while this waits, not between its last two steps."""
        deadline = monotonic() + channel.FILES_TIMEOUT
        while not self._has_started_response and not self.is_ended:
            if self._reactor.send_socket(self.id, sock):
                self._is_hijacked = True
                self._reactor.queue_frame(channel.encode_hijack(self.id))
                return True
            self._reactor.wait_for_files(deadline - monotonic())
        return False

    def is_hijacked(self) -> bool:
        return self._is_hijacked

    def request_number(self) -> int:
        return self.id

    def send_head(self, count: int, head: bytes, started: int, body: bytes) -> None:
        if self._is_hijacked:
            raise ConnectionHijackedError
        self._has_started_response = True
        first = body[:MAX_DATA_BYTES]
        micros = (perf_counter_ns() - started) // 1000
        self._window -= len(first)
        self._reactor.queue_frame(
            channel.encode_response(self.id, FLAG_STREAM, count, micros, head, first)
        )
        if len(body) > MAX_DATA_BYTES:
            self.send_body(body[MAX_DATA_BYTES:])

    def send_body(self, chunk: bytes) -> None:
        view = memoryview(chunk)
        at = 0
        while at < len(view):
            size = min(len(view) - at, MAX_DATA_BYTES, self._window)
            if size == 0:
                self._wait_for_window()
                continue
            self._window -= size
            self._reactor.queue_frame(channel.encode_data(self.id, 0, view[at : at + size]))
            self._reactor.wait_for_room()
            at += size

    def send_end(self) -> None:
        self._mark_ended()
        self._reactor.queue_frame(channel.encode_data(self.id, FLAG_END, b""))

    def send_file(
        self, count: int, head: bytes, started: int, fd: int, offset: int, length: int
    ) -> None:
        """Reads what a slot passes as a descriptor: the channel carries bytes only."""
        left = length if length != UNTIL_END else max(os.fstat(fd).st_size - offset, 0)
        if left <= MAX_DATA_BYTES:
            self.send_whole(count, head, started, os.pread(fd, left, offset))
            return
        self.send_head(count, head, started, b"")
        while left:
            piece = os.pread(fd, min(left, MAX_DATA_BYTES), offset)
            if not piece:
                break  # Shorter than it was: the server compares with what was declared.
            self.send_body(piece)
            offset += len(piece)
            left -= len(piece)
        self.send_end()

    def send_failure(self, _kind: int, flags: int, reason: str) -> None:
        self._mark_ended()
        self._reactor.queue_frame(channel.encode_reset(self.id, flags, reason))

    def end_if_open(self) -> None:
        """Ends what has not ended yet."""
        if not self.is_ended and not self._reactor.is_closed:
            reason = "cancelled" if self.is_disconnected else "the response is not complete"
            self.send_failure(channel.RESET, 0, reason)

    def _mark_ended(self) -> None:
        self.is_ended = True
        if self._change_event is not None:
            # A greenlet of the application's may wait for more of the body.
            self._change_event.set()

    def _wait_for_window(self) -> None:
        self._wait_for_change()
        if self.is_disconnected:
            raise Disconnected

    def _wait_for_change(self) -> None:
        if self._change_event is None:
            self._change_event = self._reactor.new_event()
        self._change_event.clear()
        if not self.is_disconnected:
            self._change_event.wait()
