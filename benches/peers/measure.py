"""One server from start to end, and what its processes spend on a window of load.

`run` enters a `Running` server, calls `window` for each number of connections and leaves it, upon
which no process of it is left. The server's processes are those of its session and everything that
descends from it; their time is read from /proc before and after the window, children that ended in
between included. Server and wrk are pinned to a core each, which all their processes inherit.
What must stay true: nothing else of ours runs during a window, and a server that does not answer
as its scenario says is an error, not a figure.
"""

import http.client
import json
import os
import resource
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import astuple, dataclass
from pathlib import Path

from install import PEERS, command
from servers import Place

START_SECONDS = 20
STOP_SECONDS = 5
# Beside strangers the same request costs up to twice as much (cold caches, a starved wrk that sends
# less at once), so such a window is measured again, a few times.
DISTURBED = 0.05
ATTEMPTS = 3
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class ServerError(Exception):
    """A server that did not start, or did not answer as all of its scenario must."""


@dataclass(frozen=True)
class Cores:
    """Where the server runs and where the load comes from."""

    server: int
    load: int


@dataclass(frozen=True)
class Sample:
    """One window; `busy` is the server's part of its core, `others` strangers' of the cores used."""

    requests: int
    errors: int
    cpu_us: float
    per_second: float
    p99_ms: float
    busy: float
    others: float


@dataclass(frozen=True)
class Spent:
    """Seconds so far, or between two looks: of the clock, of our processes, of the cores used."""

    clock: float
    server: float
    load: float
    cores: float

    def __sub__(self, before):
        pairs = zip(astuple(self), astuple(before), strict=True)
        return Spent(*(now - then for now, then in pairs))

    @property
    def others(self):
        """What strangers took of our cores."""
        return max(0, self.cores - self.server - self.load)


class Running:
    """A server that answers; a context manager. `closes` tells that it keeps no connection."""

    def __init__(self, server, scenario, penstock, cores):
        self._server, self._scenario = server, scenario
        self._penstock, self._cores = penstock, cores

    def __enter__(self):
        self._temporary = tempfile.TemporaryDirectory(prefix="penstock-peers-")
        self._process = None
        try:
            self._start(Path(self._temporary.name))
            self.closes = self._until_it_answers()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, kind, error, trace):
        self._stop()

    def _start(self, folder):
        self._place = Place(folder, free_port(), self._penstock)
        self._log = folder / "log"
        self._process = subprocess.Popen(
            pinned(self._cores.server, self._server.start(self._place)),
            stdin=subprocess.DEVNULL,
            stdout=self._log.open("wb"),
            stderr=subprocess.STDOUT,
            cwd=self._scenario.folder or folder,
            env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"} | self._scenario.env,
            start_new_session=True,
        )

    def _until_it_answers(self):
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                return self._ask()
            except (OSError, http.client.HTTPException) as error:
                if self._process.poll() is not None:
                    why = f"it exited with {self._process.returncode}"
                elif time.monotonic() > deadline:
                    why = f"not ready within {START_SECONDS} s: {error}"
                else:
                    time.sleep(0.05)
                    continue
            raise ServerError(f"{why}\n{self._log.read_text(errors='replace')[-2000:]}")

    def _ask(self):
        """Whether the server closes the connection; an error unless it sent what it must."""
        connection = http.client.HTTPConnection("127.0.0.1", self._place.port, timeout=5)
        try:
            connection.request("GET", self._scenario.path)
            answer = connection.getresponse()
            body = answer.read()
            # Applications may still be loading behind a front end that answers already.
            if answer.status == 503:
                raise ConnectionError("503")
            if answer.status != 200 or body != self._scenario.body:
                raise ServerError(f"it answers {answer.status} with {body[:200]!r}")
            return answer.will_close
        finally:
            connection.close()

    def window(self, connections, warm_up, seconds):
        """The Sample of a window after a warm-up of the same kind; the calmest of a few if need be."""
        samples = []
        while len(samples) < ATTEMPTS and all(sample.others > DISTURBED for sample in samples):
            self._load(connections, warm_up)
            samples.append(self._measured(connections, seconds))
        return min(samples, key=lambda sample: sample.others)

    def _measured(self, connections, seconds):
        spent = self._spent()
        found = self._load(connections, seconds)
        spent = self._spent() - spent
        if self._process.poll() is not None:
            raise ServerError("it ended under load")
        if found["requests"] == 0:
            raise ServerError("it answered nothing under load")
        return Sample(
            requests=found["requests"],
            errors=found["errors"],
            cpu_us=spent.server * 1_000_000 / found["requests"],
            per_second=found["requests"] * 1_000_000 / found["duration_us"],
            p99_ms=found["p99_us"] / 1000,
            busy=spent.server / spent.clock,
            others=spent.others / spent.clock,
        )

    def _load(self, connections, seconds):
        url = f"http://{self._place.address}{self._scenario.path}"
        return wrk(self._cores.load, url, connections, seconds)

    def _spent(self):
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return Spent(
            clock=time.monotonic(),
            server=seconds_of_session(self._process.pid),
            load=children.ru_utime + children.ru_stime,
            cores=sum(map(seconds_of_core, {self._cores.server, self._cores.load})),
        )

    def _stop(self):
        try:
            if self._process is not None:
                stop(self._process)
        finally:
            self._temporary.cleanup()


def stop(process):
    """Ends a server and all that descends from it: asked first, then killed."""
    # Looked up before the root ends: what left its session is found through its parents only.
    known = session(process_table(), process.pid)
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        pass
    for pid in session(process_table(), process.pid) | (known & set(process_table())):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def pinned(core, arguments):
    return [str(part) for part in [command("taskset"), "-c", core, *arguments]]


def wrk(core, url, connections, seconds):
    options = ["-t", "1", "-c", connections, "-d", f"{seconds}s", "--latency"]
    load = pinned(core, [command("wrk"), *options, "-s", PEERS / "result.lua", url])
    done = subprocess.run(load, capture_output=True, text=True, check=False)
    if done.returncode != 0 or not done.stdout.strip():
        raise ServerError(f"wrk failed: {done.stderr.strip()}")
    return json.loads(done.stdout.strip().splitlines()[-1])


@dataclass(frozen=True)
class Stat:
    """The fields of /proc/PID/stat that count here; proc(5)."""

    parent: int
    session: int
    ticks: int

    @classmethod
    def parse(cls, text):
        # The name before the last parenthesis may hold anything, spaces and parentheses included.
        fields = text.rpartition(")")[2].split()
        # utime, stime, and those of children that ended and were waited for.
        return cls(int(fields[1]), int(fields[3]), sum(int(field) for field in fields[11:15]))


def process_table():
    table = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            table[int(folder.name)] = Stat.parse((folder / "stat").read_text())
        except (OSError, IndexError):
            continue  # It ended while we looked.
    return table


def session(table, root):
    """The processes of the session that `root` leads, and their descendants elsewhere."""
    found = {pid for pid, stat in table.items() if stat.session == root or pid == root}
    while more := {pid for pid, stat in table.items() if stat.parent in found} - found:
        found |= more
    return found


def seconds_of_session(root):
    table = process_table()
    return sum(table[pid].ticks for pid in session(table, root) if pid in table) / TICKS_PER_SECOND


def seconds_of_core(core):
    """What a core has worked, interrupts included: the kernel counts them to who is interrupted."""
    for line in Path("/proc/stat").read_text().splitlines():
        name, *fields = line.split()
        if name == f"cpu{core}":
            user, nice, system, _idle, _iowait, irq, softirq = (int(one) for one in fields[:7])
            return (user + nice + system + irq + softirq) / TICKS_PER_SECOND
    raise ServerError(f"/proc/stat knows no core {core}")
