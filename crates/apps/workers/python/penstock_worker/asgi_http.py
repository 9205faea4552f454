"""One HTTP request of an ASGI application (ASGI 3.0, HTTP spec 2.3).

`asgi.Reactor` makes a `Request` for each OPEN and runs it as a task; the application gets its
`receive` and `send`. The head waits for the first body event: a response that is whole then leaves as
one frame, any other as ANSWER and DATA, as far as the stream's window goes.

A body that has not come whole with its request is asked for with PULL when the application waits
for it, and comes in pieces.

What must stay true: nothing is sent after the end; a send that waits stops this stream alone; after
the client has left, `send` raises OSError and `receive` gives `http.disconnect`.
"""

from __future__ import annotations

import os
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Dict, Optional

from . import channel
from .channel import DATA_MAX, WINDOW_BYTES
from .stream import RuleBroken, Stream, checked_body, response_head
from .wire import FLAG_END, FLAG_PROTOCOL, FLAG_STREAM, WHOLE_MAX, WireError

if TYPE_CHECKING:
    from .asgi import Reactor

PIECE_BYTES = 64 << 10


class Request(Stream):
    """Its body, its response, and how much of it was sent."""

    __slots__ = (
        "_body",
        "_count",
        "_file",
        "_has_more",
        "_head",
        "_is_answered",
        "_is_pulled",
        "_left",
    )

    def __init__(
        self, reactor: Reactor, stream_id: int, scope: Dict[str, Any], body: bytes
    ) -> None:
        self.reactor = reactor
        self.id = stream_id
        self.scope = scope
        self.window = WINDOW_BYTES
        self.is_gone = self.is_ended = self._is_answered = self._has_more = False
        self.receivers = self.senders = None
        self._body: Optional[bytes] = body
        self._file: Optional[int] = None
        self._head: Optional[bytes] = None

    def use_file(self, fd: int) -> None:
        """Takes the body from an unlinked file, which `close` closes."""
        self._file = fd
        self._left = os.fstat(fd).st_size

    def await_body(self) -> None:
        """More of the body follows what came with the request."""
        self._has_more, self._is_pulled = True, False
        self._body = self._body or None

    def take(self, flags: int, piece: bytes) -> None:
        """The next piece of the body has come."""
        if not self._has_more or not self._is_pulled:
            raise WireError("a piece of a body that nobody asked for")
        self._is_pulled = False
        self._has_more = not flags & FLAG_END
        # The last piece is one also when it is empty.
        self._body = piece
        if self.receivers:
            self.wake(self.receivers)

    async def receive(self) -> Dict[str, Any]:
        """The callable of the application."""
        body = self._body
        if body is not None and not self.is_gone and not self.is_ended:
            if self._file is not None:
                return self._piece(self._file)
            self._body = None
            return {"type": "http.request", "body": body, "more_body": self._has_more}
        while not self.is_gone and not self.is_ended:
            if self._has_more and not self._is_pulled:
                self._is_pulled = True
                self.reactor.put(channel.pull(self.id), perf_counter_ns())
            await self.wait_to_receive()
            if self._body is not None:
                return await self.receive()
        return {"type": "http.disconnect"}

    async def send(self, event: Dict[str, Any]) -> None:
        """The callable of the application."""
        kind = event["type"]
        if self.is_gone or self.is_ended:
            raise self.refusal(kind)
        if self._head is None:
            if kind != "http.response.start":
                raise RuleBroken(f"{kind!r} before 'http.response.start'")
            self._count, self._head = response_head(event)
            return
        if kind != "http.response.body":
            raise RuleBroken(f"{kind!r} after 'http.response.start'")
        body = event.get("body", b"")
        if type(body) is not bytes:
            body = checked_body(event)
        reactor = self.reactor
        if event.get("more_body", False):
            await self._send_piece(body, 0)
        elif not self._is_answered and len(body) <= WHOLE_MAX:
            now = perf_counter_ns()
            micros = (now - self.started) // 1000
            self.is_ended = True
            frame = channel.answer(self.id, FLAG_END, self._count, micros, self._head, body)
            reactor.put(frame, now)
        else:
            await self._send_piece(body, FLAG_END)
            self.is_ended = True
        if self.is_ended and self.receivers:
            self.wake(self.receivers)
        if reactor.is_full:
            await reactor.drained()

    def has_answered(self) -> bool:
        """Whether any of the response was sent."""
        return self._is_answered or self.is_ended

    def finish(self) -> None:
        """The application has returned."""
        if self.is_ended:
            return
        if self.is_gone:
            self.end_with(0, "cancelled")
        elif self._is_answered:
            self.complain("the application returned before its response was complete")
            self.end_with(0, "the response is not complete")
        else:
            self.complain("the application returned without a response")
            self.end_with(FLAG_PROTOCOL, "no response")

    def close(self) -> None:
        """Gives up what the request holds."""
        if self._file is not None:
            os.close(self._file)
            self._file = self._body = None

    def _piece(self, fd: int) -> Dict[str, Any]:
        # From the page cache: the server has just written it.
        piece = os.read(fd, PIECE_BYTES)
        self._left -= len(piece)
        has_more = bool(piece) and self._left > 0
        if not has_more:
            self._body = None
        return {"type": "http.request", "body": piece, "more_body": has_more}

    async def _send_piece(self, body: bytes, end: int) -> None:
        """Sends a part of a streamed body, the last with `end`, as windows come."""
        at, left = 0, len(body)
        while True:
            size = min(left, DATA_MAX)
            if size > self.window:
                # What has room goes now; an empty window waits.
                if self.window == 0:
                    await self.wait_to_send()
                    continue
                size = self.window
            flags = end if size == left else 0
            self._put(body[at : at + size] if size < len(body) else body, flags)
            self.window -= size
            at += size
            left -= size
            if not left:
                return
            if self.reactor.is_full:
                await self.reactor.drained()
                if self.is_gone:
                    raise self.refusal("http.response.body")

    def _put(self, piece: bytes, flags: int) -> None:
        now = perf_counter_ns()
        if self._is_answered:
            if piece or flags:
                self.reactor.put(channel.data(self.id, flags, piece), now)
            return
        self._is_answered = True
        micros = (now - self.started) // 1000
        head = self._head or b""
        self.reactor.put(
            channel.answer(self.id, FLAG_STREAM, self._count, micros, head, piece), now
        )
        if flags:
            self.reactor.put(channel.data(self.id, flags, b""), now)
