"""Measures an ASGI worker's own cost: CPU time of one process per request, alone and in batches.

Run by hand: `python3 tests/measure_asgi.py [BATCH] [REQUESTS]`, with an interpreter with or without
uvloop. Prints microseconds of user plus system time of the worker for each request of a hello
application, socket calls included.
"""

from __future__ import annotations

import sys

from channel_harness import ReactorWorker, open_frame
from measure import cpu_seconds

HELLO = """
async def application(scope, receive, send):
    if scope["type"] != "http":
        raise NotImplementedError
    body = b"Hello, world!\\n"
    headers = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
"""


def measure(batch: int, total: int) -> float:
    frames = b"".join(open_frame(stream) for stream in range(batch))
    with ReactorWorker(HELLO) as worker:
        worker.ready()
        sock, pid = worker.channel.sock, worker.process.pid
        sock.settimeout(None)
        sock.sendall(open_frame(0))
        size = len(sock.recv(1 << 16))
        buffer = bytearray(size * batch)
        before = cpu_seconds(pid)
        for _ in range(total // batch):
            sock.sendall(frames)
            left = len(buffer)
            while left:
                left -= sock.recv_into(buffer, left)
        return (cpu_seconds(pid) - before) / (total // batch * batch) * 1e6


def main() -> None:
    batches = [int(sys.argv[1])] if len(sys.argv) > 1 else [1, 8, 64]
    total = int(sys.argv[2]) if len(sys.argv) > 2 else 40_000
    for batch in batches:
        print(f"batch {batch}: {measure(batch, total):.2f} us of worker CPU a request")


if __name__ == "__main__":
    main()
