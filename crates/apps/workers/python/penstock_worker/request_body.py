"""`wsgi.input`: the request body, complete before the application sees it, or as it arrives.

`wsgi` calls `open_input` once a request. A body in memory becomes a `BytesIO` of its own; a larger
one is an unlinked temporary file that the server passes as a descriptor; one that still arrives
(`request_buffering = false`) is read from the server piece by piece, and a read waits for its
client. All end by themselves, so that `read()` is always safe (`wsgi.input_terminated`).

# Invariants
- A body that was cut raises OSError on each read, and never looks complete.
"""

from __future__ import annotations

import errno
from io import BufferedReader, BytesIO, RawIOBase
from typing import Any, BinaryIO, Callable, Optional, Tuple

from .wire import MAX_INPUT_BYTES, Disconnected, PartialBody, Slot


class RequestBodyCut(OSError):
    """Raised by reads of a body whose rest never comes."""

    def __init__(self) -> None:
        what = "the request body was cut: its client has left, or is refused"
        super().__init__(errno.ECONNRESET, what)


class StreamedBody(RawIOBase):
    """A body that still comes. `pull` waits for its next piece."""

    def __init__(self, pull: Callable[[], Optional[Tuple[bytes, bool]]], first: bytes) -> None:
        self._pull = pull
        self._piece = memoryview(first)
        self._is_last = self._is_aborted = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """At least a byte, unless it is the end."""
        while not self._piece:
            if self._is_aborted:
                raise RequestBodyCut
            if self._is_last:
                return 0
            self._pull_next()
        size = min(len(buffer), len(self._piece))
        buffer[:size] = self._piece[:size]
        self._piece = self._piece[size:]
        return size

    def _pull_next(self) -> None:
        try:
            pulled = self._pull()
        except Disconnected:
            pulled = None
        if pulled is None:
            self._is_aborted = True
            raise RequestBodyCut
        self._piece, self._is_last = memoryview(pulled[0]), pulled[1]


def open_input(slot: Slot, body: Optional[bytes]) -> BinaryIO:
    """The stream for a body as `Slot.receive` gave it; the caller closes what is a file."""
    if body is None:
        return open(slot.receive_fd(), "rb")
    if type(body) is PartialBody:
        return BufferedReader(StreamedBody(slot.body_puller(), body), MAX_INPUT_BYTES)
    return BytesIO(body)
