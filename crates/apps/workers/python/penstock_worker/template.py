"""A process from which workers are forked, and the first steps of such a worker.

`boot` calls `serve` in a process that has loaded the application: it answers FORK after FORK on the
control socket (PROTOCOL.md), and returns only in a new worker, with the sockets that this one got.
`Sockets` are those that a worker serves on, forked or not.

# Invariants
- Nothing of the template is left open in a worker but what the application has opened.
- The template's standard output and error stay its own.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from typing import List, NamedTuple, Optional, Tuple

from . import api, forks, threads, wire
from .hooks import AFTER_FORK_IN_TEMPLATE, BEFORE_FORK, Hooks, Worker


class NewWorker(NamedTuple):
    """What a forked worker begins with."""

    control: socket.socket
    sockets: "Sockets"
    worker: Worker
    # What a hook raised before the fork.
    hook_error: Optional[BaseException]


class Sockets(NamedTuple):
    """What the server gives a worker besides its control socket."""

    slots: List[socket.socket]
    spares: List[socket.socket]
    channel: Optional[socket.socket] = None
    files: Optional[socket.socket] = None

    def all(self) -> List[socket.socket]:
        """Every one of them."""
        return [*self.slots, *self.spares, *filter(None, (self.channel, self.files))]

    def close_unused(self, has_reactor: bool) -> None:
        """Closes what is for the other kind of worker: one that was to find out for itself what it
        serves has both."""
        if has_reactor:
            unused = [*self.slots, *self.spares]
        else:
            unused = [*filter(None, (self.channel, self.files))]
        for sock in unused:
            sock.close()


def serve(
    control: socket.socket, server: int, streams: Tuple[object, object], hooks: Hooks
) -> NewWorker:
    """Forks workers as the server wishes. Returns in each of them; here it never does: it ends the
    process when the server closes `control`."""
    while True:
        frame = wire.receive_control(control)
        if frame is None:
            os._exit(0)
        kind, flags, payload, fds = frame
        if kind != wire.FORK or flags or len(payload) != 8 or len(fds) != 3:
            raise wire.WireError("a template was sent something else than FORK")

        def failed(error: OSError, worker: bytes = payload) -> None:
            reason = str(error).encode("utf-8", "replace")[: wire.MAX_REASON_BYTES]
            wire.send_control(control, wire.FORK_FAILED, worker + reason)

        number = int.from_bytes(payload, "little")
        # The new worker reports it, as any other failure of its boot.
        hook_error = _run_before_fork(hooks, number)
        if forks.fork_worker(failed):
            own_control, sockets = _begin_worker(fds, server, streams)
            return NewWorker(own_control, sockets, Worker(number, os.getpid()), hook_error)
        for fd in fds:
            os.close(fd)
        hooks.run_anyway(AFTER_FORK_IN_TEMPLATE, Worker(number, None))


def _run_before_fork(hooks: Hooks, number: int) -> Optional[BaseException]:
    try:
        hooks.run(BEFORE_FORK, Worker(number, None))
    except BaseException as error:
        forks.exit_if_forked_by_app(error)
        return error
    forks.exit_if_forked_by_app()
    return None


def standard_streams() -> Tuple[object, object]:
    """What descriptors 1 and 2 are now: an application that gives them another meaning while it
    loads keeps it in its workers."""
    return _file_identity(1), _file_identity(2)


def prevents_fork(is_forked_anyway: bool) -> Optional[str]:
    """Why nothing may be forked from this process now, if so: what the application said, or its
    threads, unless it `is_forked_anyway`."""
    reason = api.fork_prevented_reason()
    if reason is None and not is_forked_anyway:
        reason = threads.prevents_fork() or None
    return reason


def _begin_worker(
    fds: List[int], server: int, streams: Tuple[object, object]
) -> Tuple[socket.socket, Sockets]:
    forks.close_guarded()
    os.setpgid(0, 0)
    control = wire.adopt_socket(fds[0])
    # Out of the way first: they may have come as 1 or 2 where the application has closed those.
    moved = [wire.move_fd(fd) for fd in fds[1:]]
    for number, was, fd in zip((1, 2), streams, moved):
        if _file_identity(number) == was:
            os.dup2(fd, number)
        os.close(fd)
    forks.close_on_fork(control)
    forks.die_with_server(server)
    send_hello(control)
    try:
        sockets = _receive_sockets(control)
    except OSError:
        os._exit(0)
    forks.close_on_fork(*sockets.all())
    return control, sockets


def send_hello(control: socket.socket) -> None:
    """Says HELLO."""
    wire.send_control(control, wire.HELLO, struct.pack("<I", wire.PROTOCOL_VERSION))


def _receive_sockets(control: socket.socket) -> Sockets:
    found: dict = {"s": [], "i": [], "c": [], "f": []}
    is_last = False
    while not is_last:
        frame = wire.receive_control(control)
        if frame is None:
            os._exit(0)
        kind, flags, kinds, fds = frame
        if kind != wire.SLOTS or flags & ~wire.FLAG_END or len(kinds) != len(fds):
            raise wire.WireError("a forked worker was sent something else than SLOTS")
        for letter, fd in zip(kinds.decode("latin-1"), fds):
            if letter not in found:
                raise wire.WireError(f"a socket of unknown kind {letter!r}")
            found[letter].append(wire.adopt_socket(fd))
        is_last = bool(flags & wire.FLAG_END)
    channel, files = (found[letter][0] if found[letter] else None for letter in "cf")
    return Sockets(found["s"], found["i"], channel, files)


def _file_identity(fd: int) -> object:
    with contextlib.suppress(OSError):
        stat = os.fstat(fd)
        return stat.st_dev, stat.st_ino
    return None
