"""Plays the server for the tests of reactors: one channel, many streams at once.

`ReactorWorker` starts a real process as `harness.Worker` does; `open_frame` and its like encode the
server's frames. Frames are read in order, or sorted by stream with `read_until`.
"""

from __future__ import annotations

import array
import contextlib
import os
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

from harness import DEADLINE, ENVIRON, ROOT, Peer, encode_environ, encode_text

# isort: split
# Found by way of `harness`.
from penstock_worker import channel, wire

SCOPE = {
    "type": "http",
    "http_version": "1.1",
    "method": "GET",
    "scheme": "http",
    "path": "/",
    "raw_path": b"/",
    "query_string": b"",
    "root_path": "",
    "headers": [(b"host", b"example.com"), (b"user-agent", b"test/1.0"), (b"accept", b"*/*")],
    "client": ("127.0.0.1", 40000),
    "server": ("example.com", 80),
}


def encode_value(value: Any) -> bytes:
    """Encodes a value of a scope as the server does."""
    if isinstance(value, str):
        return encode_text(value)
    if isinstance(value, bytes):
        return b"s" + struct.pack("<I", len(value)) + value
    if isinstance(value, tuple):
        return b")" + bytes([len(value)]) + b"".join(map(encode_value, value))
    if isinstance(value, list):
        return b"[" + struct.pack("<I", len(value)) + b"".join(map(encode_value, value))
    if isinstance(value, dict):
        pairs = (encode_value(k) + encode_value(v) for k, v in value.items())
        return b"{" + b"".join(pairs) + b"0"
    return b"N" if value is None else b"i" + struct.pack("<i", value)


def open_frame(
    stream: int, body: bytes = b"", flags: int = 0, environ: Optional[bytes] = None, **changed: Any
) -> bytes:
    """Returns an OPEN frame; keyword arguments change the scope."""
    encoded = encode_value({**SCOPE, **changed}) if environ is None else environ
    payload = struct.pack("<II", stream, len(encoded)) + encoded + body
    return struct.pack("<BBHI", channel.OPEN, flags, 0, len(payload)) + payload


def open_websocket(stream: int, **changed: Any) -> bytes:
    scope = {"type": "websocket", "scheme": "ws", "subprotocols": [], **changed}
    encoded = {k: v for k, v in {**SCOPE, **scope}.items() if k != "method"}
    return open_frame(stream, b"", channel.FLAG_WEBSOCKET, encode_value(encoded))


def open_wsgi(stream: int, body: bytes = b"", flags: int = 0, **environ: Any) -> bytes:
    merged = {**ENVIRON, **environ}
    if body:
        merged.setdefault("CONTENT_LENGTH", str(len(body)))
    return open_frame(stream, body, flags, encode_environ(merged))


def gone(stream: int) -> bytes:
    return struct.pack("<BBHII", channel.STREAM_CANCEL, 0, 0, 4, stream)


class Part(NamedTuple):
    """A frame from the worker."""

    kind: int
    flags: int
    count: int
    stream: int
    payload: bytes


class Answer:
    """The frames received for one stream."""

    def __init__(self) -> None:
        self.parts: List[Part] = []
        self.strings: List[str] = []
        self.pieces: List[bytes] = []
        self.size = 0
        self.messages: List[Any] = []
        self.reason: Optional[str] = None
        self.close: Optional[Tuple[int, str]] = None
        self.is_ended = False

    @property
    def status(self) -> Optional[str]:
        return self.strings[0] if self.strings else None

    @property
    def kinds(self) -> List[int]:
        return [part.kind for part in self.parts]

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    def header(self, name: str) -> Optional[str]:
        pairs = zip(self.strings[1::2], self.strings[2::2])
        return dict((n.lower(), v) for n, v in pairs).get(name)

    def take(self, part: Part) -> None:
        assert not self.is_ended, part
        self.parts.append(part)
        payload = part.payload
        if part.kind == channel.STREAM_RESPONSE:
            head_len = struct.unpack_from("<I", payload, 4)[0]
            self.strings = payload[8 : 8 + head_len].decode("latin-1").split("\0")
            assert len(self.strings) == part.count, part
            self._add(payload[8 + head_len :])
            self.is_ended = part.flags == wire.FLAG_END
        elif part.kind == channel.DATA:
            assert len(payload) <= channel.MAX_DATA_BYTES
            self._add(payload)
            self.is_ended = bool(part.flags & wire.FLAG_END)
        elif part.kind == channel.RESET:
            self.reason, self.is_ended = payload.decode(), True
        elif part.kind == channel.ACCEPT:
            self.strings = payload.decode("latin-1").split("\0")
            assert len(self.strings) == part.count, part
        elif part.kind == channel.MESSAGE:
            self.messages.append(payload.decode() if part.flags else payload)
        elif part.kind == channel.CLOSE:
            self.close = (struct.unpack_from("<H", payload)[0], payload[2:].decode())
            self.is_ended = True

    def _add(self, piece: bytes) -> None:
        self.pieces.append(piece)
        self.size += len(piece)


class ReactorWorker:
    """A real process with a channel that serves `source` as module `app`."""

    def __init__(
        self,
        source: str,
        entry: str = "app:application",
        interface: str = "asgi",
        reactor: str = "tasks",
        python: str = sys.executable,
        stop_timeout: float = 5.0,
    ) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="penstock-test-")
        Path(self.folder.name, "app.py").write_text(source)
        pairs = [socket.socketpair() for _ in range(3)]
        fds = [theirs.fileno() for _, theirs in pairs]
        self.control, self.channel, self.files = (Peer(ours) for ours, _ in pairs)
        self.stderr = tempfile.TemporaryFile()
        self.answers: Dict[int, Answer] = {}
        self.given: Dict[int, int] = {}
        numbers = [
            "--control-fd",
            str(fds[0]),
            "--channel-fd",
            str(fds[1]),
            "--files-fd",
            str(fds[2]),
        ]
        options = ["--interface", interface, "--reactor", reactor, "--entry", entry]
        options += ["--dir", self.folder.name, "--stop-timeout", str(stop_timeout)]
        self.process = subprocess.Popen(
            [python, "-m", "penstock_worker", *numbers, *options],
            pass_fds=fds,
            cwd=ROOT,
            stderr=self.stderr,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        )
        for _, theirs in pairs:
            theirs.close()

    def __enter__(self) -> ReactorWorker:
        hello = self.control.frame()
        assert (hello.kind, hello.payload) == (
            wire.HELLO,
            struct.pack("<I", wire.PROTOCOL_VERSION),
        ), hello
        return self

    def __exit__(self, *_: object) -> None:
        for peer in (self.channel, self.control, self.files):
            peer.sock.close()
        try:
            self.wait()
        finally:
            self.stderr.close()
            self.folder.cleanup()

    def ready(self) -> ReactorWorker:
        frame = self.control.frame()
        assert frame.kind == wire.READY, frame.payload.decode()
        return self

    def wait(self) -> int:
        """Waits for the end of the process and returns its exit code."""
        try:
            return self.process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise

    def send(self, *frames: bytes) -> None:
        self.channel.sock.sendall(b"".join(frames))

    def send_file(self, stream: int, content: bytes) -> None:
        """Passes a stream's body file on the files socket."""
        with tempfile.TemporaryFile() as file:
            file.write(content)
            file.flush()
            os.lseek(file.fileno(), 0, os.SEEK_SET)
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file.fileno()]))]
            self.files.sock.sendmsg([struct.pack("<I", stream)], rights)

    def part(self) -> Part:
        kind, flags, count, length = struct.unpack("<BBHI", self.channel.take(8))
        payload = self.channel.take(length)
        return Part(kind, flags, count, struct.unpack_from("<I", payload)[0], payload[4:])

    def read(self) -> Part:
        """Reads one frame and adds it to its stream."""
        part = self.part()
        if part.kind == channel.WINDOW:
            size = struct.unpack("<I", part.payload)[0]
            self.given[part.stream] = self.given.get(part.stream, 0) + size
        else:
            self.answer(part.stream).take(part)
        return part

    def answer(self, stream: int) -> Answer:
        return self.answers.setdefault(stream, Answer())

    def read_until(self, condition: Callable[[], Any]) -> None:
        while not condition():
            self.read()

    def ask(self, frame: bytes) -> Answer:
        """Sends an OPEN and reads until its stream has ended."""
        stream = struct.unpack_from("<I", frame, 8)[0]
        self.answers.pop(stream, None)
        self.send(frame)
        self.read_until(lambda: self.answer(stream).is_ended)
        return self.answers[stream]

    def wait_log(self, text: str) -> None:
        """Waits until the worker has logged this text, without sending anything."""
        deadline = time.monotonic() + DEADLINE
        while text not in self.log():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{text!r} is not in the log: {self.log()}")
            with contextlib.suppress(subprocess.TimeoutExpired):
                raise EOFError(f"exit code {self.process.wait(0.002)}: {self.log()}")

    def log(self) -> str:
        """Returns what the worker has written to standard error."""
        size = os.fstat(self.stderr.fileno()).st_size
        return os.pread(self.stderr.fileno(), size, 0).decode()
