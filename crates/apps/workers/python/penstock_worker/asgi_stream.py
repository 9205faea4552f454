"""The common part of an HTTP request and a WebSocket of an ASGI application.

`asgi.AsgiReactor` keeps an `AsgiStream` for each id, runs it as one task, and calls `add_window`
(more may be sent) and `disconnect` (the client has left). The two kinds are `asgi_http.HttpRequest`
and `asgi_websocket.WebSocket`.

# Invariants
- Each stream ends once, with one last frame.
- A waiting task is woken by every change that it could wait for.
- An error is reported once, and one that only follows from the client's leaving never.
"""

from __future__ import annotations

import asyncio
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Awaitable, Callable, Dict, List, Optional, Tuple

from . import channel, forks, native
from .tracebacks import format_app_traceback, write_error
from .wire import FLAG_PROTOCOL_ERROR

if TYPE_CHECKING:
    from .asgi import AsgiReactor

App = Callable[..., Awaitable[Any]]


STATUS_LINES = {status: b"%d" % status for status in range(200, 600)}


class AppProtocolError(RuntimeError):
    """The application does something that ASGI does not allow."""


class ClientDisconnected(OSError):
    """Raised out of `send` when the client has left."""


class _ScriptStreamState:
    """What the native part has of a stream, where there is no native part: some of it is for requests
    only."""

    __slots__ = (
        "_body",
        "_file",
        "_file_bytes_left",
        "_has_more",
        "_head",
        "_is_head_sent",
        "_is_pull_pending",
        "_string_count",
        "id",
        "is_disconnected",
        "is_ended",
        "reactor",
        "receivers",
        "scope",
        "senders",
        "started",
        "task",
        "window",
    )


StreamState: Any = native.module.StreamState if native.module else _ScriptStreamState


class AsgiStream(StreamState):
    """One stream of the channel."""

    __slots__ = ()

    reactor: AsgiReactor
    id: int
    scope: Dict[str, Any]
    started: int
    task: Optional[asyncio.Task[None]]
    # Bytes that may be sent.
    window: int
    # The client has left, or wants no more.
    is_disconnected: bool
    # The last frame of this stream was sent.
    is_ended: bool
    receivers: Optional[List[asyncio.Future[None]]]
    senders: Optional[List[asyncio.Future[None]]]

    async def run(self, app: App) -> None:
        """The task: the application's call and whatever comes of it. The native part has its own for
        requests."""
        self.started = perf_counter_ns()
        try:
            await app(self.scope, self.receive, self.send)
        # Whatever it is: a request ends by it, the server ends processes.
        except BaseException as error:
            self._end_raised(error)
        else:
            if self.is_ended and not forks.is_forked_by_app:
                self.close()
                self.reactor.remove_stream(self)
            else:
                self._end_returned()

    async def receive(self) -> Dict[str, Any]:
        raise NotImplementedError

    async def send(self, event: Dict[str, Any]) -> None:
        raise NotImplementedError

    def has_started_response(self) -> bool:
        raise NotImplementedError

    def finish(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Gives up what the stream holds."""

    def add_window(self, size: int) -> None:
        """So many bytes more may be sent."""
        self.window += size
        if self.senders:
            self.wake(self.senders)

    def disconnect(self) -> None:
        """The client has left, or wants no more."""
        self.is_disconnected = True
        if self.senders:
            self.wake(self.senders)
        if self.receivers:
            self.wake(self.receivers)

    def late_send_error(self, kind: str) -> Exception:
        """What a `send` raises that comes too late."""
        if self.is_disconnected:
            return ClientDisconnected("the client has left")
        return AppProtocolError(f"{kind!r} after the end")

    def send_reset(self, flags: int, reason: str) -> None:
        """Sends RESET."""
        self.is_ended = True
        self.reactor.queue_frame(channel.encode_reset(self.id, flags, reason), perf_counter_ns())

    def abort(self, flags: int, reason: str) -> None:
        """Ends the stream after an exception."""
        self.send_reset(flags, reason)

    async def wait_to_receive(self) -> None:
        """Returns after the next change that `receive` may want."""
        if self.receivers is None:
            self.receivers = []
        await self._wait_for_wake(self.receivers)

    async def wait_to_send(self) -> None:
        """Returns after the next WINDOW. Raises what a `send` raises when the stream ends meanwhile."""
        if self.senders is None:
            self.senders = []
        await self._wait_for_wake(self.senders)
        if self.is_disconnected or self.is_ended:
            raise self.late_send_error("what was to be sent")

    @staticmethod
    def wake(waiting: List[asyncio.Future[None]]) -> None:
        for future in waiting:
            if not future.done():
                future.set_result(None)
        waiting.clear()

    def describe(self) -> str:
        """What this stream is, for people."""
        path = ascii(self.scope.get("path", "-"))[1:-1]
        return f"{self.scope.get('method', 'WebSocket')} {path}"

    def log_error(self, text: str) -> None:
        """Writes what is wrong with this stream to standard error, in one piece."""
        write_error(f"error in {self.describe()}\n{text.rstrip()}\n")

    async def _wait_for_wake(self, waiting: List[asyncio.Future[None]]) -> None:
        future = self.reactor.loop.create_future()
        waiting.append(future)
        try:
            await future
        except BaseException:
            if future in waiting:
                waiting.remove(future)
            raise

    @staticmethod
    async def _await(awaitable: Awaitable[Any]) -> None:
        """Awaits what an application has returned that is no coroutine."""
        await awaitable

    def _end_returned(self) -> None:
        forks.exit_if_forked_by_app()
        if not self.is_ended:
            self.finish()
        self.close()
        self.reactor.remove_stream(self)

    def _end_raised(self, error: BaseException) -> None:
        forks.exit_if_forked_by_app(error)
        self._handle_exception(error)
        self.close()
        self.reactor.remove_stream(self)

    def _handle_exception(self, error: BaseException) -> None:
        is_silent = self.reactor.is_shutting_down and isinstance(error, asyncio.CancelledError)
        if not is_silent and not (self.is_disconnected and _is_client_disconnect(error)):
            # The native part calls the application from no frame.
            self.log_error(format_app_traceback(error, keeps_last=False))
        if self.is_ended:
            return
        if isinstance(error, AppProtocolError) and not self.has_started_response():
            self.abort(FLAG_PROTOCOL_ERROR, str(error))
        elif self.is_disconnected:
            self.send_reset(0, "cancelled")
        else:
            self.abort(0, f"application raised {type(error).__name__}")


def response_head(event: Dict[str, Any]) -> Tuple[int, bytes]:
    """Number of strings and head of a `response.start` event. Raises AppProtocolError."""
    status = event.get("status")
    line = STATUS_LINES.get(status)  # type: ignore[arg-type]
    if line is None:
        raise AppProtocolError(f"a status of {status!r}")
    strings = [line]
    try:
        for name, value in event.get("headers") or ():
            strings.append(name)
            strings.append(value)
        return len(strings), channel.join_fields(strings)
    except (TypeError, ValueError) as error:
        raise AppProtocolError(f"bad headers: {error}") from None


def body_bytes(event: Dict[str, Any]) -> bytes:
    """The bytes of a `response.body` event. Raises AppProtocolError."""
    body = event.get("body", b"")
    if type(body) is bytes:
        return body
    if isinstance(body, (bytes, bytearray, memoryview)):
        return bytes(body)
    raise AppProtocolError(f"a body of {type(body).__name__}, not bytes")


def _is_client_disconnect(error: Optional[BaseException], depth: int = 8) -> bool:
    """Whether an exception is `ClientDisconnected`, or what a framework made of one."""
    if error is None or depth == 0:
        return False
    if isinstance(error, ClientDisconnected):
        return True
    inner = getattr(error, "exceptions", None)  # An ExceptionGroup, Python 3.11.
    if isinstance(inner, tuple) and inner:
        return all(_is_client_disconnect(each, depth - 1) for each in inner)
    cause = error.__cause__ if error.__cause__ is not None else error.__context__
    return _is_client_disconnect(cause, depth - 1)
