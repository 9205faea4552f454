"""Starts a process: reads its options, loads the application, and serves or forks.

`main` is called by the stub that the server puts on the command line, or by `__main__`. It sends
HELLO on the control socket, imports the application, sends READY or the traceback, and serves: with
`slot_threads`, with a reactor, or as a `template`. A forked worker continues here too, and a worker
may become a template. The functions of `hooks` are called on the way.

# Invariants
- When the server ends, in whatever way, this process ends.
- No child of the application inherits a socket of the worker's, or the server would never see its
  end of file.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import platform
import signal
import socket
import sys
import traceback
from types import TracebackType
from typing import Any, Callable, Dict, List, Optional

from . import django_static, entry, forks, template, thread_stacks, threads, wire
from .hooks import BOOT, STARTING, WORKER_END, WORKER_START, Hooks, Worker
from .options import parse
from .slot_threads import SlotThreads
from .template import Sockets


class BootFailed(Exception):
    """The server has been told why; the process ends with 1."""


def main(arguments: List[str]) -> int:
    """Runs a process to its end; returns the exit code."""
    options = parse(arguments)
    options.server_pid = options.server_pid or os.getppid()
    sys.argv[:] = ["penstock-worker"]
    forks.ignore_interrupts()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True, errors="backslashreplace")
    thread_stacks.install()
    streams = template.standard_streams()
    control = wire.adopt_socket(options.control_fd)
    sockets = Sockets(
        [wire.adopt_socket(fd) for fd in options.slot_fds],
        [wire.adopt_socket(fd) for fd in options.spare_slot_fds],
        None if options.channel_fd is None else wire.adopt_socket(options.channel_fd),
        None if options.files_fd is None else wire.adopt_socket(options.files_fd),
    )
    forks.close_on_fork(control, *sockets.all())
    template.send_hello(control)
    hooks = Hooks(options.server_pid)
    worker = Worker(options.worker_number, os.getpid())
    hook_error: Optional[BaseException] = None
    try:
        app = _load_app(control, options, hooks)
        is_template = options.template
        while True:
            if is_template:
                options.template = True
                forks.load_prctl()
                _freeze_heap()
                _send_ready_to_fork(control, options)
                control, sockets, worker, hook_error = template.serve(
                    control, options.server_pid, streams, hooks
                )
                thread_stacks.install()
            if hook_error is not None:
                raise _report_boot_failure(control, hook_error)
            _run_start_hooks(control, hooks, worker)
            is_template = _serve_worker(control, sockets, app, options)
            if not is_template:
                hooks.run_anyway(WORKER_END, worker)
                return 0
    except BootFailed:
        return 1


def boot_traceback(error: BaseException) -> str:
    """The traceback without the frames that are not the application's."""
    trace = error.__traceback__
    while trace is not None and _is_worker_frame(trace):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace))


def _is_worker_frame(trace: TracebackType) -> bool:
    file = trace.tb_frame.f_code.co_filename
    return (
        os.path.dirname(file) in (_WORKER_DIR, os.path.dirname(__file__))
        or file == importlib.__file__
        or file.startswith("<frozen importlib")
    )


def _load_app(
    control: socket.socket, options: argparse.Namespace, hooks: Hooks
) -> Callable[..., Any]:
    def load_hooks() -> None:
        if options.hooks is not None:
            hooks.load(options.hooks)
        hooks.run(STARTING)

    try:
        if options.reactor == "gevent":
            from . import gevent_reactor

            gevent_reactor.patch_stdlib()
        app, options.interface = entry.load(
            options.entry, options.dir, options.interface, options.interface_is_guess, load_hooks
        )
        app = django_static.wrap(app, options.interface)
        hooks.run(BOOT)
    # Also SystemExit: a module that exits while it is imported has not booted.
    except BaseException as error:
        forks.exit_if_forked_by_app(error)
        raise _report_boot_failure(control, error) from None
    forks.exit_if_forked_by_app()
    return app


def _run_start_hooks(control: socket.socket, hooks: Hooks, worker: Worker) -> None:
    try:
        hooks.run(WORKER_START, worker)
    except BaseException as error:
        forks.exit_if_forked_by_app(error)
        raise _report_boot_failure(control, error) from None
    forks.exit_if_forked_by_app()


def _serve_worker(
    control: socket.socket,
    sockets: Sockets,
    app: Callable[..., Any],
    options: argparse.Namespace,
) -> bool:
    """Serves until the server has had enough. True when this process is to be a template now."""
    sockets.close_unused(options.interface == "asgi" or options.reactor == "gevent")
    if options.interface == "asgi":
        from . import asgi

        runner = asgi.AsgiRunner(app, options)
        try:
            runner.start()
        except BaseException as error:
            raise _report_boot_failure(control, error) from None
        _finish_boot(control, options)
        runner.serve(sockets.channel, sockets.files)
    elif options.reactor == "gevent":
        from . import gevent_reactor

        _finish_boot(control, options)
        gevent_reactor.serve(sockets.channel, sockets.files, app, options)
    else:
        may_become_template = options.template or options.may_become_template
        slot_threads = SlotThreads(control, sockets, app, options.gc_when_idle, may_become_template)
        _finish_boot(control, options)
        return slot_threads.run()
    return False


def _finish_boot(control: socket.socket, options: argparse.Namespace) -> None:
    if not options.template:
        _freeze_heap()
    _send_ready(control, options)


def _freeze_heap() -> None:
    """What is loaded now lives for ever: keeps it out of every later collection."""
    gc.collect()
    gc.freeze()


def _send_ready_to_fork(control: socket.socket, options: argparse.Namespace) -> None:
    prevents_fork = template.prevents_fork(options.ignore_threads)
    if prevents_fork is not None:
        _send_ready(control, options, {"prevents_fork": prevents_fork})
    else:
        others = threads.left_behind()
        _send_ready(control, options, {"leaves_threads": others} if others else {})


def _send_ready(
    control: socket.socket,
    options: argparse.Namespace,
    more: Optional[Dict[str, str]] = None,
) -> None:
    version = "3.0" if options.interface == "asgi" else "1.0"
    described = {
        "pid": os.getpid(),
        "interpreter": f"{platform.python_implementation()} {platform.python_version()}",
        "interface": f"{options.interface} {version}",
    }
    described.update(more or {})
    wire.send_control(control, wire.READY, json.dumps(described).encode())


def _report_boot_failure(control: socket.socket, error: BaseException) -> BootFailed:
    text = boot_traceback(error)
    wire.send_control(control, wire.BOOT_FAILED, text.encode("utf-8", "replace")[: 1 << 20])
    return BootFailed()


_WORKER_DIR = os.path.dirname(main.__code__.co_filename)
