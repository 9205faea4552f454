#!/usr/bin/env python3
"""Counts what one application request costs: instructions in user code (callgrind) and system calls
(strace), of the front end and of the worker, for bare applications and for frameworks.

    benches/instructions/count.py [NAME...]      all: some 15 minutes

Counts hardly depend on the machine, so that a change of some per cent shows where times do not. It
measures PENSTOCK_BIN, or the binary of `make release`; one worker process with one thread, one event
loop, connections that are kept. 1 connection is one request at a time, 16 are requests that wait for
the worker together. What the kernel does is not counted.

`docs/results/instructions.txt` has the table of the last release.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SETUP = ROOT / "benches/scenarios/setup"
CACHE = Path(os.environ.get("PENSTOCK_BENCH_CACHE", ROOT / "target/bench"))
CONNECTIONS = (1, 16)
PATIENCE_SECONDS = 120
# Under valgrind a request takes some fifty times as long.
REQUESTS = 300
WARM_UP = 100


class Application(NamedTuple):
    """A bare application, or one view of a framework."""

    folder: Path
    kind: str
    entry: str


APPS = HERE / "apps"
APPLICATIONS = {
    "wsgi hello": Application(ROOT / "examples/wsgi-hello", "wsgi", "app:application"),
    "asgi hello": Application(ROOT / "examples/asgi-hello", "asgi", "main:application"),
    "rack hello": Application(ROOT / "examples/rack-hello", "rack", "config.ru"),
    "flask": Application(APPS, "wsgi", "flask_view:app"),
    "django": Application(APPS, "wsgi", "django_view:application"),
    "fastapi": Application(APPS, "asgi", "fastapi_view:app"),
    "sinatra": Application(APPS, "rack", "sinatra_view.ru"),
    "rails": Application(APPS, "rack", "rails_view.ru"),
}

CONFIG = """
[server]
listen = ["127.0.0.1:0"]
threads = 1
admin = "off"
access_log = "off"
control_socket = "off"
max_open_files = 1024

[apps.counted]
dir = "{folder}"
kind = "{kind}"
entry = "{entry}"
interpreter = "{interpreter}"
processes = 1
preload = false
isolation = false
boot_timeout = "120s"
response_timeout = "120s"
"""


def main(names):
    unknown = [name for name in names if name not in APPLICATIONS]
    if unknown:
        sys.exit(f"count: unknown: {', '.join(unknown)}; there are {', '.join(APPLICATIONS)}")
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    binary = Path(os.environ.get("PENSTOCK_BIN", target / "trained/penstock")).resolve()
    if not binary.is_file():
        sys.exit(f"count: {binary} is missing: make release")
    prepare()
    print(run(binary, "-V").strip())
    print(
        f"{'':12} {'':>11} | {'front end':>19} | {'worker':>19}\n{'application':12} "
        f"{'connections':>11} | {'instructions':>12} {'calls':>6} | {'instructions':>12} "
        f"{'calls':>6}"
    )
    for name in names or APPLICATIONS:
        app = APPLICATIONS[name]
        counted = {
            role: dict(zip(CONNECTIONS, instructions(binary, app, role), strict=True))
            for role in ("server", "worker")
        }
        calls = system_calls(binary, app)
        for connections in CONNECTIONS:
            columns = [
                f"{counted[role][connections]:12,.0f} {calls[role][connections]:6.2f}"
                for role in ("server", "worker")
            ]
            print(f"{name:12} {connections:>11} | {' | '.join(columns)}", flush=True)


def prepare():
    """Installs what is missing."""
    packages = ["valgrind", "strace", "ruby", "ruby-rack", "ruby-sinatra", "ruby-rails"]
    subprocess.run([SETUP, "debian", *packages, "ruby-sqlite3"], check=True)
    subprocess.run([SETUP, "venv", CACHE / "instructions", HERE / "requirements.txt"], check=True)


def run(*command, check=True):
    done = subprocess.run(command, capture_output=True, text=True, check=check, timeout=600)
    return done.stdout


@contextlib.contextmanager
def serving(binary, app, valgrind=None):
    """A server of the application, whose `valgrind` is `server`, `worker` or none: gives its URL and
    the processes of server and worker."""
    with tempfile.TemporaryDirectory(prefix="penstock-count-") as folder:
        folder = Path(folder)
        tool = ["valgrind", "--tool=callgrind", "--quiet", f"--callgrind-out-file={folder}/out"]
        interpreter = "/usr/bin/ruby" if app.kind == "rack" else CACHE / "instructions/bin/python"
        if valgrind == "worker":
            wrapper = folder / "interpreter"
            wrapper.write_text(f'#!/bin/sh\nexec {" ".join(tool)} {interpreter} "$@"\n')
            wrapper.chmod(0o755)
            interpreter = wrapper
        (folder / "penstock.toml").write_text(
            CONFIG.format(
                folder=app.folder, kind=app.kind, entry=app.entry, interpreter=interpreter
            )
        )
        command = [*(tool if valgrind == "server" else []), binary, "serve", "-c"]
        with open(folder / "log", "w+b") as log:
            server = subprocess.Popen(
                [*command, folder / "penstock.toml"],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                url = wait_for_text(folder / "log", r"listening (http://\S+)", server)
                wait_for_text(folder / "log", r"(ready) in", server)
                wait_for_answer(url)
                yield url, server.pid, worker_of(server.pid), folder
            finally:
                server.send_signal(signal.SIGTERM)
                try:
                    server.wait(PATIENCE_SECONDS)
                except subprocess.TimeoutExpired:
                    os.killpg(server.pid, signal.SIGKILL)
                    server.wait()


def wait_for_text(path, pattern, process):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        text = path.read_text(errors="replace")
        found = re.search(pattern, text)
        if found:
            return found[1]
        if process.poll() is not None:
            break
        time.sleep(0.05)
    sys.exit(f"count: no {pattern!r} in the output of the server:\n{text}")


def wait_for_answer(url):
    with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as answer:
        if answer.status != 200:
            sys.exit(f"count: {url}: {answer.status}")


def worker_of(server):
    """The only process below the server that was given a control socket."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != server:
            with contextlib.suppress(OSError):
                command = (entry / "cmdline").read_bytes()
                if is_below(int(entry.name), server) and b"--control-fd" in command:
                    found.append(int(entry.name))
    if len(found) != 1:
        sys.exit(f"count: {len(found)} processes are workers, not 1")
    return found[0]


def is_below(process, ancestor):
    while process > 1:
        stat = Path(f"/proc/{process}/stat").read_text()
        process = int(stat.rpartition(")")[2].split()[1])
        if process == ancestor:
            return True
    return False


def load(binary, url, connections, requests):
    report = run(binary, "bench", "run", "-c", str(connections), "-n", str(requests), url)
    if f"{requests}" not in report.replace(",", ""):
        sys.exit(f"count: the load did not end as it should:\n{report}")


def instructions(binary, app, role):
    """Instructions of one request, for each number of connections."""
    with serving(binary, app, role) as (url, server, worker, folder):
        process = server if role == "server" else worker
        for connections in CONNECTIONS:
            load(binary, url, connections, WARM_UP)
            run("callgrind_control", "--zero", str(process))
            load(binary, url, connections, REQUESTS)
            dumps = set(folder.glob("out*"))
            run("callgrind_control", "--dump", str(process))
            new = wait_for_dump(folder, dumps)
            yield sum_of(new) / REQUESTS


def wait_for_dump(folder, before):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        new = set(folder.glob("out*")) - before
        if new and all(sum_of(path) is not None for path in new):
            return new.pop()
        time.sleep(0.05)
    sys.exit("count: callgrind wrote nothing")


def sum_of(path):
    found = re.search(r"^(?:summary|totals): (\d+)", path.read_text(), re.MULTILINE)
    return int(found[1]) if found else None


def system_calls(binary, app):
    """System calls of one request: of the server and of the worker, by number of connections."""
    calls = {"server": {}, "worker": {}}
    requests = 2000
    with serving(binary, app) as (url, server, worker, folder):
        for connections in CONNECTIONS:
            load(binary, url, connections, WARM_UP)
            for role, process in (("server", server), ("worker", worker)):
                out = folder / "calls"
                tracer = subprocess.Popen(
                    ["strace", "-f", "-c", "-o", out, "-p", str(process)],
                    stderr=subprocess.PIPE,
                )
                tracer.stderr.readline()
                load(binary, url, connections, requests)
                tracer.send_signal(signal.SIGINT)
                tracer.wait(PATIENCE_SECONDS)
                total = re.search(r"^100\.00\s+\S+\s+\S*\s+(\d+).*total$", out.read_text(), re.M)
                calls[role][connections] = int(total[1]) / requests
    return calls


if __name__ == "__main__":
    main(sys.argv[1:])
