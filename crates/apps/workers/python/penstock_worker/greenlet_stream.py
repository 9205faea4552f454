"""One request of `greenlets`, with the methods of `wire.Slot` by which `wsgi` answers.

What must stay true: the stream ends once; a wait for window stops this greenlet alone, and ends with
`Disconnected` when the client leaves.
"""

from __future__ import annotations

import os
import socket
from time import monotonic, perf_counter_ns
from typing import TYPE_CHECKING, Any, Callable, Optional, Tuple

from . import channel
from .channel import DATA_MAX, WINDOW_BYTES
from .wire import FLAG_END, FLAG_STREAM, TO_THE_END, ConnectionTakenError, Disconnected, WireError

if TYPE_CHECKING:
    from .greenlets import Reactor


class Stream:
    """One request, with the methods of `wire.Slot` by which `wsgi` answers."""

    __slots__ = (
        "_changed",
        "_has_begun",
        "_is_hijacked",
        "_is_pulled",
        "_piece",
        "_reactor",
        "_window",
        "body_fd",
        "id",
        "is_ended",
        "is_gone",
    )

    def __init__(self, reactor: Reactor, stream_id: int) -> None:
        self._reactor = reactor
        self._window = WINDOW_BYTES
        self._changed: Any = None
        self.id = stream_id
        self.body_fd = -1
        self.is_gone = self.is_ended = self._is_pulled = False
        self._has_begun = self._is_hijacked = False
        self._piece: Optional[Tuple[bytes, bool]] = None

    def give(self, size: int) -> None:
        """So many bytes more may be sent."""
        self._window += size
        if self._changed is not None:
            self._changed.set()

    def leave(self) -> None:
        """The client has left, or wants no more."""
        self.is_gone = True
        if self._changed is not None:
            self._changed.set()

    def take(self, flags: int, piece: bytes) -> None:
        """The next piece of the body has come."""
        if not self._is_pulled:
            raise WireError("a piece of a body that nobody asked for")
        self._is_pulled = False
        self._piece = piece, bool(flags & FLAG_END)
        if self._changed is not None:
            self._changed.set()

    def puller(self) -> Callable[[], Optional[Tuple[bytes, bool]]]:
        return self.pull

    def pull(self) -> Optional[Tuple[bytes, bool]]:
        """Waits for the next piece of the body: its bytes, and whether it is the last. None when
        the rest never comes, or the response has ended."""
        while self._piece is None:
            if self.is_gone or self.is_ended:
                return None
            if not self._is_pulled:
                self._is_pulled = True
                self._reactor.put(channel.pull(self.id))
            self._wait_for_change()
        piece, self._piece = self._piece, None
        return piece

    def receive_fd(self) -> int:
        return self.body_fd

    def is_cancelled(self) -> bool:
        return self.is_gone

    def send_whole(self, count: int, head: bytes, started: int, body: bytes) -> None:
        if self._is_hijacked:
            return self.send_end()
        micros = (perf_counter_ns() - started) // 1000
        self._end()
        self._reactor.put(channel.answer(self.id, FLAG_END, count, micros, head, body))
        self._reactor.wait_for_room()

    def hijack(self, sock: socket.socket, _request: int) -> bool:
        """As a slot's. A response may begin while this waits, not between its last two steps."""
        deadline = monotonic() + channel.FILES_TIMEOUT
        while not self._has_begun and not self.is_ended:
            if self._reactor.send_socket(self.id, sock):
                self._is_hijacked = True
                self._reactor.put(channel.hijack(self.id))
                return True
            self._reactor.wait_for_files(deadline - monotonic())
        return False

    def is_hijacked(self) -> bool:
        return self._is_hijacked

    def request_number(self) -> int:
        return self.id

    def send_head(self, count: int, head: bytes, started: int, body: bytes) -> None:
        if self._is_hijacked:
            raise ConnectionTakenError
        self._has_begun = True
        first = body[:DATA_MAX]
        micros = (perf_counter_ns() - started) // 1000
        self._window -= len(first)
        self._reactor.put(channel.answer(self.id, FLAG_STREAM, count, micros, head, first))
        if len(body) > DATA_MAX:
            self.send_body(body[DATA_MAX:])

    def send_body(self, chunk: bytes) -> None:
        view = memoryview(chunk)
        at = 0
        while at < len(view):
            size = min(len(view) - at, DATA_MAX, self._window)
            if size == 0:
                self._wait()
                continue
            self._window -= size
            self._reactor.put(channel.data(self.id, 0, view[at : at + size]))
            self._reactor.wait_for_room()
            at += size

    def send_end(self) -> None:
        self._end()
        self._reactor.put(channel.data(self.id, FLAG_END, b""))

    def send_file(
        self, count: int, head: bytes, started: int, fd: int, offset: int, length: int
    ) -> None:
        """Reads what a slot passes as a descriptor: the channel carries bytes only."""
        left = length if length != TO_THE_END else max(os.fstat(fd).st_size - offset, 0)
        if left <= DATA_MAX:
            self.send_whole(count, head, started, os.pread(fd, left, offset))
            return
        self.send_head(count, head, started, b"")
        while left:
            piece = os.pread(fd, min(left, DATA_MAX), offset)
            if not piece:
                break  # Shorter than it was: the server compares with what was declared.
            self.send_body(piece)
            offset += len(piece)
            left -= len(piece)
        self.send_end()

    def send_reason(self, _kind: int, flags: int, reason: str) -> None:
        self._end()
        self._reactor.put(channel.reset(self.id, flags, reason))

    def end_anyhow(self) -> None:
        """Ends what has not ended yet."""
        if not self.is_ended and not self._reactor.is_closed:
            reason = "cancelled" if self.is_gone else "the response is not complete"
            self.send_reason(channel.RESET, 0, reason)

    def _end(self) -> None:
        self.is_ended = True
        if self._changed is not None:
            # A greenlet of the application's may wait for more of the body.
            self._changed.set()

    def _wait(self) -> None:
        self._wait_for_change()
        if self.is_gone:
            raise Disconnected

    def _wait_for_change(self) -> None:
        if self._changed is None:
            self._changed = self._reactor.new_event()
        self._changed.clear()
        if not self.is_gone:
            self._changed.wait()
