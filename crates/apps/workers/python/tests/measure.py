"""Measures the worker's own cost: CPU time of one process per request, alone and in batches.

Run by hand: `python3 tests/measure.py [BATCH] [REQUESTS]`. Prints microseconds of user plus system
time of the worker for each request of a hello application, socket calls included.
"""

from __future__ import annotations

import os
import sys
import time

from harness import Worker, request

HELLO = """
def application(environ, start_response):
    body = b"Hello, world!\\n"
    headers = [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))]
    start_response("200 OK", headers)
    return [body]
"""


def cpu_seconds(pid: int) -> float:
    with open(f"/proc/{pid}/schedstat") as file:
        return int(file.read().split()[0]) / 1e9


def measure(batch: int, total: int) -> float:
    frames = request() * batch
    with Worker(HELLO) as worker:
        worker.ready()
        sock, pid = worker.slots[0].sock, worker.process.pid
        sock.settimeout(None)
        sock.sendall(request())
        size = len(sock.recv(1 << 16))
        buffer = bytearray(size * batch)
        before = cpu_seconds(pid)
        for _ in range(total // batch):
            sock.sendall(frames)
            left = len(buffer)
            while left:
                left -= sock.recv_into(buffer, left)
        return (cpu_seconds(pid) - before) / (total // batch * batch) * 1e6


if __name__ == "__main__":
    batches = [int(sys.argv[1])] if len(sys.argv) > 1 else [1, 8]
    requests = int(sys.argv[2]) if len(sys.argv) > 2 else 40000
    if hasattr(os, "sched_setaffinity") and os.environ.get("PIN"):
        os.sched_setaffinity(0, {int(os.environ["PIN"])})
    for size in batches:
        start = time.perf_counter()
        micros = measure(size, requests)
        rate = requests / (time.perf_counter() - start)
        print(f"batch {size}: {micros:.2f} us of worker CPU a request, {rate:.0f}/s")
