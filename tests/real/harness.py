"""What all these tests share: the real server as a child process, and one HTTP request.

A test starts `penstock serve` on free ports, reads the printed lines until the server reports that
it is ready, talks to it as a client would and ends it with SIGTERM. The server must then exit with
0 and leave no process behind. The whole process group is killed in the end in any case, also when a
signal ends the test. Nothing sleeps for a guessed time: `until` polls in short steps until a
deadline.
"""

import atexit
import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
BIN = os.environ.get("PENSTOCK_BIN") or ROOT / "target" / "debug" / "penstock"

READY_SECONDS = 30
STOP_SECONDS = 20


# The configuration of an nginx in the foreground, with its files in `home`.
NGINX = """\
daemon off;
worker_processes 1;
pid {home}/nginx.pid;
error_log stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path {home}/body;
    proxy_temp_path {home}/proxy;
    fastcgi_temp_path {home}/fastcgi;
    uwsgi_temp_path {home}/uwsgi;
    scgi_temp_path {home}/scgi;
{settings}
}}
"""


def until(what, condition, seconds):
    """Returns the first true result of `condition`; fails with `what` after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.02)


def group_members(group):
    """Returns the running processes of a group (a zombie does not count)."""
    members = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, process_group = stat.read_text().rpartition(")")[2].split()[:3]
        except (OSError, ValueError):
            continue
        if int(process_group) == group and state != "Z":
            members.append(int(stat.parent.name))
    return members


def interrupt(_number, _frame):
    """Ends the run: an interruption is not a failed test after which the next one starts."""
    raise KeyboardInterrupt


signal.signal(signal.SIGTERM, interrupt)


class Child:
    """A child process in its own group; its output is read line by line."""

    def __init__(self, command, env=None, cwd=None):
        self.lines = []
        self._process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=os.environ | (env or {}),
            cwd=cwd,
            start_new_session=True,
            text=True,
            errors="replace",
        )
        # unittest does not clean up after an interruption.
        atexit.register(self.kill)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self):
        return self._process.pid

    def exit_code(self):
        """Returns the exit code; None while the process runs."""
        return self._process.poll()

    def exited(self):
        """Returns the exit code in a tuple once the process has ended and its output is read."""
        if self._process.poll() is None:
            return None
        self._reader.join(1)
        return (self._process.returncode,)

    def _read(self):
        for line in self._process.stdout:
            self.lines.append(line.rstrip("\n"))

    def wait_for(self, pattern, seconds):
        """Returns the match of the first line like `pattern`; fails if the process ends early."""

        def look():
            # Checked before the lines are read, so that the last lines are not missed.
            ended = self._process.poll() is not None
            if ended:
                self._reader.join(1)
            for line in self.lines:
                if match := re.search(pattern, line):
                    return match
            if ended:
                raise AssertionError(f"exited with {self._process.returncode} before `{pattern}`")

        return until(f"a line like `{pattern}`", look, seconds)

    def terminate(self, seconds):
        """Sends SIGTERM and returns the exit code; fails if the process or a child of it stays."""
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running {seconds} s after SIGTERM") from None
        until("no process left behind", lambda: not group_members(self._process.pid), 5)
        return code

    def kill(self):
        """Kills the rest of the group; harmless when there is none."""
        atexit.unregister(self.kill)
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._process.wait()
        # The pipe ends with its last writer, and all of them have just been killed.
        self._reader.join(5)
        self._process.stdout.close()


class Response:
    """A whole response: `status`, `headers` (names in any case), `body`, and the body as `text`."""

    def __init__(self, response):
        self.status = response.status
        self.headers = response.headers
        self.body = response.read()

    @property
    def text(self):
        return self.body.decode()


class ControlConnection(http.client.HTTPConnection):
    """An HTTP connection to a server's control socket."""

    def __init__(self, path):
        super().__init__("localhost", timeout=20)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Server:
    """`penstock serve`, from its ready line to its clean exit; a context manager."""

    # Of its listener.
    scheme = "http"

    def __init__(self, *target, env=None, cwd=None, app=True, seconds=READY_SECONDS):
        self.command = [BIN, "serve", *target, "-l", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
        self.env = env
        self.cwd = cwd
        self.app = app
        self.seconds = seconds
        self.port = None

    def __enter__(self):
        self._child = Child(self.command, self.env, self.cwd)
        try:
            line = rf"^listening {self.scheme}://127\.0\.0\.1:(\d+)"
            found = self._child.wait_for(line, self.seconds)
            self.port = int(found[1])
            if self.app:
                self._child.wait_for(r"^app \S+: .*ready in ", self.seconds)
        except BaseException:
            self._child.kill()
            self.print_output()
            raise
        self._connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        return self

    def __exit__(self, kind, error, trace):
        self._connection.close()
        try:
            code = self._child.terminate(STOP_SECONDS)
            if code != 0:
                raise AssertionError(f"exited with {code} after SIGTERM")
        except AssertionError:
            self.print_output()
            raise
        finally:
            self._child.kill()

    @property
    def url(self):
        return f"{self.scheme}://127.0.0.1:{self.port}"

    def change(self, path, body=""):
        """Requests a change over the control socket; returns the status and the text."""
        control = self._child.wait_for(r"^control unix:(.+)$", self.seconds)[1]
        connection = ControlConnection(control)
        try:
            connection.request("POST", path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    @property
    def lines(self):
        """Returns the lines printed and logged so far."""
        return list(self._child.lines)

    def memory(self):
        """Returns the server process' own memory by kind in bytes: resident, and anonymous."""
        rollup = Path(f"/proc/{self._child.pid}/smaps_rollup").read_text()
        lines = (line.split() for line in rollup.splitlines()[1:])
        sizes = {line[0].rstrip(":"): int(line[1]) * 1024 for line in lines}
        return {kind: sizes[kind] for kind in ("Rss", "Anonymous")}

    def memory_peak(self):
        """Returns the server process' peak resident memory in bytes."""
        status = Path(f"/proc/{self._child.pid}/status").read_text()
        return int(re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)[1]) * 1024

    def request(self, method, target, body=None, headers=None):
        """Makes one request on a keep-alive connection."""
        self._connection.request(method, target, body, headers or {})
        return Response(self._connection.getresponse())

    def get(self, target, headers=None):
        return self.request("GET", target, headers=headers)

    def close_connection(self):
        """Closes the connection, so that the next request opens a new one."""
        self._connection.close()

    def print_output(self):
        print("--- output of", *self.command, file=sys.stderr)
        print("\n".join(self._child.lines[-200:]), "\n---", file=sys.stderr)


class RealCase(unittest.TestCase):
    """A test with real programs; a failure shows the server's output."""

    server = None

    def run(self, result=None):
        before = len(result.failures) + len(result.errors)
        super().run(result)
        if len(result.failures) + len(result.errors) > before and self.server:
            self.server.print_output()

    @classmethod
    def folder(cls):
        """Returns a new directory that is removed after the tests of the class."""
        return Path(cls.enterClassContext(tempfile.TemporaryDirectory(prefix="penstock-real-")))
