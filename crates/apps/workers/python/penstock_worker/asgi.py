"""Serves an ASGI application: one event loop, all requests of the process at once.

`boot` makes an `AsgiRunner` after the application is loaded (in a template, after the fork), calls
`start` before READY and `serve` after it. The `AsgiReactor` reads the channel, makes a stream
object of each OPEN (`asgi_http`, `asgi_websocket`), runs it as a task, and sends the frames of all
of them together at the end of each turn of the loop.

# Invariants
- No task of the application is cancelled before the channel has closed.
- Frames for an ended stream are ignored; any other unknown frame ends the process.
"""

from __future__ import annotations

import asyncio
import asyncio.tasks
import contextlib
import socket
import sys
import traceback
import types
from time import perf_counter_ns
from typing import Any, Awaitable, Callable, Dict, List, Optional, Set

from . import channel, native, task_stacks, thread_stacks
from .asgi_http import HttpRequest
from .asgi_stream import AsgiStream
from .asgi_websocket import WebSocket
from .lifespan import Lifespan
from .wire import FLAG_BODY_FILE, WireError

App = Callable[..., Awaitable[Any]]

# From 2.4 on Starlette does not listen for the client's leaving and waits for `send` to fail: a
# stream that has nothing to say would go on for as long as it is silent. `send` fails all the same.
HTTP_SPEC_VERSION = "2.3"
# But such a listener would take the pieces of a body that still arrives from its reader while the
# response is sent.
HTTP_SPEC_VERSION_STREAMED = "2.4"

# No answer waits longer for others that are to leave with it (in one turn of the loop).
MAX_GATHER_NS = 1_000_000

# asyncio's own, whatever the application puts in its place; an interpreter may have none.
try:
    from _asyncio import Task as _OwnTask
except ImportError:
    _OwnTask = None  # type: ignore[assignment, misc]
_has_eager_tasks = sys.version_info >= (3, 12)
# Whether the first step of a task can be run where the task is made.
_can_start_here = _has_eager_tasks or native.module is not None

if native.module:
    native.module.asgi_setup(
        types.CoroutineType,
        types.MethodType,
        asyncio.tasks,
        _OwnTask,
        HttpRequest,
        {"version": "3.0", "spec_version": HTTP_SPEC_VERSION},
        {"type": "http.request", "body": b"", "more_body": False},
    )


class _ScriptReactorState:
    """What the native part has of a reactor, where there is no native part."""


ReactorState: Any = native.module.ReactorState if native.module else _ScriptReactorState


class AsgiRunner:
    """The life of an ASGI application in this process."""

    def __init__(self, app: App, options: Any) -> None:
        self._app = app
        self._stop_timeout = float(getattr(options, "stop_timeout", None) or 10.0)

    def start(self) -> None:
        """Makes the loop and runs the application's startup. Raises what it fails with."""
        self._loop = _new_loop()
        asyncio.set_event_loop(self._loop)
        self._lifespan = Lifespan(self._app)
        self._loop.run_until_complete(self._lifespan.startup())
        thread_stacks.hooks.append(lambda: task_stacks.write(task_stacks.describe(self._loop)))

    def serve(self, channel_socket: socket.socket, files_socket: socket.socket) -> None:
        """Serves until the server closes the channel, then runs the application's shutdown: within
        `stop_timeout`. Raises WireError."""
        reactor = AsgiReactor(
            self._loop, self._app, self._lifespan.state, channel_socket, files_socket
        )
        try:
            self._run_until(reactor.closed)
            self._run_until(self._loop.create_task(self._shut_down(reactor)))
        finally:
            reactor.close()
        self._loop.close()

    async def _shut_down(self, reactor: AsgiReactor) -> None:
        loop = self._loop
        deadline = loop.time() + self._stop_timeout
        tasks = reactor.disconnect_all()
        if tasks:
            await asyncio.wait(tasks, timeout=self._stop_timeout / 2)
        reactor.is_shutting_down = True
        await _cancel([task for task in tasks if not task.done()])
        await self._lifespan.shutdown(max(deadline - loop.time(), 0.1))
        rest = asyncio.all_tasks() - {asyncio.current_task()}  # type: ignore[arg-type]
        await _cancel(list(rest))
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(loop.shutdown_asyncgens(), 1.0)

    def _run_until(self, future: asyncio.Future[None]) -> None:
        """Runs the loop, also on after an exception that asyncio lets through."""
        while True:
            try:
                return self._loop.run_until_complete(future)
            except (SystemExit, KeyboardInterrupt):
                with contextlib.suppress(Exception):
                    traceback.print_exc()


class AsgiReactor(ReactorState):
    """The channel and its streams. Only the loop's thread calls it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        app: App,
        state: Dict[str, Any],
        channel_socket: socket.socket,
        files_socket: socket.socket,
    ) -> None:
        self.loop = loop
        self.closed: asyncio.Future[None] = loop.create_future()
        # More than enough is on its way to the server: senders wait for `wait_for_room`.
        self.is_full = False
        self.is_shutting_down = False
        self._app = app
        self._state = state
        self._socket = channel_socket
        self._files = files_socket
        self._streams: Dict[int, AsgiStream] = {}
        # Their responses have ended and their ids are in use again, but the application goes on.
        self._ended_running: Set[AsgiStream] = set()
        # Their tasks are still to be made.
        self._opened: List[AsgiStream] = []
        self._request_type = HttpRequest
        channel_socket.setblocking(False)
        self._fd = channel_socket.fileno()
        self._frame_reader = channel.FrameReader(channel_socket)
        self._frame_writer = channel.FrameWriter(channel_socket)
        self._will_flush = self._is_blocked = self._is_stopped = False
        self._gathering_since = 0
        self._room_waiters: List[asyncio.Future[None]] = []
        self._task_options: Dict[str, Any] = {"loop": loop}
        self._is_catching = False
        if _has_eager_tasks:
            self._task_options["eager_start"] = True
        elif native.module:
            # Takes the first step of a new task off the loop, to run it at once.
            self._is_catching = True
            self._call_soon = loop.call_soon
            loop.call_soon = self.catch_call_soon  # type: ignore[method-assign]
        loop.add_reader(self._fd, self.read_channel if native.module else self._on_readable)

    def queue_frame(self, frame: bytes, now: int) -> None:
        """Sends a frame with others of this turn of the loop; `now` is `perf_counter_ns()`."""
        size = self._frame_writer.queue(frame)
        if not self._will_flush:
            self._will_flush = True
            self._gathering_since = now
            self.loop.call_soon(self._flush)
        elif now - self._gathering_since > MAX_GATHER_NS:
            self._gathering_since = now
            self._send()
        if size > channel.MAX_OUTBOX_BYTES:
            self._send()
            self.is_full = self._frame_writer.size > channel.MAX_OUTBOX_BYTES

    async def wait_for_room(self) -> None:
        """Returns when there is room for more."""
        while self.is_full and not self.closed.done():
            future = self.loop.create_future()
            self._room_waiters.append(future)
            await future

    def remove_stream(self, stream: AsgiStream) -> None:
        """The task of this stream is about to end."""
        if self._streams.get(stream.id) is stream:
            del self._streams[stream.id]
        else:
            self._ended_running.discard(stream)

    def disconnect_all(self) -> List[asyncio.Task[None]]:
        """Tells every stream that its client has left; their tasks."""
        streams = [*self._streams.values(), *self._ended_running]
        for stream in streams:
            stream.disconnect()
        return [stream.task for stream in streams if stream.task]

    def close(self) -> None:
        """Closes both sockets."""
        self._stop()
        # The application may have put its own in place, or taken ours away.
        if self._is_catching and vars(self.loop).get("call_soon") == self.catch_call_soon:
            del self.loop.call_soon  # type: ignore[method-assign]
        self._is_catching = False
        self._socket.close()
        self._files.close()

    def _on_readable(self) -> None:
        self._take_frames(self._frame_reader.receive)
        if self._opened:
            self._start_opened()

    def _take_buffered(self) -> None:
        """Takes the frames that the native part has received and left."""
        self._take_frames(self._frame_reader.split)

    def _take_frames(self, receive: Callable[[], Optional[List[channel.Frame]]]) -> None:
        try:
            frames = receive()
            if frames is None:
                self._stop()
                return
            for kind, flags, stream_id, at, stop in frames:
                if kind == channel.OPEN:
                    self._open(flags, stream_id, at, stop)
                else:
                    stream = self._streams.get(stream_id)
                    if stream is not None:
                        self._dispatch_frame(stream, kind, flags, at, stop)
        except (WireError, ValueError, EOFError, TypeError) as error:
            self._stop(error if isinstance(error, WireError) else WireError(str(error)))

    def _start_opened(self) -> None:
        """Makes the task of each new stream and runs its first step; what they have answered leaves
        together."""
        if (
            not _can_start_here
            or asyncio.tasks.Task is not _OwnTask
            or self.loop.get_task_factory() is not None
            # Its warnings are to name the task.
            or self.loop.get_debug()
        ):
            self._start_later()
        elif native.module:
            self.start_opened()
        else:
            self._start_now()

    def _start_later(self) -> None:
        while self._opened:
            stream = self._opened.pop(0)
            stream.task = self.loop.create_task(stream.run(self._app))
        if not self._will_flush:
            # Behind the first step of every task that was just made, within the same turn.
            self._gather()
            self.loop.call_soon(self._flush)

    def _start_now(self) -> None:
        has_flush = self._will_flush
        if not has_flush:
            self._gather()
        try:
            while self._opened:
                stream = self._opened.pop(0)
                stream.task = _OwnTask(stream.run(self._app), **self._task_options)
        except BaseException:
            self._start_rest_soon()
            raise
        finally:
            if not has_flush:
                self._will_flush = False
        self._send()

    def _start_rest_soon(self) -> None:
        """Goes on after an exception that asyncio lets through."""
        if self._opened:
            self.loop.call_soon(self._start_opened)
        self.loop.call_soon(self._send)

    def _gather(self) -> None:
        self._will_flush = True
        self._gathering_since = perf_counter_ns()

    def _open(self, flags: int, stream_id: int, at: int, stop: int) -> None:
        if stream_id in self._streams:
            before = self._streams[stream_id]
            if not before.is_ended:
                raise WireError(f"stream {stream_id} is open already")
            self._ended_running.add(before)
        scope, body = self._frame_reader.parse_open(at, stop)
        is_websocket = bool(flags & channel.FLAG_WEBSOCKET)
        scope["asgi"] = {
            "version": "3.0",
            "spec_version": "2.5" if is_websocket else HTTP_SPEC_VERSION,
        }
        scope["state"] = self._state.copy()
        stream: AsgiStream
        if is_websocket:
            stream = WebSocket(self, stream_id, scope)
        else:
            # A session of TLS has an entry in it.
            scope.setdefault("extensions", {})
            stream = request = HttpRequest(self, stream_id, scope, body)
            if flags & channel.FLAG_BODY_STREAM:
                scope["asgi"]["spec_version"] = HTTP_SPEC_VERSION_STREAMED
                request.expect_more_body()
            if flags & FLAG_BODY_FILE:
                request.set_body_file(channel.receive_fd(self._files, stream_id))
        self._streams[stream_id] = stream
        self._opened.append(stream)

    def _dispatch_frame(
        self, stream: AsgiStream, kind: int, flags: int, at: int, stop: int
    ) -> None:
        if kind == channel.WINDOW:
            stream.add_window(self._frame_reader.parse_window(at))
        elif kind == channel.STREAM_CANCEL:
            stream.disconnect()
        elif not isinstance(stream, WebSocket):
            if kind == channel.INPUT and isinstance(stream, HttpRequest):
                stream.add_body_piece(flags, self._frame_reader.view[at:stop].tobytes())
                return
            raise WireError(f"frame {kind} for a request")
        elif kind == channel.MESSAGE:
            stream.add_message(flags, self._frame_reader.view[at:stop].tobytes())
        else:
            stream.handle_close(*self._frame_reader.parse_close(at, stop))

    def _flush(self) -> None:
        self._will_flush = False
        self._send()

    def _send(self) -> None:
        if self._is_blocked or self.closed.done():
            return
        try:
            if not self._frame_writer.flush():
                self._is_blocked = True
                self.loop.add_writer(self._fd, self._on_writable)
        except OSError:
            self._stop()

    def _on_writable(self) -> None:
        self._is_blocked = False
        self.loop.remove_writer(self._fd)
        self._send()
        if self.is_full and self._frame_writer.size <= channel.MAX_OUTBOX_BYTES // 2:
            self._wake_room_waiters()

    def _wake_room_waiters(self) -> None:
        self.is_full = False
        for future in self._room_waiters:
            if not future.done():
                future.set_result(None)
        self._room_waiters.clear()

    def _stop(self, error: Optional[WireError] = None) -> None:
        if self.closed.done():
            return
        self._is_stopped = True
        self.loop.remove_reader(self._fd)
        self.loop.remove_writer(self._fd)
        if error is None:
            self.closed.set_result(None)
        else:
            self.closed.set_exception(error)
        self._wake_room_waiters()


async def _cancel(tasks: List[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=1.0)


def _new_loop() -> asyncio.AbstractEventLoop:
    """uvloop's, if the application has it."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
