"""Garbage collection between requests instead of within them (`--collect-when-idle`).

`crew` makes one `Collector` for the process and a `CollectingSlot` for each slot. The server says
COLLECT when a worker has nothing to do. When it does not for a long time, the interpreter collects
by itself again until it does: memory has a bound in any case.
"""

from __future__ import annotations

import gc
import os
import socket
from typing import Any, Dict, Optional, Tuple

from . import wire

REQUESTS_MAX = 10_000
# How often the memory is looked at, in requests; a part of `REQUESTS_MAX`.
LOOK_EVERY = 250


class Collector:
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
        if self._requests % LOOK_EVERY == 0 and not gc.isenabled():
            if self._requests >= REQUESTS_MAX or _resident_pages() > self._limit:
                gc.enable()


class CollectingSlot(wire.Slot):
    """A slot whose requests are counted."""

    __slots__ = ("_collector",)

    def __init__(self, sock: socket.socket, collector: Collector) -> None:
        super().__init__(sock)
        self._collector = collector
        self.collect = collector.collect

    def receive(self) -> Optional[Tuple[Dict[str, Any], Optional[bytes]]]:
        self._collector.count_request()
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
