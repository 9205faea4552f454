"""SIGQUIT in a process with a reactor: where every task stands, beside the threads of `stacks`.

`asgi.Runner` puts `write` among the hooks of `stacks`, which run when the interpreter is alive: also
while the loop is blocked in a call that signals interrupt.

What must stay true: writing changes nothing, raises nothing, and has a bound.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import traceback
from types import FrameType
from typing import Any, Iterator, List, Tuple

from .stream import Stream

TASKS_MAX = 200
FRAMES_MAX = 50
TEXT_MAX = 1 << 20


def write(text: str) -> None:
    """Writes to standard error, which the application may have closed."""
    with contextlib.suppress(Exception):
        sys.stderr.write(text[:TEXT_MAX])
        sys.stderr.flush()


def describe(loop: asyncio.AbstractEventLoop) -> str:
    """One paragraph a task: its request or its name, and its stack, the innermost call last."""
    tasks = [task for task in asyncio.all_tasks(loop) if not task.done()]
    parts = [f"stack of every task (pid {os.getpid()}): {len(tasks)}\n"]
    for task in tasks[:TASKS_MAX]:
        frames = list(_frames(task.get_coro()))
        label = task.get_name()
        if frames and frames[0][0].f_code is Stream.run.__code__:
            # Our own part of the stack says nothing.
            label = frames.pop(0)[0].f_locals["self"].label()
        parts.append(f"{label}\n")
        parts += traceback.StackSummary.extract(iter(frames[-FRAMES_MAX:])).format()
    if len(tasks) > TASKS_MAX:
        parts.append(f"and {len(tasks) - TASKS_MAX} more\n")
    return "".join(parts)


def _frames(awaited: Any) -> Iterator[Tuple[FrameType, int]]:
    """Frames of a coroutine and of what it awaits, outermost first."""
    seen: List[int] = []
    while awaited is not None and id(awaited) not in seen:
        seen.append(id(awaited))
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        frame = frame or getattr(awaited, "ag_frame", None)
        if frame is not None:
            yield frame, frame.f_lineno
        inner = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
        awaited = inner or getattr(awaited, "ag_await", None)
