"""The stack of every thread, on SIGQUIT: the server sends it before it ends a stuck worker.

`boot` installs it, again in every forked worker, which has another standard error. The
interpreter's C code writes the stacks, so that they come even while a library keeps the
interpreter's lock. Then, if the main thread still runs Python, each of `hooks` is called: a reactor
adds one that writes its tasks. A hook that fails reports that in the same place.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import traceback
from typing import Any, Callable, List, Optional

from . import wire

hooks: List[Callable[[], None]] = []
_output_fd: Optional[int] = None


def install() -> None:
    """Writes the stacks to what is standard error now, on every SIGQUIT from now on."""
    global _output_fd
    # A descriptor of its own: the application may close its standard error.
    with contextlib.suppress(OSError):
        fd = wire.duplicate_fd(2)
        # It keeps the kernel's handler as long as it is registered.
        faulthandler.unregister(signal.SIGQUIT)
        signal.signal(signal.SIGQUIT, _run_hooks)
        faulthandler.register(signal.SIGQUIT, file=fd, all_threads=True, chain=True)
        if _output_fd is not None:
            os.close(_output_fd)
        _output_fd = fd


def _run_hooks(_number: int, _frame: Any) -> None:
    for hook in hooks:
        try:
            hook()
        except Exception as error:
            text = "".join(traceback.format_exception(None, error, error.__traceback__))
            with contextlib.suppress(OSError):
                os.write(2 if _output_fd is None else _output_fd, text.encode(errors="replace"))
