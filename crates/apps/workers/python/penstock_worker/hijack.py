"""The client's connection for a WSGI application that speaks another protocol than HTTP.

`wsgi` puts a `ClientSocket` into the environment of a request that asks for another protocol, under
the names that servers have for it. Nothing happens until the application uses it: then the server
gets the other end, and reads the response that is written here.

# Invariants
- The connection ends with the request's call, as in the servers whose names it has.
- A response that has begun has no such connection.
- An unused connection is closed.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Any, Dict, Optional

from .wire import Slot, Socket

# simple-websocket (flask-sock, Flask-SocketIO) looks for these.
ENVIRON_KEYS = ("werkzeug.socket", "gunicorn.socket")


def offer(slot: Slot, environ: Dict[str, Any], kind: Any = None) -> Any:
    """Adds the connection to the environment of a request that may take_over it over: one with
    `HTTP_UPGRADE`, which the server leaves out wherever it could not hand the connection over.
    `kind` is a class that `client_socket` made, a blocking one's by default. Returns the
    connection, or None."""
    try:
        connection = (kind or ClientSocket)(slot)
    except OSError:
        # No descriptor is left: the request is one like any other.
        return None
    for name in ENVIRON_KEYS:
        environ[name] = connection
    return connection


def client_socket(base: Any) -> Any:
    """A class of sockets, made of `base`, that are one end of a pair; the other goes to the server
    at the first use."""

    class ClientSocket(base):  # type: ignore[misc]
        def __init__(self, slot: Slot) -> None:
            ours, theirs = socket.socketpair()
            super().__init__(fileno=ours.detach())
            self._slot = slot
            self._request = slot.request_number()
            self._theirs: Optional[socket.socket] = theirs

        def take_over(self) -> None:
            """Takes the connection over, if it was not. Raises OSError when the response has
            begun."""
            theirs, self._theirs = self._theirs, None
            if theirs is None:
                return
            with theirs:
                if not self._slot.hijack(theirs, self._request):
                    super().close()
                    raise OSError("the connection cannot be taken over: its response has begun")

        def finish(self) -> None:
            """The request is over, and so is the connection."""
            theirs, self._theirs = self._theirs, None
            if theirs is not None:
                theirs.close()
            if super().fileno() >= 0:
                with contextlib.suppress(OSError):
                    super().shutdown(socket.SHUT_RDWR)
                super().close()

        def __repr__(self) -> str:
            # A socket's own asks for `fileno`; printing an environment must hijack nothing.
            state = "not used" if self._theirs is not None else "used or closed"
            return f"<penstock_worker.ClientSocket, {state}>"

        def fileno(self) -> int:
            self.take_over()
            return super().fileno()

        def makefile(self, *args: Any, **kwargs: Any) -> Any:
            self.take_over()
            return super().makefile(*args, **kwargs)

    for name in TAKEOVER_METHODS:
        setattr(ClientSocket, name, _wrap_taking_over(base, name))
    return ClientSocket


# What uses a connection.
TAKEOVER_METHODS = (
    "detach",
    "dup",
    "recv",
    "recv_into",
    "recvfrom",
    "recvfrom_into",
    "recvmsg",
    "recvmsg_into",
    "send",
    "sendall",
    "sendfile",
    "sendmsg",
    "shutdown",
)


def _wrap_taking_over(base: Any, name: str) -> Any:
    method = getattr(base, name)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.take_over()
        return method(self, *args, **kwargs)

    call.__name__ = name
    return call


ClientSocket = client_socket(Socket)
