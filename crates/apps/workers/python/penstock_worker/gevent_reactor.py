"""Serves a WSGI application with a greenlet for each request, on the application's gevent.

`boot` calls `patch_stdlib` before it loads the application and `serve` after READY. The reader
greenlet makes a `GeventStream` of each OPEN and spawns `wsgi`'s own code over it, to which it is a
slot.

# Invariants
- A wait here stops its greenlet alone.
- A signal is handled at once, also while nothing else happens.
- No other module imports gevent, and this one only when it is called.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from time import perf_counter_ns
from typing import Any, Callable, Dict, Optional

from . import channel, forks, gevent_websocket, hijack, task_stacks, thread_stacks, wsgi
from .gevent_stream import GeventStream
from .request_body import open_input
from .wire import FLAG_BODY_FILE, Disconnected, PartialBody, WireError, duplicate_fd


def patch_stdlib() -> None:
    """Makes the standard library cooperative. Raises ImportError when there is no gevent."""
    try:
        from gevent import monkey
    except ImportError as error:
        raise ImportError(
            f'async = "gevent" needs gevent, which this interpreter does not find: {error}'
        ) from None
    monkey.patch_all()


def serve(
    channel_socket: socket.socket,
    files_socket: socket.socket,
    app: Callable[..., Any],
    options: Any,
) -> None:
    """Serves until the server closes the channel, then waits for what is in progress, for at most
    `stop_timeout`. Raises WireError."""
    from gevent.util import format_run_info

    def write_stacks() -> None:
        task_stacks.write("\n".join(format_run_info(thread_stacks=False)) + "\n")

    thread_stacks.hooks.append(write_stacks)
    SignalWakeup().start()
    stop_timeout = float(getattr(options, "stop_timeout", None) or 10.0)
    GeventReactor(channel_socket, files_socket, app).serve(stop_timeout)


class GeventReactor:
    """The channel and its streams."""

    def __init__(
        self, channel_socket: socket.socket, files_socket: socket.socket, app: Callable[..., Any]
    ) -> None:
        import gevent
        from gevent.event import Event
        from gevent.socket import socket as cooperative
        from gevent.socket import wait_write

        self.new_event = Event
        self._wait_write = wait_write
        # No more is to be sent: the server has closed the channel.
        self.is_closed = False
        self._spawn = gevent.spawn
        self._join_all = gevent.joinall
        self._app = app
        # Whatever waits on it waits in its greenlet.
        self._client_socket_class = hijack.client_socket(cooperative)
        self._base_environ = wsgi.base_environ(is_multithread=True)
        self._streams: Dict[int, GeventStream] = {}
        self._running: Dict[Any, GeventStream] = {}
        self._files = files_socket
        # One socket object waits for what comes, the other must never wait: see `FrameWriter`.
        reader_fd = channel_socket.detach()
        writer_fd = duplicate_fd(reader_fd)
        forks.close_on_fork(GuardedDescriptor(reader_fd), GuardedDescriptor(writer_fd))
        self._reader = cooperative(fileno=reader_fd)
        self._writer = cooperative(fileno=writer_fd)
        self._reader.setblocking(True)
        self._writer.setblocking(False)
        self._frame_reader = channel.FrameReader(self._reader)
        self._frame_writer = channel.FrameWriter(self._writer)
        self._loop = gevent.get_hub().loop
        self._writable = self._loop.io(writer_fd, 2)
        self._will_flush = False
        self._room_event = Event()
        self._room_event.set()

    def serve(self, stop_timeout: float) -> None:
        """Reads the channel to its end."""
        try:
            while True:
                frames = self._frame_reader.receive()
                if frames is None:
                    break
                for kind, flags, stream_id, at, stop in frames:
                    if kind == channel.OPEN:
                        self._open(flags, stream_id, at, stop)
                        continue
                    stream = self._streams.get(stream_id)
                    if stream is None:
                        continue
                    if kind == channel.WINDOW:
                        stream.add_window(self._frame_reader.parse_window(at))
                    elif kind == channel.STREAM_CANCEL:
                        stream.disconnect()
                    elif kind == channel.INPUT:
                        stream.add_body_piece(flags, self._frame_reader.view[at:stop].tobytes())
                    else:
                        raise WireError(f"frame {kind} for a request")
        except (ValueError, EOFError, TypeError) as error:
            raise WireError(str(error)) from error
        finally:
            self._stop()
        self._join_all(list(self._running), timeout=stop_timeout)

    def queue_frame(self, frame: bytes) -> None:
        """Sends a frame with others of this turn of the loop."""
        if self.is_closed:
            raise Disconnected
        self._frame_writer.queue(frame)
        if not self._will_flush:
            self._will_flush = True
            self._loop.run_callback(self._flush)
        if self._frame_writer.size > channel.MAX_OUTBOX_BYTES:
            self._room_event.clear()

    def send_socket(self, stream_id: int, sock: socket.socket) -> bool:
        """Sends the socket of a HIJACK, before that. False when the server must receive others
        first. Raises Disconnected."""
        try:
            channel.send_socket(self._files, stream_id, sock)
        except BlockingIOError:
            return False
        except OSError as error:
            raise Disconnected from error
        return True

    def wait_for_files(self, timeout: float) -> None:
        """Returns when more sockets may be sent. Raises Disconnected after `timeout` seconds.

        The server receives a socket when it reads its HIJACK frame, which leaves meanwhile."""
        self._wait_write(self._files.fileno(), max(timeout, 0.0), Disconnected())

    def wait_for_room(self) -> None:
        """Returns when not too much is on its way to the server."""
        if not self._room_event.is_set():
            self._room_event.wait()

    def _open(self, flags: int, stream_id: int, at: int, stop: int) -> None:
        before = self._streams.get(stream_id)
        if flags & channel.FLAG_WEBSOCKET or (before is not None and not before.is_ended):
            raise WireError(f"stream {stream_id} cannot be opened")
        environ, body = self._frame_reader.parse_open(at, stop)
        stream = GeventStream(self, stream_id)
        if flags & FLAG_BODY_FILE:
            stream.body_fd = channel.receive_fd(self._files, stream_id)
        self._streams[stream_id] = stream
        if flags & channel.FLAG_BODY_STREAM:
            body = PartialBody(body)
        is_file = bool(flags & FLAG_BODY_FILE)
        greenlet = self._spawn(self._run_request, stream, environ, None if is_file else body)
        self._running[greenlet] = stream
        greenlet.link(self._remove_stream)

    def _run_request(self, stream: GeventStream, sent: wsgi.Environ, body: Optional[bytes]) -> None:
        started = perf_counter_ns()
        environ = self._base_environ.copy()
        environ.update(sent)
        environ["wsgi.input"] = opened = open_input(stream, body)  # type: ignore[arg-type]
        response = wsgi.Response(stream, started)  # type: ignore[arg-type]
        connection = None
        if "HTTP_UPGRADE" in sent:
            kind = self._client_socket_class
            connection = hijack.offer(stream, environ, kind)  # type: ignore[arg-type]
            response.connection = connection
            if connection is not None:
                gevent_websocket.offer(connection, environ, self._app)
        try:
            wsgi.run_request(self._app, environ, response)
        except Disconnected:
            pass
        finally:
            if connection is not None:
                try:
                    gevent_websocket.close(environ)
                finally:
                    connection.finish()
            stream.end_if_open()
            if body is None:
                opened.close()

    def _remove_stream(self, greenlet: Any) -> None:
        stream = self._running.pop(greenlet)
        if self._streams.get(stream.id) is stream:
            del self._streams[stream.id]

    def _flush(self) -> None:
        """Runs in the hub, where nothing may wait."""
        self._will_flush = False
        try:
            is_all = self._frame_writer.flush()
        except OSError:
            self._stop()
            return
        if not is_all:
            self._will_flush = True
            self._writable.start(self._flush)
            return
        self._writable.stop()
        self._room_event.set()

    def _stop(self) -> None:
        self.is_closed = True
        self._writable.stop()
        self._room_event.set()
        for stream in self._running.values():
            stream.disconnect()


class SignalWakeup:
    """Wakes the hub for every signal that Python handles.

    The C library's part of a handler only leaves a mark, and interrupts a wait that has begun. The
    hub looks at the mark and then begins to wait: a signal between the two would be heard when
    something else happens, perhaps never. So it leaves a byte as well (`signal.set_wakeup_fd`).
    """

    def __init__(self) -> None:
        import gevent

        self._loop = gevent.get_hub().loop
        self._reader, self._writer = -1, -1
        self._watcher: Any = None

    def start(self) -> None:
        """Until this process ends; not if the application hears its signals in the same way."""
        before = signal.set_wakeup_fd(-1)
        if before != -1:
            signal.set_wakeup_fd(before)
            return
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        # It does not keep the hub running.
        self._watcher = self._loop.io(self._reader, 1, ref=False)
        self._watcher.start(self._drain)
        # A full pipe wakes just as well.
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        forks.close_on_fork(self)

    def close(self) -> None:
        """In what the application forks: the pipe is its parent's."""
        # What forks in an interpreter beside the main one hears no signal.
        with contextlib.suppress(ValueError):
            before = signal.set_wakeup_fd(-1)
            if before not in (-1, self._writer):
                signal.set_wakeup_fd(before)
        self._watcher.stop()
        os.close(self._reader)
        os.close(self._writer)

    def _drain(self) -> None:
        """Runs in the hub. Python calls the handlers by itself, as soon as it runs."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._reader, 4096)


class GuardedDescriptor:
    """One of ours, to be closed in what the application forks."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def close(self) -> None:
        os.close(self._fd)
