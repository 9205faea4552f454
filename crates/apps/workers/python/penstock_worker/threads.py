"""The threads of this process, and whether it may be forked beside them.

A fork takes the thread that calls it and no other: what the other threads held, locks above all,
stays as it was. `boot` asks before a template sends READY. Threads of Python prevent a fork.
Threads of libraries prevent it too, unless they can only be OpenBLAS's (numpy, scipy), which stops
its pool before a fork and starts it again after.

# Invariants
- An unknown thread prevents a fork.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from _thread import get_ident
from time import monotonic, sleep
from typing import List, Set

# What it is now: gevent replaces it.
_get_ident = threading.get_ident

_SETTLE_TIMEOUT = 0.2
_MAX_NAMES = 8


def prevents_fork() -> str:
    """Which threads make a fork unsafe; empty when none does."""
    # A thread that has just ended is counted by the kernel for a moment.
    deadline = monotonic() + _SETTLE_TIMEOUT
    while True:
        reason = _unsafe_reason()
        if not reason or monotonic() > deadline:
            return reason
        sleep(0.001)


def left_behind() -> str:
    """The threads that a fork leaves behind for good, for the log; empty when there are none."""
    own = _python_threads()
    native = _native_threads(len(own))
    return _format_names(own + ([] if _may_be_openblas(native) else native))


def _unsafe_reason() -> str:
    own = _python_threads()
    if own:
        return f"{len(own)} more threads run: {_format_names(own)}"
    native = _native_threads(0)
    if not native:
        return ""
    if "grpc" in sys.modules:
        return f"grpc is loaded, and {len(native)} native threads run"
    if _may_be_openblas(native):
        return ""
    return f"{len(native)} native threads run: {_format_names(native)}"


def _python_threads() -> List[str]:
    """The names of the threads that run Python, this one left out."""
    # Not what gevent makes of `threading.get_ident`: the number of a greenlet.
    me = get_ident()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    # Also those that `threading` does not know.
    idents = set(sys._current_frames()) - {me}
    return [names.get(ident, "without a name") for ident in idents]


def _native_threads(count: int) -> List[str]:
    """The names of all other threads, when `count` run Python besides this one."""
    names = []
    with contextlib.suppress(OSError):
        for task in os.listdir("/proc/self/task"):
            # It may have ended in between.
            with contextlib.suppress(OSError):
                if int(task) != os.getpid():
                    names.append(_read_text(f"/proc/self/task/{task}/comm").strip())
    # Those that run Python have the process's own name, as a rule: the others come first.
    own = _read_text("/proc/self/comm").strip()
    names.sort(key=lambda name: name == own)
    return names[: max(len(names) - count, 0)]


def _may_be_openblas(native: List[str]) -> bool:
    """Whether there are as many threads as OpenBLAS starts at most: one less than there are
    processors, for each copy of it; none of them has a name of its own."""
    own = _read_text("/proc/self/comm").strip()
    if not native or any(name != own for name in native):
        return False
    copies: Set[str] = set()
    for line in _read_text("/proc/self/maps").splitlines():
        path = line.split(None, 5)[5:]
        if path and "openblas" in os.path.basename(path[0]):
            copies.add(path[0])
    return len(native) <= len(copies) * ((os.cpu_count() or 1) - 1)


def _format_names(names: List[str]) -> str:
    rest = len(names) - _MAX_NAMES
    return ", ".join(names[:_MAX_NAMES]) + (f" and {rest} more" if rest > 0 else "")


def _read_text(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()
