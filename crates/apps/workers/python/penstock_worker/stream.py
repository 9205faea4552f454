"""What an HTTP request and a WebSocket of an ASGI application have in common.

`asgi.Reactor` keeps a `Stream` for each id, runs it as one task, and tells it what comes: `give`
(window) and `leave` (the client has gone). The two kinds are `asgi_http.Request` and
`asgi_websocket.WebSocket`.

What must stay true: each stream ends once, with one last frame; whoever waits is woken by every change
that it could wait for; an error is reported once, and one that is only the client's leaving never.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Awaitable, Callable, Dict, List, Optional, Tuple

from . import channel, forks
from .tracebacks import format_traceback
from .wire import FLAG_PROTOCOL

if TYPE_CHECKING:
    from .asgi import Reactor

App = Callable[..., Awaitable[Any]]


STATUS = {status: b"%d" % status for status in range(200, 600)}


class RuleBroken(RuntimeError):
    """The application does something that ASGI does not allow."""


class ClientGone(OSError):
    """Raised out of `send` when the client has left."""


class Stream:
    """One stream of the channel."""

    __slots__ = (
        "id",
        "is_ended",
        "is_gone",
        "reactor",
        "receivers",
        "scope",
        "senders",
        "started",
        "task",
        "window",
    )

    reactor: Reactor
    id: int
    scope: Dict[str, Any]
    started: int
    task: asyncio.Task[None]
    # Bytes that may be sent.
    window: int
    # The client has left, or wants no more.
    is_gone: bool
    # The last frame of this stream was sent.
    is_ended: bool
    receivers: Optional[List[asyncio.Future[None]]]
    senders: Optional[List[asyncio.Future[None]]]

    async def run(self, app: App) -> None:
        """The task: the application's call and whatever comes of it."""
        self.started = perf_counter_ns()
        try:
            await app(self.scope, self.receive, self.send)
        # Whatever it is: a request ends by it, the server ends processes.
        except BaseException as error:
            forks.leave_if_stranger(error)
            self._fail(error)
        else:
            forks.leave_if_stranger()
            if not self.is_ended:
                self.finish()
        self.close()
        self.reactor.forget(self)

    async def receive(self) -> Dict[str, Any]:
        raise NotImplementedError

    async def send(self, event: Dict[str, Any]) -> None:
        raise NotImplementedError

    def has_answered(self) -> bool:
        raise NotImplementedError

    def finish(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Gives up what the stream holds."""

    def give(self, size: int) -> None:
        """So many bytes more may be sent."""
        self.window += size
        if self.senders:
            self.wake(self.senders)

    def leave(self) -> None:
        """The client has left, or wants no more."""
        self.is_gone = True
        if self.senders:
            self.wake(self.senders)
        if self.receivers:
            self.wake(self.receivers)

    def refusal(self, kind: str) -> Exception:
        """What a `send` raises that comes too late."""
        if self.is_gone:
            return ClientGone("the client has left")
        return RuleBroken(f"{kind!r} after the end")

    def end_with(self, flags: int, reason: str) -> None:
        """Sends RESET."""
        self.is_ended = True
        self.reactor.put(channel.reset(self.id, flags, reason), perf_counter_ns())

    def abort(self, flags: int, reason: str) -> None:
        """Ends the stream after an exception."""
        self.end_with(flags, reason)

    async def wait_to_receive(self) -> None:
        """Returns after the next change that `receive` may want."""
        if self.receivers is None:
            self.receivers = []
        await self._wait(self.receivers)

    async def wait_to_send(self) -> None:
        """Returns after the next WINDOW. Raises what a `send` raises when the stream ends meanwhile."""
        if self.senders is None:
            self.senders = []
        await self._wait(self.senders)
        if self.is_gone or self.is_ended:
            raise self.refusal("what was to be sent")

    @staticmethod
    def wake(waiting: List[asyncio.Future[None]]) -> None:
        for future in waiting:
            if not future.done():
                future.set_result(None)
        waiting.clear()

    def label(self) -> str:
        """What this stream is, for people."""
        path = ascii(self.scope.get("path", "-"))[1:-1]
        return f"{self.scope.get('method', 'WebSocket')} {path}"

    def complain(self, text: str) -> None:
        """Writes what is wrong with this stream to standard error, in one piece."""
        # The application may have closed its standard error, or put anything in its place.
        with contextlib.suppress(Exception):
            sys.stderr.write(f"error in {self.label()}\n{text.rstrip()}\n")
            sys.stderr.flush()

    async def _wait(self, waiting: List[asyncio.Future[None]]) -> None:
        future = self.reactor.loop.create_future()
        waiting.append(future)
        try:
            await future
        except BaseException:
            if future in waiting:
                waiting.remove(future)
            raise

    def _fail(self, error: BaseException) -> None:
        is_silent = self.reactor.is_ending and isinstance(error, asyncio.CancelledError)
        if not is_silent and not (self.is_gone and _is_leaving(error)):
            # The first entry is this file's own call of the application.
            trace = error.__traceback__
            inner = trace.tb_next if trace is not None and trace.tb_next is not None else trace
            self.complain(format_traceback(error, inner))
        if self.is_ended:
            return
        if isinstance(error, RuleBroken) and not self.has_answered():
            self.abort(FLAG_PROTOCOL, str(error))
        elif self.is_gone:
            self.end_with(0, "cancelled")
        else:
            self.abort(0, f"application raised {type(error).__name__}")


def response_head(event: Dict[str, Any]) -> Tuple[int, bytes]:
    """Number of strings and head of a `response.start` event. Raises RuleBroken."""
    status = event.get("status")
    line = STATUS.get(status)  # type: ignore[arg-type]
    if line is None:
        raise RuleBroken(f"a status of {status!r}")
    strings = [line]
    try:
        for name, value in event.get("headers") or ():
            strings.append(name)
            strings.append(value)
        return len(strings), channel.join_fields(strings)
    except (TypeError, ValueError) as error:
        raise RuleBroken(f"bad headers: {error}") from None


def checked_body(event: Dict[str, Any]) -> bytes:
    """The bytes of a `response.body` event. Raises RuleBroken."""
    body = event.get("body", b"")
    if type(body) is bytes:
        return body
    if isinstance(body, (bytes, bytearray, memoryview)):
        return bytes(body)
    raise RuleBroken(f"a body of {type(body).__name__}, not bytes")


def _is_leaving(error: Optional[BaseException], depth: int = 8) -> bool:
    """Whether an exception is `ClientGone`, or what a framework made of one."""
    if error is None or depth == 0:
        return False
    if isinstance(error, ClientGone):
        return True
    inner = getattr(error, "exceptions", None)  # An ExceptionGroup, Python 3.11.
    if isinstance(inner, tuple) and inner:
        return all(_is_leaving(each, depth - 1) for each in inner)
    cause = error.__cause__ if error.__cause__ is not None else error.__context__
    return _is_leaving(cause, depth - 1)
