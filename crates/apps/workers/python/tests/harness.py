"""Plays the server for the tests: starts real worker processes over socket pairs and reads frames.

Every test module uses `Worker`; `encode_environ` writes the same marshal form as `crates/wire`,
which the vectors check. Waiting is always a blocking read with a deadline, never a sleep.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

ROOT = Path(__file__).resolve().parents[1]
VECTORS = ROOT.parents[2] / "wire" / "vectors"
sys.path.insert(0, str(ROOT))

from penstock_worker import wire  # noqa: E402

DEADLINE = 20.0


def wait_for(condition: Callable[[], Any], what: str) -> None:
    """Waits until `condition` holds, at most DEADLINE seconds."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        os.sched_yield()


ENVIRON = {
    "REQUEST_METHOD": "GET",
    "SCRIPT_NAME": "",
    "PATH_INFO": "/",
    "QUERY_STRING": "",
    "SERVER_NAME": "example.com",
    "SERVER_PORT": "80",
    "SERVER_PROTOCOL": "HTTP/1.1",
    "REMOTE_ADDR": "127.0.0.1",
    "REMOTE_PORT": "40000",
    "HTTP_HOST": "example.com",
    "HTTP_USER_AGENT": "test/1.0",
    "HTTP_ACCEPT": "*/*",
    "wsgi.url_scheme": "http",
}


def encode_text(text: str) -> bytes:
    if text.isascii():
        raw = text.encode()
        if len(raw) < 256:
            return b"z" + bytes([len(raw)]) + raw
        return b"a" + struct.pack("<I", len(raw)) + raw
    raw = text.encode()
    return b"u" + struct.pack("<I", len(raw)) + raw


def encode_environ(environ: Dict[str, Any]) -> bytes:
    """Encodes the dictionary as `environ.rs` does for Python."""
    out = [b"{"]
    for key, value in environ.items():
        out.append(encode_text(key))
        if isinstance(value, bool):
            out.append(b"T" if value else b"F")
        elif isinstance(value, int):
            out.append(b"i" + struct.pack("<i", value))
        else:
            out.append(encode_text(value))
    return b"".join(out) + b"0"


def request(body: bytes = b"", has_file: bool = False, **environ: Any) -> bytes:
    """Returns a REQUEST frame; keyword arguments change the environ, None removes a key."""
    merged = {**ENVIRON, **environ}
    if body:
        merged.setdefault("CONTENT_LENGTH", str(len(body)))
    encoded = encode_environ({k: v for k, v in merged.items() if v is not None})
    length = 4 + len(encoded) + len(body)
    header = struct.pack("<BBHII", wire.REQUEST, int(has_file), 0, length, len(encoded))
    return header + encoded + body


def cancel(seq: int) -> bytes:
    return struct.pack("<BBHII", wire.CANCEL, 0, 0, 4, seq)


class Frame(NamedTuple):
    kind: int
    flags: int
    count: int
    payload: bytes
    fds: Tuple[int, ...]


class Reply(NamedTuple):
    """A whole response; `frames` are the kinds of its frames."""

    status: Optional[str]
    headers: List[Tuple[str, str]]
    body: bytes
    frames: List[int]
    reason: Optional[str] = None
    flags: int = 0

    def header(self, name: str) -> Optional[str]:
        return dict((n.lower(), v) for n, v in self.headers).get(name.lower())


class Peer:
    """The server's end of one socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.sock.settimeout(DEADLINE)
        self.data = b""
        self.fds: List[int] = []
        self.requests = 0

    def send(self, data: bytes) -> None:
        """Sends whole frames and counts the requests among them."""
        at = 0
        while at + 8 <= len(data):
            self.requests += data[at] == wire.REQUEST
            at += 8 + struct.unpack_from("<I", data, at + 4)[0]
        self.sock.sendall(data)

    def send_fd(self, fd: int) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
        self.sock.sendmsg([b"f"], rights)

    def take(self, size: int) -> bytes:
        while len(self.data) < size:
            if not self._receive():
                raise EOFError(f"end of file, {self.data!r} left over")
        taken, self.data = self.data[:size], self.data[size:]
        return taken

    def _receive(self) -> bool:
        data, ancillary, _, _ = self.sock.recvmsg(1 << 16, socket.CMSG_SPACE(64))
        for _level, _kind, payload in ancillary:
            fds = array.array("i")
            fds.frombytes(payload)
            self.fds += fds
        self.data += data
        return bool(data)

    def frame(self) -> Frame:
        kind, flags, count, length = struct.unpack("<BBHI", self.take(8))
        payload = self.take(length)
        fds: Tuple[int, ...] = ()
        if kind in (wire.FILE, wire.HIJACK):
            fds = (self.fds.pop(0),)
        return Frame(kind, flags, count, payload, fds)

    def is_closed(self) -> bool:
        """Waits until the worker closes this socket; returns False if it sends something instead."""
        return not self.data and not self._receive()

    def reply(self) -> Reply:
        frame = self.frame()
        if frame.kind == wire.FAILED:
            return Reply(None, [], b"", [frame.kind], frame.payload.decode(), frame.flags)
        assert frame.kind == wire.HEAD, frame
        head_len = struct.unpack_from("<I", frame.payload, 4)[0]
        strings = frame.payload[8 : 8 + head_len].decode("latin-1").split("\0")
        assert len(strings) == frame.count, strings
        body = frame.payload[8 + head_len :]
        headers = list(zip(strings[1::2], strings[2::2]))
        kinds, reason = [frame.kind], None
        is_over = frame.flags == wire.FLAG_END
        while not is_over:
            frame = self.frame()
            kinds.append(frame.kind)
            if frame.kind == wire.ABORT:
                reason, is_over = frame.payload.decode(), True
                continue
            body += self._file_part(frame) if frame.kind == wire.FILE else frame.payload
            is_over = bool(frame.flags & wire.FLAG_END)
        return Reply(strings[0], headers, body, kinds, reason)

    @staticmethod
    def _file_part(frame: Frame) -> bytes:
        offset, length = struct.unpack("<QQ", frame.payload)
        with open(frame.fds[0], "rb") as file:
            file.seek(offset)
            return file.read() if length == wire.UNTIL_END else file.read(length)


class Worker:
    """A real worker process that serves `source` as module `app`."""

    def __init__(
        self,
        source: str,
        entry: str = "app:application",
        slots: int = 1,
        command: Optional[List[str]] = None,
        more_fds: Sequence[int] = (),
        spares: int = 0,
        options: Sequence[str] = (),
    ) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="penstock-test-")
        Path(self.folder.name, "app.py").write_text(source)
        pairs = [socket.socketpair() for _ in range(slots + spares + 1)]
        fds = [str(theirs.fileno()) for _, theirs in pairs]
        peers = [Peer(ours) for ours, _ in pairs]
        self.control, self.slots, self.spares = peers[0], peers[1 : slots + 1], peers[slots + 1 :]
        self.stderr = tempfile.TemporaryFile()
        given = ["--control-fd", fds[0], "--slot-fds", ",".join(fds[1 : slots + 1])]
        given += ["--spare-slot-fds", ",".join(fds[slots + 1 :]), *options]
        given += ["--dir", self.folder.name, "--entry", entry]
        self.process = subprocess.Popen(
            (command or [sys.executable, "-m", "penstock_worker"]) + given,
            pass_fds=[*map(int, fds), *more_fds],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=self.stderr,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        )
        for _, theirs in pairs:
            theirs.close()

    def __enter__(self) -> Worker:
        hello = self.control.frame()
        assert (hello.kind, hello.payload) == (
            wire.HELLO,
            struct.pack("<I", wire.PROTOCOL_VERSION),
        ), hello
        return self

    def __exit__(self, *_: object) -> None:
        for peer in [self.control, *self.slots, *self.spares]:
            peer.sock.close()
        try:
            self.process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            self.stderr.close()
            self.folder.cleanup()

    def ready(self) -> Worker:
        frame = self.control.frame()
        assert frame.kind == wire.READY, frame.payload.decode()
        return self

    def ask(self, data: bytes, slot: int = 0) -> Reply:
        self.slots[slot].send(data)
        return self.slots[slot].reply()

    def log(self) -> str:
        """Returns what the worker has written to standard error."""
        size = os.fstat(self.stderr.fileno()).st_size
        return os.pread(self.stderr.fileno(), size, 0).decode()


class Template(Worker):
    """A real template process; `fork` makes workers from it."""

    def __init__(self, source: str, options: Sequence[str] = (), **rest: Any) -> None:
        # Its workers become children of this process, as they become the server's.
        assert ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
        options = ["--template", "--server-pid", str(os.getpid()), *options]
        super().__init__(source, slots=0, options=options, **rest)
        self.described: Dict[str, Any] = {}

    def ready(self) -> Template:
        frame = self.control.frame()
        assert frame.kind == wire.READY, frame.payload.decode()
        self.described = json.loads(frame.payload)
        return self

    def fork(self, slots: int = 1, spares: int = 0) -> Forked:
        return Forked(self.control, slots, spares)


class Forked:
    """The server's side of a worker forked from a template, up to its HELLO."""

    def __init__(self, template: Peer, slots: int, spares: int) -> None:
        self.template = template
        pairs = [socket.socketpair() for _ in range(slots + spares + 1)]
        peers = [Peer(ours) for ours, _ in pairs]
        self.control, self.slots, self.spares = peers[0], peers[1 : slots + 1], peers[slots + 1 :]
        self.theirs = [theirs for _, theirs in pairs]
        self.kinds = b"s" * slots + b"i" * spares
        self.stdout = tempfile.TemporaryFile()
        self.stderr = tempfile.TemporaryFile()
        self.pid = 0
        self.status: Optional[int] = None
        fds = [self.theirs.pop(0), self.stdout, self.stderr]
        frame = struct.pack("<BBHIQ", wire.FORK, 0, 0, 8, 7)
        send_with_fds(template, frame, [file.fileno() for file in fds])
        fds[0].close()

    def __enter__(self) -> Forked:
        return self

    def ready(self, at_once: int = 64) -> Forked:
        """Sends its sockets, `at_once` with a frame, and waits for its READY."""
        frame = self.boot(at_once)
        assert frame.kind == wire.READY, frame.payload.decode()
        self.pid = json.loads(frame.payload)["pid"]
        return self

    def dismiss(self) -> Forked:
        """Has it end: no request will come, and it will not become a template."""
        for slot in self.slots:
            slot.sock.close()
        self.control.sock.sendall(struct.pack("<BBHI", wire.DISMISS, 0, 0, 0))
        return self

    def boot(self, at_once: int = 64) -> Frame:
        """Sends its sockets, `at_once` with a frame; returns what it answers: READY, or why not."""
        hello = self.control.frame()
        assert (hello.kind, hello.payload) == (
            wire.HELLO,
            struct.pack("<I", wire.PROTOCOL_VERSION),
        ), hello
        fds = [sock.fileno() for sock in self.theirs]
        for at in range(0, len(fds), at_once):
            kinds = self.kinds[at : at + at_once]
            flags = wire.FLAG_END if at + at_once >= len(fds) else 0
            frame = struct.pack("<BBHI", wire.SLOTS, flags, 0, len(kinds)) + kinds
            send_with_fds(self.control, frame, fds[at : at + at_once])
        for sock in self.theirs:
            sock.close()
        return self.control.frame()

    def ask(self, data: bytes, slot: int = 0) -> Reply:
        self.slots[slot].send(data)
        return self.slots[slot].reply()

    def log(self) -> str:
        size = os.fstat(self.stderr.fileno()).st_size
        return os.pread(self.stderr.fileno(), size, 0).decode()

    def wait(self) -> int:
        """Waits for the end; returns the exit code, or the negative number of the signal."""
        if self.status is None:
            with alarm(DEADLINE):
                self.status = os.waitpid(self.pid, 0)[1]
        status = self.status
        return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)

    def close(self) -> None:
        for sock in [*self.theirs, *(p.sock for p in [self.control, *self.slots, *self.spares])]:
            sock.close()

    def __exit__(self, *_: object) -> None:
        self.close()
        try:
            if self.pid:
                self.wait()
        except TimeoutError:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            raise
        finally:
            self.stdout.close()
            self.stderr.close()


@contextlib.contextmanager
def alarm(seconds: float) -> Any:
    """Raises TimeoutError in code that blocks longer."""

    def ring(_number: int, _frame: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def send_with_fds(peer: Peer, data: bytes, fds: Sequence[int]) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
    sent = peer.sock.sendmsg([data], rights)
    assert sent == len(data), sent


_PR_SET_CHILD_SUBREAPER = 36
