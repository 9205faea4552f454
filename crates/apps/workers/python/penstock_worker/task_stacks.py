"""SIGQUIT in a process with a reactor: the stack of every task, beside those of `thread_stacks`.

`asgi.AsgiRunner` adds `write` to the hooks of `thread_stacks`, which run while the interpreter can:
also when the loop is blocked in a call that signals interrupt.

# Invariants
- Writing changes nothing, raises nothing, and has a bound.
"""

from __future__ import annotations

import asyncio
import os
import traceback
from types import FrameType
from typing import Any, Iterator, List, Tuple

from . import native
from .asgi_stream import AsgiStream
from .tracebacks import write_error

MAX_TASKS = 200
MAX_FRAMES = 50
MAX_TEXT_CHARS = 1 << 20


def write(text: str) -> None:
    """Writes stacks to standard error."""
    write_error(text[:MAX_TEXT_CHARS])


def describe(loop: asyncio.AbstractEventLoop) -> str:
    """One paragraph a task: its request or its name, and its stack, the innermost call last."""
    tasks = [task for task in asyncio.all_tasks(loop) if not task.done()]
    parts = [f"stack of every task (pid {os.getpid()}): {len(tasks)}\n"]
    for task in tasks[:MAX_TASKS]:
        coroutine = task.get_coro()
        frames = list(_frames(coroutine))
        label = task.get_name()
        if _is_native_call(coroutine) and coroutine.__name__ == "run":
            # None where it is about to end.
            stream = coroutine.stream
            label = stream.describe() if stream is not None else label
        elif frames and frames[0][0].f_code is AsgiStream.run.__code__:
            # Our own part of the stack says nothing.
            label = frames.pop(0)[0].f_locals["self"].describe()
        parts.append(f"{label}\n")
        parts += traceback.StackSummary.extract(iter(frames[-MAX_FRAMES:])).format()
    if len(tasks) > MAX_TASKS:
        parts.append(f"and {len(tasks) - MAX_TASKS} more\n")
    return "".join(parts)


def _is_native_call(awaited: Any) -> bool:
    return native.module is not None and type(awaited) is native.module.Call


def _frames(awaited: Any) -> Iterator[Tuple[FrameType, int]]:
    """Frames of a coroutine and of what it awaits, outermost first."""
    seen: List[int] = []
    while awaited is not None and id(awaited) not in seen:
        seen.append(id(awaited))
        frame = None
        # One that is native has the frame of what it awaits.
        if not _is_native_call(awaited):
            frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
            frame = frame or getattr(awaited, "ag_frame", None)
        if frame is not None:
            yield frame, frame.f_lineno
        inner = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
        awaited = inner or getattr(awaited, "ag_await", None)
