"""`wsgi.websocket`, as gevent-websocket's own server puts it into an environment.

`gevent_reactor` offers it beside the client's connection (`hijack`) if that package is installed.
The package reads and writes frames; its handshake belongs to the server that it needs, so it is
made here. Nothing happens until the application reads or writes: then the connection is hijacked
and the handshake answered (RFC 6455 section 4.2.2).

# Invariants
- A request without a complete handshake has no `wsgi.websocket`.
- A WebSocket that was never used hijacks nothing, not even to be closed.
- One that was used is closed, with 1000, when the application returns.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import logging
from types import SimpleNamespace
from typing import Any, Callable, Dict

ENVIRON_KEY = "wsgi.websocket"
WEBSOCKET_VERSION = "13"
ACCEPT_GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
OPCODE_CLOSE = 8
NORMAL_CLOSURE = bytes([0x80 | OPCODE_CLOSE, 2]) + (1000).to_bytes(2, "big")


def offer(connection: Any, environ: Dict[str, Any], app: Callable[..., Any]) -> None:
    """Adds a WebSocket over `connection` to the environment of a WebSocket's handshake, unless
    gevent-websocket is not installed."""
    if environ.get("HTTP_UPGRADE", "").lower() != "websocket":
        return
    if environ.get("REQUEST_METHOD") != "GET":
        return
    key = environ.get("HTTP_SEC_WEBSOCKET_KEY", "").strip()
    if environ.get("HTTP_SEC_WEBSOCKET_VERSION") != WEBSOCKET_VERSION or not _is_valid_key(key):
        return
    try:
        from geventwebsocket.websocket import WebSocket
    except ImportError:
        return
    head = _response_head(key, _select_subprotocol(environ, app))
    handler = SimpleNamespace(
        server=SimpleNamespace(application=app),
        logger=logging.getLogger("geventwebsocket"),
    )
    environ["wsgi.websocket_version"] = WEBSOCKET_VERSION
    environ[ENVIRON_KEY] = WebSocket(environ, WebSocketStream(connection, head), handler)


def close(environ: Dict[str, Any]) -> None:
    """Says goodbye where the application has not, as the package's own server does."""
    websocket = environ.get(ENVIRON_KEY)
    if websocket is not None and not websocket.closed:
        # The package's own `close` leaves the code out of its frame.
        with contextlib.suppress(OSError):
            websocket.stream.write(NORMAL_CLOSURE)
        websocket.closed = True


class WebSocketStream:
    """What the package reads from and writes to. Both raise OSError where the connection cannot be
    taken over any more."""

    def __init__(self, connection: Any, head: bytes) -> None:
        self._connection = connection
        self._head = head
        self._file: Any = None

    def read(self, size: int) -> bytes:
        self._ensure_accepted()
        return self._file.read(size)

    def write(self, data: bytes) -> None:
        if self._file is None and data[:1] and data[0] & 0x0F == OPCODE_CLOSE:
            raise OSError("the WebSocket was not accepted")
        self._ensure_accepted()
        self._connection.sendall(data)

    def _ensure_accepted(self) -> None:
        if self._file is None:
            self._connection.sendall(self._head)
            self._file = self._connection.makefile("rb")


def _is_valid_key(key: str) -> bool:
    try:
        return len(base64.b64decode(key, validate=True)) == 16
    except binascii.Error:
        return False


def _select_subprotocol(environ: Dict[str, Any], app: Any) -> str:
    """The subprotocol that the application names for the path, if the client offers it."""
    choose = getattr(app, "app_protocol", None)
    chosen = choose(environ.get("PATH_INFO", "")) if choose else None
    offered = environ.get("HTTP_SEC_WEBSOCKET_PROTOCOL", "").split(",")
    return chosen if chosen in [name.strip() for name in offered if name.strip()] else ""


def _response_head(key: str, protocol: str) -> bytes:
    digest = hashlib.sha1((key + ACCEPT_GUID).encode("latin-1")).digest()
    lines = [
        "HTTP/1.1 101 Switching Protocols",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Accept: {base64.b64encode(digest).decode()}",
    ]
    if protocol:
        lines.append(f"Sec-WebSocket-Protocol: {protocol}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
