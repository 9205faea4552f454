"""The threads of this process, and whether it may be forked beside them.

A fork takes the thread that calls it and no other: what the others held, locks above all, stays as it
was. `boot` asks before a template says READY. Threads of Python prevent it. Threads of libraries
prevent it too, unless they can only be OpenBLAS's (numpy, scipy), which stops its pool before a fork
and starts it again after.

What must stay true: a thread that nothing is known of prevents a fork.
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

_DEADLINE = 0.2
_NAMES_MAX = 8


def prevents_fork() -> str:
    """Which threads make a fork unsafe; empty when none does."""
    # A thread that has just ended is counted by the kernel for a moment.
    deadline = monotonic() + _DEADLINE
    while True:
        reason = _reason()
        if not reason or monotonic() > deadline:
            return reason
        sleep(0.001)


def others() -> str:
    """The threads that a fork leaves behind for good, for the log; empty when there are none."""
    own = _of_python()
    native = _native(len(own))
    return _list(own + ([] if _may_be_openblas(native) else native))


def _reason() -> str:
    own = _of_python()
    if own:
        return f"{len(own)} more threads run: {_list(own)}"
    native = _native(0)
    if not native:
        return ""
    if "grpc" in sys.modules:
        return f"grpc is loaded, and {len(native)} native threads run"
    if _may_be_openblas(native):
        return ""
    return f"{len(native)} native threads run: {_list(native)}"


def _of_python() -> List[str]:
    """The names of the threads that run Python, this one left out."""
    # Not what gevent makes of `threading.get_ident`: the number of a greenlet.
    me = get_ident()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    # Also those that `threading` does not know.
    idents = set(sys._current_frames()) - {me}
    return [names.get(ident, "without a name") for ident in idents]


def _native(count: int) -> List[str]:
    """The names of all other threads, when `count` run Python besides this one."""
    names = []
    with contextlib.suppress(OSError):
        for task in os.listdir("/proc/self/task"):
            # It may have ended in between.
            with contextlib.suppress(OSError):
                if int(task) != os.getpid():
                    names.append(_read(f"/proc/self/task/{task}/comm").strip())
    # Those that run Python have the process's own name, as a rule: the others come first.
    own = _read("/proc/self/comm").strip()
    names.sort(key=lambda name: name == own)
    return names[: max(len(names) - count, 0)]


def _may_be_openblas(native: List[str]) -> bool:
    """Whether there are as many threads as OpenBLAS starts at most: one less than there are
    processors, for each copy of it; none of them has a name of its own."""
    own = _read("/proc/self/comm").strip()
    if not native or any(name != own for name in native):
        return False
    copies: Set[str] = set()
    for line in _read("/proc/self/maps").splitlines():
        path = line.split(None, 5)[5:]
        if path and "openblas" in os.path.basename(path[0]):
            copies.add(path[0])
    return len(native) <= len(copies) * ((os.cpu_count() or 1) - 1)


def _list(names: List[str]) -> str:
    rest = len(names) - _NAMES_MAX
    return ", ".join(names[:_NAMES_MAX]) + (f" and {rest} more" if rest > 0 else "")


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()
