"""The threads of a worker: one for each slot, and the main thread that waits for the end.

`boot` makes a `Crew` and calls `run`. With a single slot the main thread serves it itself. The
threads of spare slots begin at the first request that says that it is bound by I/O, since no other
makes the server use them.

What must stay true: when the server goes away, the process ends, however busy it is; when the
server closes all slots, it ends in order once the last thread has ended, or stays when it may
become a template and has not been dismissed.
"""

from __future__ import annotations

import gc
import os
import socket
import threading
import traceback
from typing import Any, Callable

from . import forks, wire, wsgi
from .collector import CollectingSlot, Collector
from .template import Sockets

PROMOTE_DEADLINE = 10.0


class Crew:
    """All slots of a worker."""

    def __init__(
        self,
        control: socket.socket,
        sockets: Sockets,
        app: Callable[..., Any],
        collects_when_idle: bool,
        stays: bool,
    ) -> None:
        self._control = control
        self._app = app
        self._stays = stays
        collector = Collector() if collects_when_idle else None

        def slot(sock: socket.socket) -> wire.Slot:
            made = CollectingSlot(sock, collector) if collector else wire.Slot(sock)
            if collector is None:
                made.collect = lambda: gc.collect() and None
            made.before_mark = self._begin_spares
            return made

        self._slots = [slot(sock) for sock in sockets.slots]
        self._spares = [slot(sock) for sock in sockets.spares]
        self._is_multithread = len(self._slots) + len(self._spares) > 1
        # Guards `_left` and `_spares`; told when `_left` changes.
        self._changed = threading.Condition()
        self._left = len(self._slots)

    def run(self) -> bool:
        """Serves until every slot is closed. True when this process is to be a template now."""
        if len(self._slots) == 1:
            self._serve(self._slots[0])
        else:
            for number, slot in enumerate(self._slots):
                self._start(slot, f"slot-{number}")
        return self._wait()

    def _start(self, slot: wire.Slot, name: str) -> None:
        threading.Thread(target=self._serve, args=(slot,), name=name, daemon=True).start()

    def _begin_spares(self) -> bool:
        """Starts the threads of spare slots; False when the system refuses."""
        if not self._spares:
            return True
        with self._changed:
            while self._spares:
                self._left += 1
                try:
                    self._start(self._spares[-1], f"io-{len(self._spares)}")
                except RuntimeError:
                    self._left -= 1
                    return False
                self._spares.pop()
        return True

    def _serve(self, slot: wire.Slot) -> None:
        """Serves one slot; what the server cannot have meant ends the whole process."""
        try:
            wsgi.serve(slot, self._app, wsgi.base_environ(self._is_multithread, slot))
        except BaseException:
            try:
                traceback.print_exc()
            finally:
                os._exit(1)
        with self._changed:
            self._left -= 1
            self._changed.notify_all()
            if self._left == 0 and not self._stays:
                # Wakes the main thread.
                self._control.shutdown(socket.SHUT_RD)

    def _wait(self) -> bool:
        """Waits for the last thread, for the server to go away, or for PROMOTE."""
        while self._stays or self._left:
            try:
                waiting = self._control.recv(1, socket.MSG_PEEK)
            except OSError:
                waiting = b""
            if not waiting:
                break
            if self._is_promoted():
                return self._become_template()
            with self._changed:
                # The last thread wakes this one from now on.
                self._stays = False
        if self._left:
            os._exit(0)
        return False

    def _is_promoted(self) -> bool:
        """Whether the frame that waits is PROMOTE; else it is DISMISS."""
        frame = wire.receive_control(self._control)
        if frame is not None and frame[0] == wire.PROMOTE and self._stays:
            return True
        if frame is None or frame[0] != wire.DISMISS:
            raise wire.WireError("a worker was sent something else than PROMOTE or DISMISS")
        return False

    def _become_template(self) -> bool:
        with self._changed:
            is_idle = self._changed.wait_for(lambda: self._left == 0, PROMOTE_DEADLINE)
        if not is_idle:
            raise wire.WireError("a worker was told to become a template while it was busy")
        forks.release(self._control)
        gc.enable()
        return True
