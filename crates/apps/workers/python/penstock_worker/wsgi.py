"""Runs a WSGI application (PEP 3333) for the requests of one slot.

`boot` starts `serve` in each thread. For each request: environ from `wire`, the application's call,
then one of three: a complete response in one frame (lists, and iterables whose first chunk is all
that they declared), a stream of chunks, or a file descriptor.

# Invariants
- `close` of a result is called exactly once whatever happens.
- Nothing is sent before the first chunk exists.
- After an error the next request finds this thread in order.
"""

from __future__ import annotations

import os
import stat
import sys
from functools import partial
from io import BytesIO
from time import perf_counter_ns
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

from . import api, forks, hijack, native
from .file_wrapper import FileWrapper, plain_file
from .request_body import RequestBodyCut, open_input
from .tracebacks import format_app_traceback, write_error
from .wire import (
    ABORT,
    FAILED,
    FLAG_PROTOCOL_ERROR,
    MAX_BODY_FRAME_BYTES,
    MAX_JOIN_BYTES,
    MAX_WHOLE_BODY_BYTES,
    UNTIL_END,
    ConnectionHijackedError,
    Disconnected,
    Slot,
    WireError,
    join_head,
)

Headers = List[Tuple[str, str]]
Environ = Dict[str, Any]


class AppProtocolError(Exception):
    """The application does something that PEP 3333 does not allow."""


class ClientDisconnected(OSError):
    """Raised out of `write` when the client has left."""


def base_environ(is_multithread: bool, slot: Optional[Slot] = None) -> Environ:
    """What every request's environ holds besides what the server sends; `slot` when it is always
    the same, as in a thread."""
    return {
        "wsgi.version": (1, 0),
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": is_multithread,
        "wsgi.multiprocess": True,
        "wsgi.run_once": False,
        "wsgi.input_terminated": True,
        "wsgi.file_wrapper": FileWrapper,
        "penstock.prevent_fork": api.prevent_fork,
        "penstock.mark_as_io_bound": slot.mark_as_io_bound if slot else api.unsupported_in_reactor,
        "penstock.extend_timeout": slot.extend_timeout if slot else api.unsupported_in_reactor,
        # Left out by the server when it is so (PROTOCOL.md).
        "wsgi.url_scheme": "http",
        "SCRIPT_NAME": "",
        "QUERY_STRING": "",
        "REMOTE_ADDR": "",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "SERVER_SOFTWARE": "penstock",
    }


def serve(slot: Slot, app: Callable[..., Iterable[bytes]], base: Environ) -> None:
    """Answers requests until the server closes the slot."""
    receive = slot.receive
    serve_plain = _plain_server(slot, app, base)
    try:
        while True:
            serve_plain()
            request = receive()
            if request is None:
                return
            started = perf_counter_ns()
            sent, body = request
            environ = {**base, **sent}
            # Most bodies are whole, or none: no call for those.
            stream = BytesIO(body) if type(body) is bytes else open_input(slot, body)
            environ["wsgi.input"] = stream
            response = Response(slot, started)
            connection = None
            if "HTTP_UPGRADE" in sent:
                response.connection = connection = hijack.offer(slot, environ)
            try:
                run_request(app, environ, response)
            finally:
                if connection is not None:
                    connection.finish()
                if body is None:
                    stream.close()
    except Disconnected:
        forks.exit_if_forked_by_app()


def _plain_server(slot: Slot, app: Callable[..., Any], base: Environ) -> Callable[[], None]:
    """What answers plain requests natively until another one comes. A slot of another class counts
    its requests."""
    if native.module is None or type(slot) is not Slot:
        return lambda: None
    return partial(
        native.module.serve,
        slot,
        slot.fileno(),
        app,
        base,
        Response,
        BytesIO,
        end_failed,
        finish,
        Disconnected,
    )


def run_request(app: Callable[..., Any], environ: Environ, response: Response) -> None:
    """Runs one request to its end, whatever becomes of it. Raises Disconnected and WireError."""
    try:
        result = app(environ, response.start_response)
    except BaseException as error:
        end_failed(environ, response, error)
    else:
        finish(result, environ, response)


def finish(result: Any, environ: Environ, response: Response) -> None:
    """Sends what the application has returned, and closes it. Raises as `run_request`."""
    try:
        if response.connection is not None and response.is_hijacked():
            response.end_hijack()
        else:
            response.send_result(result)
    except BaseException as error:
        end_failed(environ, response, error)
    finally:
        response.is_finished = True
        if type(result) is not list:
            close = getattr(result, "close", None)
            if close is not None:
                try:
                    close()
                except BaseException as error:
                    _log_exception(error, environ)
                forks.exit_if_forked_by_app()


def end_failed(environ: Environ, response: Response, error: BaseException) -> None:
    """Ends a request after an exception. Raises Disconnected and WireError again: they end the
    thread."""
    if isinstance(error, (Disconnected, WireError)):
        forks.exit_if_forked_by_app()
        raise error
    if isinstance(error, ConnectionHijackedError):
        # A thread of the application's was quicker than this response.
        response.end_hijack()
    elif isinstance(error, ClientDisconnected):
        forks.exit_if_forked_by_app()
        response.cancel()
    elif isinstance(error, RequestBodyCut):
        # No answer is awaited, and there is nothing to mend.
        forks.exit_if_forked_by_app()
        response.fail(error)
    else:
        # SystemExit and KeyboardInterrupt too: they end the request, the server ends processes.
        forks.exit_if_forked_by_app(error)
        # How applications leave a connection that they have taken over in Gunicorn.
        if not (response.is_hijacked() and isinstance(error, StopIteration)):
            _log_exception(error, environ)
        response.fail(error)
    response.is_finished = True


def _log_exception(error: BaseException, environ: Environ) -> None:
    """Writes one head line and the traceback, in one piece, to standard error."""
    method = environ.get("REQUEST_METHOD", "-")
    path = f"{environ.get('SCRIPT_NAME', '')}{environ.get('PATH_INFO', '')}"
    write_error(f"error in {method} {ascii(path)[1:-1]}\n{format_app_traceback(error)}")


class _ScriptResponseState:
    """What the native part has of a response, where there is no native part."""

    __slots__ = (
        "connection",
        "string_count",
        "head",
        "headers",
        "is_finished",
        "is_head_sent",
        "slot",
        "started",
    )


ResponseState: Any = native.module.ResponseState if native.module else _ScriptResponseState


class Response(ResponseState):
    """One response: what the application said so far, and how much of it was sent."""

    __slots__ = ()

    def __init__(self, slot: Slot, started: int) -> None:
        self.slot = slot
        self.started = started
        self.connection: Optional[hijack.ClientSocket] = None
        self.head: Optional[bytes] = None
        self.is_head_sent = False
        self.is_finished = False

    def _start_checked(
        self, status: str, headers: Headers, exc_info: Any = None
    ) -> Callable[[bytes], None]:
        """The callable that PEP 3333 hands to the application; the native part calls it for what is
        unusual."""
        if self.head is not None:
            self._restart(exc_info)
        try:
            if not isinstance(headers, list):
                raise TypeError("headers are no list")
            strings = [status]
            for field in headers:
                if not isinstance(field, tuple) or len(field) != 2:
                    raise TypeError("a header is no tuple of two")
                strings += field
            self.head = join_head(strings)
        except (TypeError, ValueError) as error:
            raise AppProtocolError(f"start_response: bad status or headers: {error}") from None
        self.string_count = len(strings)
        self.headers = headers
        return self.write

    def write(self, data: bytes) -> None:
        """The callable that `start_response` returns: sends at once."""
        if self.is_finished or self.head is None:
            raise AppProtocolError("write called outside of its request")
        if self.is_hijacked():
            return
        # An application may write for ever, and has no other way to hear of it.
        if self.is_head_sent and self.slot.is_cancelled():
            raise ClientDisconnected("the client has left")
        self._send_chunk(_checked_chunk(data))

    # The native part hands the response itself out as `write`.
    __call__ = write

    def send_result(self, result: Any) -> None:
        """Sends what the application returned."""
        if type(result) is list or type(result) is tuple:
            if len(result) == 1:
                body = result[0]
                if type(body) is not bytes:
                    _checked_chunk(body)
                if (
                    self.head is not None
                    and not self.is_head_sent
                    and len(body) <= MAX_WHOLE_BODY_BYTES
                ):
                    self.slot.send_whole(self.string_count, self.head, self.started, body)
                    self.is_head_sent = self.is_finished = True
                    return
            elif (
                not self.is_head_sent
                and sum(map(len, map(_checked_chunk, result))) <= MAX_JOIN_BYTES
            ):
                self._send_whole(b"".join(result))
                return
        elif isinstance(result, FileWrapper) and self._send_file(result):
            return
        self._send_iterable(result)

    def is_hijacked(self) -> bool:
        """Whether the application has taken the connection over: then it has answered by itself."""
        return self.connection is not None and self.slot.is_hijacked()

    def end_hijack(self) -> None:
        """Ends the call of an application that has taken the connection over."""
        if not self.is_finished:
            self.is_finished = True
            self.slot.send_end()

    def cancel(self) -> None:
        """Ends a response whose client has left."""
        if not self.is_finished:
            self.slot.send_failure(ABORT, 0, "cancelled")
            self.is_finished = True

    def fail(self, error: BaseException) -> None:
        """Ends the response after an exception."""
        if self.is_finished:
            return
        if self.is_hijacked():
            self.end_hijack()
            return
        self.is_finished = True
        if self.is_head_sent:
            self.slot.send_failure(ABORT, 0, f"application raised {type(error).__name__}")
        elif isinstance(error, AppProtocolError):
            self.slot.send_failure(FAILED, FLAG_PROTOCOL_ERROR, str(error))
        else:
            self.slot.send_failure(FAILED, 0, f"application raised {type(error).__name__}")

    def _restart(self, exc_info: Any) -> None:
        if exc_info is None:
            raise AppProtocolError("start_response called twice without exc_info")
        if self.is_finished:
            raise AppProtocolError("start_response called outside of its request")
        try:
            if self.is_head_sent:
                raise exc_info[1].with_traceback(exc_info[2])
        finally:
            exc_info = None  # Or the traceback would hold this frame, and it the traceback.

    def _send_iterable(self, result: Any) -> None:
        try:
            chunks = iter(result)
        except TypeError:
            raise AppProtocolError(f"a {type(result).__name__} was returned, no iterable") from None
        first = b""
        for first in chunks:
            if _checked_chunk(first):
                break
        if not first and not self.is_head_sent:
            self._send_whole(b"")
            return
        if not self.is_head_sent and self._declared_length() == len(first) <= MAX_WHOLE_BODY_BYTES:
            # Whole already, as a Flask or Django response is. The rest is only run.
            self._send_whole(first)
            if any(map(_checked_chunk, chunks)):
                raise AppProtocolError("more body than Content-Length")
            return
        if first:
            self._send_chunk(first)
        for chunk in chunks:
            if self.slot.is_cancelled():
                self.cancel()
                return
            if _checked_chunk(chunk):
                self.slot.send_body(chunk)
        self.is_finished = True
        self.slot.send_end()

    def _send_whole(self, body: bytes) -> None:
        head = self._head()
        self.is_head_sent = self.is_finished = True
        self.slot.send_whole(self.string_count, head, self.started, body)

    def _send_chunk(self, chunk: bytes) -> None:
        if self.is_head_sent:
            self.slot.send_body(chunk)
            return
        head = self._head()
        self.is_head_sent = True
        if len(chunk) <= MAX_BODY_FRAME_BYTES:
            self.slot.send_head(self.string_count, head, self.started, chunk)
        else:
            self.slot.send_head(self.string_count, head, self.started, b"")
            self.slot.send_body(chunk)

    def _send_file(self, wrapper: FileWrapper) -> bool:
        """Passes the descriptor if the kernel sees the same bytes in it as the application."""
        file = plain_file(wrapper.filelike)
        if file is None or self.is_head_sent:
            return False
        try:
            fd, offset = file.fileno(), file.tell()
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return False
        except (OSError, ValueError):
            return False
        length = self._declared_length()
        head = self._head()
        self.is_head_sent = self.is_finished = True
        wanted = UNTIL_END if length is None else length
        self.slot.send_file(self.string_count, head, self.started, fd, offset, wanted)
        return True

    def _head(self) -> bytes:
        if self.head is None:
            raise AppProtocolError("start_response was not called")
        return self.head

    def _declared_length(self) -> Optional[int]:
        self._head()
        for name, value in self.headers:
            if name.lower() == "content-length":
                return int(value) if value.isascii() and value.isdigit() else None
        return None


if native.module is None:
    Response.start_response = Response._start_checked  # type: ignore[attr-defined]


def _checked_chunk(chunk: Any) -> bytes:
    if not isinstance(chunk, bytes):
        raise AppProtocolError(f"the body holds {type(chunk).__name__}, not bytes")
    return chunk
