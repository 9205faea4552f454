"""Frames of a reactor's channel socket: the mirror of `crates/wire`'s channel.

`asgi` and `gevent_reactor` read with a `FrameReader`, write the frames made here with a
`FrameWriter`, and keep one stream object for each id. `PROTOCOL.md` ("Reactors") is the contract,
`vectors/channel*.txt` its examples. Nothing here waits: the sockets are non-blocking, and the loop
waits for them.

# Invariants
- Frames leave in the order in which they were queued, each whole.
- A length is compared with its bound before it is used.
- Positions that `receive` returned are valid until its next call.
"""

from __future__ import annotations

import marshal
import os
import socket
import struct
from typing import Any, Dict, List, Optional, Tuple

from . import native
from .wire import (
    FLAG_BODY_FILE,
    FLAG_END,
    MAX_HEAD_BYTES,
    MAX_INPUT_BYTES,
    MAX_PAYLOAD_BYTES,
    MAX_REASON_BYTES,
    WireError,
    receive_with_fds,
)

OPEN, STREAM_CANCEL, WINDOW, MESSAGE, CLOSE, INPUT = 64, 65, 66, 67, 68, 69
STREAM_RESPONSE, DATA, ACCEPT, RESET, PULL, HIJACK = 80, 81, 82, 83, 84, 85

FLAG_WEBSOCKET = 2
FLAG_BODY_STREAM = 4
FLAG_TEXT = 1

# What a stream may send before the other side has given more.
WINDOW_BYTES = 256 << 10
# What a message takes of it besides its bytes.
MESSAGE_OVERHEAD = 64
MAX_DATA_BYTES = 64 << 10
# Bytes on their way to the server, of all streams, above which senders wait.
MAX_OUTBOX_BYTES = 1 << 20
MAX_CLOSE_REASON_BYTES = 123  # RFC 6455 section 5.5: 125 less the code.

# Kind, flags, position and end of what follows the id, in the inbox's buffer.
Frame = Tuple[int, int, int, int, int]

# Allowed flags, least and largest payload, id included, of what the server sends.
_FRAME_RULES: Dict[int, Tuple[int, int, int]] = {
    OPEN: (FLAG_BODY_FILE | FLAG_WEBSOCKET | FLAG_BODY_STREAM, 8, MAX_PAYLOAD_BYTES),
    INPUT: (FLAG_END, 4, 4 + MAX_INPUT_BYTES),
    STREAM_CANCEL: (0, 4, 4),
    WINDOW: (0, 8, 8),
    MESSAGE: (FLAG_TEXT, 4, MAX_PAYLOAD_BYTES),
    CLOSE: (0, 6, 6 + MAX_REASON_BYTES),
}
BUFFER_BYTES = 256 << 10
MAX_JOIN_BYTES = 256 << 10
MAX_BUFFERS = 512  # Below every kernel's IOV_MAX.
FILES_TIMEOUT = 10.0

_unpack_frame = struct.Struct("<BBHII").unpack_from
_unpack_u32 = struct.Struct("<I").unpack_from
_unpack_u16 = struct.Struct("<H").unpack_from
_pack_frame = struct.Struct("<BBHII").pack
_pack_response = struct.Struct("<BBHIIII").pack
_pack_window = struct.Struct("<BBHIII").pack
_pack_close = struct.Struct("<BBHIIH").pack


class _ScriptReaderState:
    """What the native part has of a reader, where there is no native part."""

    __slots__ = ("_end", "_start", "buffer")


class _ScriptWriterState:
    """The same of a writer."""

    __slots__ = ("_frames", "size")


ReaderState: Any = native.module.ReaderState if native.module else _ScriptReaderState
WriterState: Any = native.module.WriterState if native.module else _ScriptWriterState


class FrameReader(ReaderState):
    """What has come on the channel socket."""

    __slots__ = ("_recv_into", "view")

    def __init__(self, sock: socket.socket) -> None:
        self._recv_into = sock.recv_into
        self._start = self._end = 0
        self.buffer = bytearray(BUFFER_BYTES)
        self.view = memoryview(self.buffer)

    def receive(self) -> Optional[List[Frame]]:
        """All frames that are complete after one receive, none if nothing is there; None when the
        server has closed the channel. Raises WireError."""
        self._make_room()
        try:
            got = self._recv_into(self.view[self._end :] if self._end else self.buffer)
        except (BlockingIOError, InterruptedError):
            return []
        except OSError:
            return None
        if not got:
            return None
        self._end += got
        return self.split()

    def split(self) -> List[Frame]:
        """All frames that are complete in the buffer. Raises WireError."""
        buffer, at, end = self.buffer, self._start, self._end
        frames: List[Frame] = []
        while end - at >= 12:
            kind, flags, count, length, stream_id = _unpack_frame(buffer, at)
            rule = _FRAME_RULES.get(kind)
            if rule is None or flags & ~rule[0] or count or not rule[1] <= length <= rule[2]:
                raise WireError(f"frame {kind}, flags {flags}, count {count}, {length} bytes")
            stop = at + 8 + length
            if stop > end:
                break
            frames.append((kind, flags, stream_id, at + 12, stop))
            at = stop
        self._start = at
        return frames

    def parse_open(self, at: int, stop: int) -> Tuple[Dict[str, Any], bytes]:
        """Environment or scope, and body, of an OPEN."""
        middle = at + 4 + _unpack_u32(self.buffer, at)[0]
        if middle > stop:
            raise WireError("an OPEN frame contradicts itself")
        environ = marshal.loads(self.view[at + 4 : middle])
        return environ, bytes(self.view[middle:stop]) if middle < stop else b""

    def parse_window(self, at: int) -> int:
        """Bytes that a WINDOW gives."""
        return _unpack_u32(self.buffer, at)[0]

    def parse_close(self, at: int, stop: int) -> Tuple[int, str]:
        """Code and reason of a CLOSE."""
        code = _unpack_u16(self.buffer, at)[0]
        return code, self.view[at + 2 : stop].tobytes().decode("utf-8", "replace")

    def _make_room(self) -> None:
        """Moves what is left to the front, of a buffer that holds the whole frame it begins."""
        left = self._end - self._start
        needed = 12
        if left >= 12:
            needed = 8 + _unpack_frame(self.buffer, self._start)[3]
        size = max(needed, BUFFER_BYTES)
        if size != len(self.buffer):
            rest = self.view[self._start : self._end].tobytes()
            self.buffer = bytearray(size)
            self.view = memoryview(self.buffer)
            self.buffer[:left] = rest
        elif self._start and left:
            self.view[:left] = self.view[self._start : self._end].tobytes()
        self._start, self._end = 0, left


class FrameWriter(WriterState):
    """What is on its way to the server, in order."""

    __slots__ = ("_send", "_sendmsg")

    def __init__(self, sock: socket.socket) -> None:
        self._send = sock.send
        self._sendmsg = sock.sendmsg
        self._frames: List[Any] = []
        self.size = 0

    def queue(self, frame: bytes) -> int:
        """Puts a frame behind all others; the bytes that are in it now."""
        self._frames.append(frame)
        self.size = size = self.size + len(frame)
        return size

    def flush(self) -> bool:
        """Sends what the socket takes; False when it took not all. Raises OSError when the server
        has closed the channel."""
        try:
            while self.size:
                frames = self._frames
                if self.size <= MAX_JOIN_BYTES:
                    data = frames[0] if len(frames) == 1 else b"".join(frames)
                    sent = self._send(data)
                    self._frames = [memoryview(data)[sent:]] if sent < len(data) else []
                else:
                    sent = self._sendmsg(frames[:MAX_BUFFERS])
                    self._drop_sent(sent)
                self.size -= sent
        except (BlockingIOError, InterruptedError):
            return False
        return True

    def drop_sent(self, sent: int) -> None:
        """So many bytes have been sent."""
        self.size -= sent
        self._drop_sent(sent)

    def _drop_sent(self, sent: int) -> None:
        frames, at = self._frames, 0
        while at < len(frames) and sent >= len(frames[at]):
            sent -= len(frames[at])
            at += 1
        if sent:
            frames[at] = memoryview(frames[at])[sent:]
        self._frames = frames[at:]


def receive_fd(files: socket.socket, stream_id: int) -> int:
    """The descriptor of this stream's body file. It was sent before the OPEN, so that this waits for
    nothing. Raises WireError, also when it is another stream's."""
    try:
        files.settimeout(FILES_TIMEOUT)
        data, fds = receive_with_fds(files, 4, 1)
    except OSError as error:
        raise WireError(f"a body file was promised: {error}") from None
    if len(data) == 4 and len(fds) == 1 and _unpack_u32(data)[0] == stream_id:
        return fds[0]
    for fd in fds:
        os.close(fd)
    if len(data) != 4 or len(fds) != 1:
        raise WireError("a body file was promised and one descriptor did not come")
    raise WireError(
        f"stream {stream_id} was promised a body file, and got stream {_unpack_u32(data)[0]}'s"
    )


def window_cost(payload: bytes) -> int:
    """What a message takes of a window: also one without a byte must be kept somewhere."""
    return min(len(payload) + MESSAGE_OVERHEAD, WINDOW_BYTES)


def encode_response(
    stream_id: int, flags: int, count: int, micros: int, head: bytes, body: bytes
) -> bytes:
    """STREAM_RESPONSE; `head` is `count` strings as `wire.join_head` makes them."""
    head_len = len(head)
    length = 12 + head_len + len(body)
    micros &= 0xFFFF_FFFF
    return (
        _pack_response(STREAM_RESPONSE, flags, count, length, stream_id, micros, head_len)
        + head
        + body
    )


def encode_data(stream_id: int, flags: int, body: Any) -> bytes:
    """DATA of at most `MAX_DATA_BYTES` bytes."""
    return _pack_frame(DATA, flags, 0, 4 + len(body), stream_id) + body


def encode_accept(stream_id: int, count: int, strings: bytes) -> bytes:
    """ACCEPT: subprotocol, names and values, joined as a head."""
    return _pack_frame(ACCEPT, 0, count, 4 + len(strings), stream_id) + strings


def encode_pull(stream_id: int) -> bytes:
    """PULL: the application waits for the next piece of its request's body."""
    return _pack_frame(PULL, 0, 0, 4, stream_id)


def encode_hijack(stream_id: int) -> bytes:
    """HIJACK: the application answers by itself, on a socket that was sent before."""
    return _pack_frame(HIJACK, 0, 0, 4, stream_id)


def send_socket(files: socket.socket, stream_id: int, sock: socket.socket) -> None:
    """Sends the socket that a HIJACK is about. Raises BlockingIOError while the server has too many
    to receive still, OSError when it has closed the channel."""
    # `receive_fd` leaves a time-out behind.
    files.setblocking(False)
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", sock.fileno()))]
    files.sendmsg([struct.pack("<I", stream_id)], rights)


def encode_reset(stream_id: int, flags: int, reason: str) -> bytes:
    """RESET with one short line for status page and log."""
    text = reason[:MAX_REASON_BYTES].encode("utf-8", "replace")
    return _pack_frame(RESET, flags, 0, 4 + len(text), stream_id) + text


def encode_window(stream_id: int, size: int) -> bytes:
    """WINDOW: so many bytes more may be sent."""
    return _pack_window(WINDOW, 0, 0, 8, stream_id, size)


def encode_message(stream_id: int, flags: int, payload: bytes) -> bytes:
    """MESSAGE, whole."""
    return _pack_frame(MESSAGE, flags, 0, 4 + len(payload), stream_id) + payload


def encode_close(stream_id: int, code: int, reason: str) -> bytes:
    """CLOSE; a reason too long for the client's frame is cut between characters."""
    text = reason.encode("utf-8", "replace")[:MAX_CLOSE_REASON_BYTES]
    text = text.decode("utf-8", "ignore").encode()
    return _pack_close(CLOSE, 0, 0, 6 + len(text), stream_id, code) + text


def join_fields(strings: List[bytes]) -> bytes:
    """Status line, or subprotocol, then names and values as they travel.

    Raises ValueError when one holds a control character (one of them is the border between strings)
    or there are too many, TypeError when one is no bytes."""
    head = b"\0".join(strings)
    if len(head.translate(None, _CONTROL_CHARS)) != len(head) - len(strings) + 1:
        raise ValueError("a control character")
    if len(head) > MAX_HEAD_BYTES or len(strings) > 0xFFFF:
        raise ValueError("more than 256 KiB")
    return head


_CONTROL_CHARS = bytes(byte for byte in range(128) if (byte < 32 and byte != 9) or byte == 127)
