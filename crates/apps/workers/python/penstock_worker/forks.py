"""Forks of this process: those that become workers, and those of the application.

`template` calls `fork_worker` and, in the new worker, `die_with_server`. `boot` calls
`close_on_fork` once: from then on a process that the application forks has the worker's sockets
closed, and `exit_if_forked_by_app` ends it when it returns into the worker's code, so that it
cannot answer for its parent.

# Invariants
- A worker is no child of its template, and ends with its server in whatever way that ends.
- The intermediate process runs nothing of the application but its fork hooks.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import traceback
from time import monotonic, sleep
from typing import Any, Callable, List, Optional

from . import native

PARENT_TIMEOUT = 5.0
_PR_SET_PDEATHSIG = 1

# What they are now: gevent replaces them in their modules when it is asked to.
_fork, _waitpid = os.fork, os.waitpid

_sockets: List[Any] = []
_is_guarding = False
_is_own_fork = False
is_forked_by_app = False
_intermediate_pid = 0
_prctl: Optional[Callable[..., int]] = None


def close_on_fork(*sockets: Any) -> None:
    """Closes these in every process that the application forks."""
    global _is_guarding
    if not _is_guarding:
        os.register_at_fork(after_in_child=_after_fork)
        _is_guarding = True
    _sockets.extend(sockets)


def ignore_interrupts() -> None:
    """Lets SIGINT pass this process by: a stop is the server's business. By a handler, because a
    program that the application starts would inherit a signal that is ignored, and could not be
    interrupted; a process that it forks gets Python's own handler back."""
    signal.signal(signal.SIGINT, _ignore_signal)


def close_guarded(kept: Any = None) -> None:
    """Closes all that is guarded but `kept`: a new worker wants nothing of its template's, and a
    new template nothing of what it served."""
    for sock in _sockets:
        if sock is not kept:
            sock.close()
    _sockets[:] = [] if kept is None else [kept]


def exit_if_forked_by_app(error: Optional[BaseException] = None) -> None:
    """Ends this process if the application has forked it; `error` is what it came back with."""
    if not is_forked_by_app:
        return
    code = 1
    # The application may have closed its standard error.
    with contextlib.suppress(BaseException):
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        else:
            if error is not None:
                sys.stderr.write("".join(traceback.format_exception(None, error, None)))
            name = f"process {os.getpid()}, forked by the application,"
            sys.stderr.write(f"{name} came back from it and was ended\n")
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code & 0xFF)


def load_prctl() -> None:
    """Loads what `die_with_server` needs, once for all workers of a template."""
    global _prctl
    try:
        import ctypes

        _prctl = ctypes.CDLL(None, use_errno=True).prctl
    # An interpreter without ctypes, or a library without prctl.
    except Exception:
        _prctl = None


def fork_worker(failed: Callable[[OSError], None]) -> bool:
    """Forks twice: True in the new worker, False here. `failed` is called, here or in the process
    in the middle, when the kernel refuses."""
    global _is_own_fork
    for stream in (sys.stdout, sys.stderr):
        # Buffered text would be written twice.
        with contextlib.suppress(Exception):
            stream.flush()
    _is_own_fork = True
    try:
        try:
            middle = _fork()
        except OSError as error:
            failed(error)
            return False
        if middle == 0:
            return _fork_from_intermediate(failed)
        # ECHILD: the application has said that it wants to hear of no child.
        with contextlib.suppress(ChildProcessError):
            _waitpid(middle, 0)
        return False
    finally:
        _is_own_fork = False


def _fork_from_intermediate(failed: Callable[[OSError], None]) -> bool:
    """In the process in the middle, which never returns."""
    global _intermediate_pid
    _intermediate_pid = os.getpid()
    try:
        child = _fork()
    except OSError as error:
        with contextlib.suppress(BaseException):
            failed(error)
        os._exit(1)
    if child:
        os._exit(0)
    return True


def die_with_server(server: int) -> None:
    """Waits until `server` is the parent of this new worker, and sees to it that the worker ends
    when that does. A worker whose server has gone ends here."""
    deadline = monotonic() + PARENT_TIMEOUT
    while os.getppid() == _intermediate_pid and monotonic() < deadline:
        sleep(0.0002)
    if os.getppid() != server:
        os._exit(1)
    if _prctl is None or _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        threading.Thread(target=_watch_parent, args=(server,), name="parent", daemon=True).start()
    # It may have gone in between.
    if os.getppid() != server:
        os._exit(1)


def _watch_parent(server: int) -> None:
    while os.getppid() == server:
        sleep(0.5)
    os._exit(1)


def _after_fork() -> None:
    global is_forked_by_app
    if _is_own_fork:
        return
    is_forked_by_app = True
    if native.module:
        native.module.after_fork()
    if signal.getsignal(signal.SIGINT) is _ignore_signal:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    close_guarded()


def _ignore_signal(_number: int, _frame: Any) -> None:
    """Handles SIGINT."""
