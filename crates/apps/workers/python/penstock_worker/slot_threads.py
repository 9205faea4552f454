"""The threads of a worker: one for each slot, and the main thread that waits for the end.

`boot` makes a `SlotThreads` and calls `run`. With a single slot the main thread serves it itself.
The threads of spare slots begin at the first I/O-bound request, since only those make the server
use them.

# Invariants
- When the server ends, the process ends, however busy it is.
- When the server closes all slots, the process ends in order once the last thread has ended, or
  becomes a template if it may and has not been dismissed.
"""

from __future__ import annotations

import gc
import os
import socket
import threading
import traceback
from typing import Any, Callable

from . import forks, wire, wsgi
from .idle_gc import GcCountingSlot, IdleGc
from .template import Sockets

PROMOTE_TIMEOUT = 10.0


class SlotThreads:
    """All slots of a worker."""

    def __init__(
        self,
        control: socket.socket,
        sockets: Sockets,
        app: Callable[..., Any],
        gc_when_idle: bool,
        may_become_template: bool,
    ) -> None:
        self._control = control
        self._app = app
        self._may_become_template = may_become_template
        idle_gc = IdleGc() if gc_when_idle else None

        def slot(sock: socket.socket) -> wire.Slot:
            made = GcCountingSlot(sock, idle_gc) if idle_gc else wire.Slot(sock)
            if idle_gc is None:
                made.collect = lambda: gc.collect() and None
            made.before_io_bound = self._start_spare_threads
            return made

        self._slots = [slot(sock) for sock in sockets.slots]
        self._spare_slots = [slot(sock) for sock in sockets.spares]
        self._is_multithread = len(self._slots) + len(self._spare_slots) > 1
        # Guards `_active_threads` and `_spare_slots`; told when `_active_threads` changes.
        self._threads_changed = threading.Condition()
        self._active_threads = len(self._slots)

    def run(self) -> bool:
        """Serves until every slot is closed. True when this process is to be a template now."""
        if len(self._slots) == 1:
            self._serve(self._slots[0])
        else:
            for number, slot in enumerate(self._slots):
                self._start_thread(slot, f"slot-{number}")
        return self._wait_for_control()

    def _start_thread(self, slot: wire.Slot, name: str) -> None:
        threading.Thread(target=self._serve, args=(slot,), name=name, daemon=True).start()

    def _start_spare_threads(self) -> bool:
        """Starts the threads of spare slots; False when the system refuses."""
        if not self._spare_slots:
            return True
        with self._threads_changed:
            while self._spare_slots:
                self._active_threads += 1
                try:
                    self._start_thread(self._spare_slots[-1], f"io-{len(self._spare_slots)}")
                except RuntimeError:
                    self._active_threads -= 1
                    return False
                self._spare_slots.pop()
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
        with self._threads_changed:
            self._active_threads -= 1
            self._threads_changed.notify_all()
            if self._active_threads == 0 and not self._may_become_template:
                # Wakes the main thread.
                self._control.shutdown(socket.SHUT_RD)

    def _wait_for_control(self) -> bool:
        """Waits for the last thread, for the server to go away, or for PROMOTE."""
        while self._may_become_template or self._active_threads:
            try:
                waiting = self._control.recv(1, socket.MSG_PEEK)
            except OSError:
                waiting = b""
            if not waiting:
                break
            if self._receive_promotion():
                return self._become_template()
            with self._threads_changed:
                # The last thread wakes this one from now on.
                self._may_become_template = False
        if self._active_threads:
            os._exit(0)
        return False

    def _receive_promotion(self) -> bool:
        """Whether the frame that waits is PROMOTE; else it is DISMISS."""
        frame = wire.receive_control(self._control)
        if frame is not None and frame[0] == wire.PROMOTE and self._may_become_template:
            return True
        if frame is None or frame[0] != wire.DISMISS:
            raise wire.WireError("a worker was sent something else than PROMOTE or DISMISS")
        return False

    def _become_template(self) -> bool:
        with self._threads_changed:
            is_idle = self._threads_changed.wait_for(
                lambda: self._active_threads == 0, PROMOTE_TIMEOUT
            )
        if not is_idle:
            raise wire.WireError("a worker was told to become a template while it was busy")
        forks.close_guarded(self._control)
        gc.enable()
        return True
