"""One HTTP request of an ASGI application (ASGI 3.0, HTTP spec 2.3).

`asgi.AsgiReactor` makes an `HttpRequest` for each OPEN and runs it as a task; the application gets
its `receive` and `send`. The head waits for the first body event: a complete response leaves as one
frame, any other as STREAM_RESPONSE and DATA, as far as the stream's window goes. The rest of an
incomplete request body is asked for with PULL when the application waits for it.

# Invariants
- Nothing is sent after the end.
- A send that waits stops this stream alone.
- After the client has left, `send` raises OSError and `receive` returns `http.disconnect`.
"""

from __future__ import annotations

import os
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Dict, Optional

from . import channel
from .asgi_stream import AppProtocolError, AsgiStream, body_bytes, response_head
from .channel import MAX_DATA_BYTES, WINDOW_BYTES
from .wire import FLAG_END, FLAG_PROTOCOL_ERROR, FLAG_STREAM, MAX_WHOLE_BODY_BYTES, WireError

if TYPE_CHECKING:
    from .asgi import AsgiReactor

FILE_CHUNK_BYTES = 64 << 10


class HttpRequest(AsgiStream):
    """Its body, its response, and how much of it was sent."""

    __slots__ = ()

    def __init__(
        self, reactor: AsgiReactor, stream_id: int, scope: Dict[str, Any], body: bytes
    ) -> None:
        self.reactor = reactor
        self.id = stream_id
        self.scope = scope
        self.window = WINDOW_BYTES
        self.is_disconnected = self.is_ended = self._is_head_sent = self._has_more = False
        self.receivers = self.senders = self.task = None
        self._body: Optional[bytes] = body
        self._file: Optional[int] = None
        self._head: Optional[bytes] = None

    def set_body_file(self, fd: int) -> None:
        """Takes the body from an unlinked file, which `close` closes."""
        self._file = fd
        self._file_bytes_left = os.fstat(fd).st_size

    def expect_more_body(self) -> None:
        """More of the body follows what came with the request."""
        self._has_more, self._is_pull_pending = True, False
        self._body = self._body or None

    def add_body_piece(self, flags: int, piece: bytes) -> None:
        """The next piece of the body has come."""
        if not self._has_more or not self._is_pull_pending:
            raise WireError("a piece of a body that nobody asked for")
        self._is_pull_pending = False
        self._has_more = not flags & FLAG_END
        # The last piece is one also when it is empty.
        self._body = piece
        if self.receivers:
            self.wake(self.receivers)

    async def receive(self) -> Dict[str, Any]:
        """The callable of the application."""
        body = self._body
        if body is not None and not self.is_disconnected and not self.is_ended:
            if self._file is not None:
                return self._read_file_chunk(self._file)
            self._body = None
            return {"type": "http.request", "body": body, "more_body": self._has_more}
        while not self.is_disconnected and not self.is_ended:
            if self._has_more and not self._is_pull_pending:
                self._is_pull_pending = True
                self.reactor.queue_frame(channel.encode_pull(self.id), perf_counter_ns())
            await self.wait_to_receive()
            if self._body is not None:
                return await self.receive()
        return {"type": "http.disconnect"}

    async def send(self, event: Dict[str, Any]) -> None:
        """The callable of the application."""
        kind = event["type"]
        if self.is_disconnected or self.is_ended:
            raise self.late_send_error(kind)
        if self._head is None:
            if kind != "http.response.start":
                raise AppProtocolError(f"{kind!r} before 'http.response.start'")
            self._string_count, self._head = response_head(event)
            return
        if kind != "http.response.body":
            raise AppProtocolError(f"{kind!r} after 'http.response.start'")
        body = event.get("body", b"")
        if type(body) is not bytes:
            body = body_bytes(event)
        reactor = self.reactor
        if event.get("more_body", False):
            await self._send_windowed(body, 0)
        elif not self._is_head_sent and len(body) <= MAX_WHOLE_BODY_BYTES:
            now = perf_counter_ns()
            micros = (now - self.started) // 1000
            self.is_ended = True
            frame = channel.encode_response(
                self.id, FLAG_END, self._string_count, micros, self._head, body
            )
            reactor.queue_frame(frame, now)
        else:
            await self._send_windowed(body, FLAG_END)
            self.is_ended = True
        if self.is_ended and self.receivers:
            self.wake(self.receivers)
        if reactor.is_full:
            await reactor.wait_for_room()

    def has_started_response(self) -> bool:
        """Whether any of the response was sent."""
        return self._is_head_sent or self.is_ended

    def finish(self) -> None:
        """The application has returned."""
        if self.is_ended:
            return
        if self.is_disconnected:
            self.send_reset(0, "cancelled")
        elif self._is_head_sent:
            self.log_error("the application returned before its response was complete")
            self.send_reset(0, "the response is not complete")
        else:
            self.log_error("the application returned without a response")
            self.send_reset(FLAG_PROTOCOL_ERROR, "no response")

    def close(self) -> None:
        """Gives up what the request holds."""
        if self._file is not None:
            os.close(self._file)
            self._file = self._body = None

    def _read_file_chunk(self, fd: int) -> Dict[str, Any]:
        # From the page cache: the server has just written it.
        piece = os.read(fd, FILE_CHUNK_BYTES)
        self._file_bytes_left -= len(piece)
        has_more = bool(piece) and self._file_bytes_left > 0
        if not has_more:
            self._body = None
        return {"type": "http.request", "body": piece, "more_body": has_more}

    async def _send_windowed(self, body: bytes, end: int) -> None:
        """Sends a part of a streamed body, the last with `end`, as windows come."""
        at, left = 0, len(body)
        while True:
            size = min(left, MAX_DATA_BYTES)
            if size > self.window:
                # What has room goes now; an empty window waits.
                if self.window == 0:
                    await self.wait_to_send()
                    continue
                size = self.window
            flags = end if size == left else 0
            self._send_data(body[at : at + size] if size < len(body) else body, flags)
            self.window -= size
            at += size
            left -= size
            if not left:
                return
            if self.reactor.is_full:
                await self.reactor.wait_for_room()
                if self.is_disconnected:
                    raise self.late_send_error("http.response.body")

    def _send_data(self, piece: bytes, flags: int) -> None:
        now = perf_counter_ns()
        if self._is_head_sent:
            if piece or flags:
                self.reactor.queue_frame(channel.encode_data(self.id, flags, piece), now)
            return
        self._is_head_sent = True
        micros = (now - self.started) // 1000
        head = self._head or b""
        self.reactor.queue_frame(
            channel.encode_response(self.id, FLAG_STREAM, self._string_count, micros, head, piece),
            now,
        )
        if flags:
            self.reactor.queue_frame(channel.encode_data(self.id, flags, b""), now)
