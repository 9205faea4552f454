"""Errors and tracebacks for the log: one event each, whatever an exception's message is.

Used by `wsgi`, `asgi_stream`, `lifespan` and `task_stacks`. The server takes a line without indentation after an
exception's own for the next event, so the lines of a message are indented here from the second on.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from types import TracebackType
from typing import Optional


def write_error(text: str) -> None:
    """Writes to standard error in one piece. The application may have closed that, or put anything
    in its place."""
    with contextlib.suppress(Exception):
        sys.stderr.write(text)
        sys.stderr.flush()


def format_app_traceback(error: BaseException, keeps_last: bool = True) -> str:
    """The traceback without the worker's own call of the application, if it begins with that; of one
    that has nothing else, the last call is kept unless `keeps_last` is false."""
    trace = error.__traceback__
    while trace is not None and _is_own(trace) and (trace.tb_next or not keeps_last):
        trace = trace.tb_next
    return format_traceback(error, trace)


def _is_own(trace: TracebackType) -> bool:
    return str(trace.tb_frame.f_globals.get("__name__", "")).startswith("penstock_worker.")


def format_traceback(error: BaseException, trace: Optional[TracebackType]) -> str:
    """The traceback as Python writes it, with its causes, from `trace` on."""
    parts = []
    is_message = False
    for part in traceback.format_exception(type(error), error, trace):
        first, _, rest = part.rstrip("\n").partition("\n")
        # Frames are indented, and what stands between two tracebacks begins with an empty line.
        is_own = part[:1] not in (" ", "\n") and not part.startswith("Traceback ")
        if is_own and (rest or is_message):
            # A note (PEP 678) comes as a part of its own.
            start = f"  {first}" if is_message else first
            part = "\n".join([start, *(f"  {line}" for line in rest.split("\n") if rest)]) + "\n"
        is_message = is_own
        parts.append(part)
    return "".join(parts)
