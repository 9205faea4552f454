"""The hooks of an application: functions of a file that are called around boot and forks.

`boot` loads the file (`--hooks`) before the application and calls `run` at each event; `template`
calls it around a fork. Names are those of Penstock, Puma, Gunicorn and Unicorn, so that a
`gunicorn.conf.py` may be the file: its settings are not read.

# Invariants
- Functions of one event run in the order of `_HOOKS`.
- A function gets as many of its arguments as it takes.
- What a hook raises before a worker is ready ends the boot; afterwards it is only written down.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
import types
from typing import Any, Callable, Dict, List, Optional, Tuple

from .tracebacks import write_error

STARTING = "starting"
BOOT = "boot"
BEFORE_FORK = "before_fork"
AFTER_FORK_IN_TEMPLATE = "after_fork_in_template"
WORKER_START = "worker_start"
WORKER_END = "worker_end"

# Name, event, and the arguments. A function of Puma's that takes one gets the worker's number, one
# of Penstock's the worker; one that takes two is written for Unicorn or Gunicorn.
_HOOKS: Tuple[Tuple[str, str, Tuple[str, ...]], ...] = (
    ("on_starting", STARTING, ("server",)),
    ("on_boot", BOOT, ()),
    ("on_booted", BOOT, ()),
    ("after_booted", BOOT, ()),
    ("when_ready", BOOT, ("server",)),
    ("before_fork", BEFORE_FORK, ("worker",)),
    ("before_worker_fork", BEFORE_FORK, ("index",)),
    ("on_worker_fork", BEFORE_FORK, ("index",)),
    ("pre_fork", BEFORE_FORK, ("server", "worker")),
    ("after_worker_fork", AFTER_FORK_IN_TEMPLATE, ("index",)),
    ("after_fork", WORKER_START, ("worker",)),
    ("post_fork", WORKER_START, ("server", "worker")),
    ("before_worker_boot", WORKER_START, ("index",)),
    ("on_worker_boot", WORKER_START, ("index",)),
    ("post_worker_init", WORKER_START, ("worker",)),
    ("before_worker_shutdown", WORKER_END, ("index",)),
    ("on_worker_shutdown", WORKER_END, ("index",)),
    ("worker_exit", WORKER_END, ("server", "worker")),
)

# Hooks of the other servers for events that do not exist here.
_NEVER_CALLED = (
    "before_refork",
    "after_refork",
    "on_refork",
    "on_restart",
    "before_restart",
    "on_stopped",
    "after_stopped",
    "on_thread_start",
    "before_thread_start",
    "on_thread_exit",
    "before_thread_exit",
    "on_reload",
    "worker_int",
    "worker_abort",
    "pre_exec",
    "pre_request",
    "post_request",
    "child_exit",
    "nworkers_changed",
    "on_exit",
    "before_exec",
    "after_worker_exit",
    "after_worker_ready",
)


class Log:
    """Writes lines to the application's output, with the methods of Gunicorn's log."""

    def critical(self, message: Any, *values: Any, **_options: Any) -> None:
        """Writes a line. `%` in the message takes the values, if there are any."""
        write_error(f"{message % values if values else message}\n")

    debug = info = warning = error = critical

    def exception(self, message: Any, *values: Any, **_options: Any) -> None:
        """Writes a line, and the traceback of the exception that is being handled."""
        import traceback

        self.critical(message, *values)
        write_error(traceback.format_exc())


class Server:
    """What a hook gets for Gunicorn's arbiter: `pid` of the server, and `log`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.log = Log()


class Worker:
    """A worker: `pid`, `None` before its fork; `age`, its number, which counts up from the first
    worker of the application and is not used again; `index`, the same; `log`."""

    def __init__(self, age: int, pid: Optional[int]) -> None:
        self.age = age
        self.pid = pid
        self.log = Log()

    @property
    def index(self) -> int:
        """Its number."""
        return self.age


class Hooks:
    """The functions of a file, by their events."""

    def __init__(self, server_pid: int) -> None:
        self._server = Server(server_pid)
        self._functions: Dict[str, List[Tuple[Callable[..., Any], Tuple[str, ...]]]] = {}

    def load(self, path: str) -> None:
        """Runs the file. Raises what it raises, and TypeError when it has no hook."""
        module = types.ModuleType("penstock_hooks")
        module.__file__ = path
        with open(path, "rb") as file:
            code = compile(file.read(), path, "exec", dont_inherit=True)
        # Classes and functions of the file find their module by its name.
        sys.modules[module.__name__] = module
        exec(code, module.__dict__)
        never = [name for name in _NEVER_CALLED if callable(getattr(module, name, None))]
        if never:
            write_error(f"{os.path.basename(path)}: never called by Penstock: {', '.join(never)}\n")
        for name, event, arguments in _HOOKS:
            function = getattr(module, name, None)
            if callable(function):
                self._functions.setdefault(event, []).append((function, arguments))
        if not self._functions and not never:
            names = ", ".join(name for name, _, _ in _HOOKS)
            raise TypeError(f"{path} has no hook: define one of {names}")

    def run(self, event: str, worker: Optional[Worker] = None) -> None:
        """Calls the functions of an event. Raises what the first of them raises."""
        for function, names in self._functions.get(event, ()):
            given = {"server": self._server, "worker": worker, "index": worker and worker.index}
            count = _parameter_count(function)
            if count >= 2:
                names = ("server", "worker")
            function(*[given[name] for name in names][:count])

    def run_anyway(self, event: str, worker: Worker) -> None:
        """As `run`, but an exception is written down."""
        try:
            self.run(event, worker)
        except BaseException as error:
            from .tracebacks import format_app_traceback

            # The application may have closed its standard error.
            with contextlib.suppress(BaseException):
                write_error(f"error in a hook of {event}\n{format_app_traceback(error)}")


def _parameter_count(function: Callable[..., Any]) -> int:
    """How many arguments it takes by position: at most two count."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 2
    if any(it.kind is it.VAR_POSITIONAL for it in parameters):
        return 2
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [it for it in parameters if it.kind in by_position and it.default is it.empty]
    return len(required)
