"""Waits `?ms=N` in a C library, as most database drivers do: only this thread is blocked.

gevent replaces `time.sleep`, and would then wait without blocking the thread.
"""

import ctypes

libc = ctypes.CDLL(None)


def application(environ, start_response):
    libc.usleep(int(float(environ["QUERY_STRING"].removeprefix("ms=")) * 1000))
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "7")])
    return [b"waited\n"]
