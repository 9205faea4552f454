"""Garbage collection between requests instead of within them (`--gc-when-idle`).

`slot_threads` makes one `IdleGc` for the process and a `GcCountingSlot` for each slot. The server
sends COLLECT_GARBAGE when a worker is idle. If it does not for a long time, the interpreter
collects by itself again until it does: memory has a bound in any case.
"""

from __future__ import annotations

import gc
import os
import socket
from typing import Any, Dict, Optional, Tuple

from . import wire

MAX_REQUESTS = 10_000
# How often the memory is looked at, in requests; a part of `MAX_REQUESTS`.
MEMORY_CHECK_REQUESTS = 250


class IdleGc:
    """Switches the automatic collection off, and on again when it must be."""

    def __init__(self) -> None:
        self._requests = 0
        self._limit = 0
        self.collect()

    def collect(self) -> None:
        """A full collection, now."""
        gc.collect()
        gc.disable()
        self._requests = 0
        self._limit = 2 * _resident_pages()

    def count_request(self) -> None:
        """Called for each request, by any thread."""
        self._requests += 1
        if self._requests % MEMORY_CHECK_REQUESTS == 0 and not gc.isenabled():
            if self._requests >= MAX_REQUESTS or _resident_pages() > self._limit:
                gc.enable()


class GcCountingSlot(wire.Slot):
    """A slot whose requests are counted."""

    __slots__ = ("_idle_gc",)

    def __init__(self, sock: socket.socket, idle_gc: IdleGc) -> None:
        super().__init__(sock)
        self._idle_gc = idle_gc
        self.collect = idle_gc.collect

    def receive(self) -> Optional[Tuple[Dict[str, Any], Optional[bytes]]]:
        self._idle_gc.count_request()
        return super().receive()


def _resident_pages() -> int:
    try:
        fd = os.open("/proc/self/statm", os.O_RDONLY)
    except OSError:
        return 1 << 62
    try:
        return int(os.read(fd, 200).split()[1])
    finally:
        os.close(fd)
