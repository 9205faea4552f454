"""Waits `?ms=N` in a C library, as most drivers of databases do: the interpreter is free, this thread is not.

`time.sleep` would not do: gevent replaces it, and then compares servers that wait with one that does not.
"""

import ctypes

libc = ctypes.CDLL(None)


def application(environ, start_response):
    libc.usleep(int(float(environ["QUERY_STRING"].removeprefix("ms=")) * 1000))
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "7")])
    return [b"waited\n"]
