"""Starts a worker process: options, application, threads, and how it ends.

`main` is called by the stub that the server puts on the command line, or by `__main__`. It says
HELLO on the control socket, imports the application, says READY or sends the traceback, and serves.

What must stay true: when the server goes away, however it goes, this process ends; no child of the
application inherits a socket of ours, or the server would wait for an end of file for ever.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import json
import os
import platform
import signal
import socket
import struct
import sys
import threading
import traceback
from types import TracebackType
from typing import Any, Callable, List, Optional

from . import wire, wsgi


def main(arguments: List[str]) -> int:
    """Runs a worker to its end; returns the exit code."""
    options = _parse(arguments)
    sys.argv[:] = ["penstock-worker"]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True, errors="backslashreplace")
    control = _adopt(options.control_fd)
    slots = [wire.Slot(_adopt(fd)) for fd in options.slot_fds]
    wire.send_control(control, wire.HELLO, struct.pack("<I", wire.VERSION))
    try:
        app = load(options.entry, options.dir)
    # Also SystemExit: a module that exits while it is imported has not booted.
    except BaseException as error:
        text = boot_traceback(error)
        # The application may have closed its standard error.
        with contextlib.suppress(Exception):
            sys.stderr.write(text)
        wire.send_control(control, wire.BOOT_FAILED, text.encode("utf-8", "replace")[: 1 << 20])
        return 1
    # What is loaded now lives for ever: keep it out of every later collection.
    gc.collect()
    gc.freeze()
    wire.send_control(control, wire.READY, json.dumps(_describe()).encode())
    _run(control, slots, app)
    return 0


def load(entry: str, folder: str) -> Callable[..., Any]:
    """The application named by `module`, `module:name`, `module:a.b` or `module:factory()`."""
    os.chdir(folder)
    if sys.path[:1] == [""]:
        del sys.path[0]
    sys.path.insert(0, os.getcwd())
    module_name, _, path = entry.partition(":")
    target: Any = importlib.import_module(module_name)
    path = path or "application"
    is_factory = path.endswith("()")
    for name in path[: -2 if is_factory else None].split("."):
        target = getattr(target, name)
    if is_factory:
        target = target()
    if not callable(target):
        raise TypeError(f"{entry} is a {type(target).__name__}, not a WSGI application")
    return target


def boot_traceback(error: BaseException) -> str:
    """The traceback without the frames that are not the application's."""
    trace = error.__traceback__
    while trace is not None and _is_ours(trace):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace))


def _is_ours(trace: TracebackType) -> bool:
    file = trace.tb_frame.f_code.co_filename
    return file in (__file__, _OWN_FILE, importlib.__file__) or file.startswith("<frozen importlib")


def _run(control: socket.socket, slots: List[wire.Slot], app: Callable[..., Any]) -> None:
    base = wsgi.base_environ(is_multithread=len(slots) > 1)
    if len(slots) == 1:
        _serve(slots[0], app, base)
        return
    threads = _Threads(control, len(slots))
    for number, slot in enumerate(slots):
        threading.Thread(
            target=threads.run, args=(slot, app, base), name=f"slot-{number}", daemon=True
        ).start()
    # The main thread waits for the server to go away, or for the last thread to end.
    try:
        control.recv(1)
    except OSError:
        pass
    if not threads.are_done():
        os._exit(0)


class _Threads:
    """Counts the threads that still serve, and wakes the main thread after the last."""

    def __init__(self, control: socket.socket, count: int) -> None:
        self._control = control
        self._left = count
        self._lock = threading.Lock()

    def run(self, slot: wire.Slot, app: Callable[..., Any], base: wsgi.Environ) -> None:
        _serve(slot, app, base)
        with self._lock:
            self._left -= 1
        if self.are_done():
            self._control.shutdown(socket.SHUT_RD)

    def are_done(self) -> bool:
        with self._lock:
            return self._left == 0


def _serve(slot: wire.Slot, app: Callable[..., Any], base: wsgi.Environ) -> None:
    """Serves one slot; what the server cannot have meant ends the whole process."""
    try:
        wsgi.serve(slot, app, base)
    except BaseException:
        try:
            traceback.print_exc()
        finally:
            os._exit(1)


def _adopt(fd: int) -> socket.socket:
    sock = socket.socket(fileno=fd)
    sock.setblocking(True)
    sock.set_inheritable(False)
    return sock


def _describe() -> dict:
    return {
        "pid": os.getpid(),
        "interpreter": f"{platform.python_implementation()} {platform.python_version()}",
        "interface": "wsgi 1.0",
    }


def _parse(arguments: List[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="penstock_worker")
    parser.add_argument("--control-fd", type=int, required=True)
    parser.add_argument("--slot-fds", type=_numbers, required=True)
    parser.add_argument("--app", default="app")
    parser.add_argument("--dir", default=".")
    parser.add_argument("--entry", required=True)
    return parser.parse_args(arguments)


def _numbers(text: str) -> List[int]:
    return [int(part) for part in text.split(",")]


_OWN_FILE: Optional[str] = _parse.__code__.co_filename
