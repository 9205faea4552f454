"""The command line of a process (PROTOCOL.md, "Starting a worker"). `boot` parses it first."""

from __future__ import annotations

import argparse
from typing import List


def parse(arguments: List[str]) -> argparse.Namespace:
    """The options by name; whatever the server did not say has its default."""
    parser = argparse.ArgumentParser(prog="penstock_worker")
    parser.add_argument("--control-fd", type=int, required=True)
    parser.add_argument("--slot-fds", type=_numbers, default=[])
    parser.add_argument("--spare-slot-fds", type=_numbers, default=[])
    parser.add_argument("--app", default="app")
    parser.add_argument("--dir", default=".")
    parser.add_argument("--entry", required=True)
    parser.add_argument("--hooks")
    parser.add_argument("--worker-number", type=int, default=0)
    parser.add_argument("--interface", choices=("wsgi", "asgi"), default="wsgi")
    parser.add_argument("--interface-is-guess", action="store_true")
    parser.add_argument("--template", action="store_true")
    parser.add_argument("--ignore-threads", action="store_true")
    parser.add_argument("--server-pid", type=int)
    parser.add_argument("--reactor", choices=("tasks", "gevent"))
    parser.add_argument("--channel-fd", type=int)
    parser.add_argument("--files-fd", type=int)
    parser.add_argument("--gc-when-idle", action="store_true")
    parser.add_argument("--may-become-template", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--stop-timeout", type=float, default=10.0)
    options = parser.parse_args(arguments)
    has_sockets = options.slot_fds or options.channel_fd is not None
    if not options.template and not has_sockets:
        parser.error("one of --template, --slot-fds, --channel-fd is needed")
    if (options.channel_fd is None) != (options.files_fd is None):
        parser.error("--channel-fd and --files-fd belong together")
    return options


def _numbers(text: str) -> List[int]:
    return [int(part) for part in text.split(",") if part]
