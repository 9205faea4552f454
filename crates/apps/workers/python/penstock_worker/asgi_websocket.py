"""One WebSocket of an ASGI application (ASGI 3.0, WebSocket spec 2.5).

`asgi.AsgiReactor` makes a `WebSocket` for each OPEN of one. RFC 6455 is the server's part: here are
complete messages, an ACCEPT or a refusal, and a CLOSE in either direction.

# Invariants
- The window of a message is given back when the application has received it, all of it when none
  waits, or the client's next long message would never come.
- Messages of one task leave in its order, each when the window holds it.
- Nothing is sent after CLOSE of either side.
"""

from __future__ import annotations

import asyncio
from collections import deque
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Deque, Dict, List, Optional, Tuple

from . import channel
from .asgi_stream import AppProtocolError, AsgiStream, body_bytes, response_head
from .channel import FLAG_TEXT, WINDOW_BYTES
from .wire import FLAG_END, FLAG_PROTOCOL_ERROR, MAX_PAYLOAD_BYTES, MAX_WHOLE_BODY_BYTES

if TYPE_CHECKING:
    from .asgi import AsgiReactor

ABNORMAL_CLOSURE = 1006
# Window is given back in pieces of this size while messages wait.
WINDOW_UPDATE_BYTES = 64 << 10
DENIAL_RESPONSE = "websocket.http.response"


class WebSocket(AsgiStream):
    """What came from the client and was not received yet, and what may be sent."""

    __slots__ = (
        "_close",
        "_denial",
        "_denial_size",
        "_is_accepted",
        "_is_connected",
        "_lock",
        "_messages",
        "_window_owed",
    )

    def __init__(self, reactor: AsgiReactor, stream_id: int, scope: Dict[str, Any]) -> None:
        scope.setdefault("extensions", {})[DENIAL_RESPONSE] = {}
        self.reactor = reactor
        self.id = stream_id
        self.scope = scope
        self.window = WINDOW_BYTES
        self.is_disconnected = self.is_ended = self._is_accepted = self._is_connected = False
        self.receivers = self.senders = self.task = None
        self._messages: Deque[Tuple[int, bytes]] = deque()
        self._window_owed = 0
        self._close: Tuple[int, str] = (ABNORMAL_CLOSURE, "")
        self._lock: Optional[asyncio.Lock] = None
        self._denial: Optional[Tuple[int, bytes, List[bytes]]] = None
        self._denial_size = 0

    def add_message(self, flags: int, payload: bytes) -> None:
        """A message of the client."""
        if self.is_ended or self.is_disconnected:
            return
        self._messages.append((flags, payload))
        if self.receivers:
            self.wake(self.receivers)

    def handle_close(self, code: int, reason: str) -> None:
        """The end as the client made it."""
        if not self.is_ended:
            # The server uses the id again when it has read this.
            self._queue_frame(channel.encode_close(self.id, code, ""))
            self.is_ended = True
        self._close = (code, reason)
        self.disconnect()

    async def receive(self) -> Dict[str, Any]:
        """The callable of the application."""
        if not self._is_connected:
            self._is_connected = True
            return {"type": "websocket.connect"}
        while not self._messages:
            if self.is_disconnected or self.is_ended:
                code, reason = self._close
                return {"type": "websocket.disconnect", "code": code, "reason": reason}
            if self._window_owed:
                self._return_window()
            await self.wait_to_receive()
        flags, payload = self._messages.popleft()
        self._window_owed += channel.window_cost(payload)
        if (
            self._window_owed >= WINDOW_UPDATE_BYTES
            and not self.is_disconnected
            and not self.is_ended
        ):
            self._return_window()
        if flags & FLAG_TEXT:
            return {"type": "websocket.receive", "text": payload.decode()}
        return {"type": "websocket.receive", "bytes": payload}

    async def send(self, event: Dict[str, Any]) -> None:
        """The callable of the application."""
        kind = event["type"]
        if self.is_disconnected or self.is_ended:
            raise self.late_send_error(kind)
        if self._is_accepted:
            if kind == "websocket.send":
                await self._send_message(event)
            elif kind == "websocket.close":
                self._send_close(event)
            else:
                raise AppProtocolError(f"{kind!r} after 'websocket.accept'")
        elif kind.startswith(DENIAL_RESPONSE):
            self._deny(kind, event)
        elif self._denial is not None:
            raise AppProtocolError(f"{kind!r} within a refusal")
        elif kind == "websocket.accept":
            self._accept(event)
        elif kind == "websocket.close":
            self._send_denial(*response_head({"status": 403}), b"")
        else:
            raise AppProtocolError(f"{kind!r} before 'websocket.accept'")
        if self.reactor.is_full:
            await self.reactor.wait_for_room()

    def has_started_response(self) -> bool:
        """Whether the client has been given its 101, or a refusal."""
        return self._is_accepted or self.is_ended

    def finish(self) -> None:
        """The application has returned."""
        if self.is_disconnected:
            self.send_reset(0, "cancelled")
        elif self._is_accepted:
            self._send_close_frame(1000, "")
        else:
            self.log_error("the application returned without accepting or refusing the WebSocket")
            self.send_reset(FLAG_PROTOCOL_ERROR, "no answer")

    def abort(self, flags: int, reason: str) -> None:
        """Ends the stream after an exception."""
        if self._is_accepted:
            self._send_close_frame(1011, "")
        else:
            self.send_reset(flags, reason)

    def _accept(self, event: Dict[str, Any]) -> None:
        protocol = event.get("subprotocol") or ""
        try:
            strings = [protocol.encode("ascii")]
            for name, value in event.get("headers") or ():
                strings += (name, value)
            joined = channel.join_fields(strings)
        except (AttributeError, TypeError, ValueError) as error:
            raise AppProtocolError(f"bad subprotocol or headers: {error}") from None
        if protocol and protocol not in self.scope.get("subprotocols", ()):
            raise AppProtocolError(f"the subprotocol {protocol!r}, which the client did not offer")
        self._is_accepted = True
        self._queue_frame(channel.encode_accept(self.id, len(strings), joined))

    async def _send_message(self, event: Dict[str, Any]) -> None:
        text, payload = event.get("text"), event.get("bytes")
        flags = 0
        try:
            if text is not None:
                payload, flags = text.encode(), FLAG_TEXT
            elif type(payload) is not bytes:
                payload = memoryview(payload).tobytes()  # type: ignore[arg-type]
        except (AttributeError, TypeError, ValueError) as error:
            raise AppProtocolError(f"a message that is neither text nor bytes: {error}") from None
        if len(payload) > MAX_PAYLOAD_BYTES - 4:
            raise AppProtocolError(f"a message of {len(payload)} bytes")
        needed = channel.window_cost(payload)
        lock = self._lock
        if needed <= self.window and (lock is None or not lock.locked()):
            self.window -= needed
            self._queue_frame(channel.encode_message(self.id, flags, payload))
            return
        if lock is None:
            lock = self._lock = asyncio.Lock()
        async with lock:
            while needed > self.window:
                await self.wait_to_send()
            if self.is_disconnected or self.is_ended:
                raise self.late_send_error(event["type"])
            self.window -= needed
            self._queue_frame(channel.encode_message(self.id, flags, payload))

    def _send_close(self, event: Dict[str, Any]) -> None:
        code = event.get("code")
        code = 1000 if code is None else code
        if not isinstance(code, int) or not (1000 <= code <= 1014 or 3000 <= code <= 4999):
            raise AppProtocolError(f"a close code of {code!r}")
        self._send_close_frame(code, str(event.get("reason") or ""))

    def _deny(self, kind: str, event: Dict[str, Any]) -> None:
        """The extension `websocket.http.response`: a refusal with a body, gathered here."""
        if self._denial is None:
            if kind != DENIAL_RESPONSE + ".start":
                raise AppProtocolError(f"{kind!r} before {DENIAL_RESPONSE + '.start'!r}")
            self._denial = (*response_head(event), [])
            return
        if kind != DENIAL_RESPONSE + ".body":
            raise AppProtocolError(f"{kind!r} after {DENIAL_RESPONSE + '.start'!r}")
        count, head, pieces = self._denial
        pieces.append(body_bytes(event))
        self._denial_size += len(pieces[-1])
        if self._denial_size > MAX_WHOLE_BODY_BYTES:
            raise AppProtocolError("a refusal of more than 32 MiB")
        if not event.get("more_body", False):
            self._send_denial(count, head, b"".join(pieces))

    def _send_denial(self, count: int, head: bytes, body: bytes) -> None:
        micros = (perf_counter_ns() - self.started) // 1000
        self._queue_frame(channel.encode_response(self.id, FLAG_END, count, micros, head, body))
        self._mark_ended()

    def _send_close_frame(self, code: int, reason: str) -> None:
        self._queue_frame(channel.encode_close(self.id, code, reason))
        self._close = (code, reason)
        self._mark_ended()

    def _mark_ended(self) -> None:
        self.is_ended = True
        self._messages.clear()
        if self.receivers:
            self.wake(self.receivers)
        if self.senders:
            self.wake(self.senders)

    def _return_window(self) -> None:
        self._queue_frame(channel.encode_window(self.id, self._window_owed))
        self._window_owed = 0

    def _queue_frame(self, frame: bytes) -> None:
        self.reactor.queue_frame(frame, perf_counter_ns())
