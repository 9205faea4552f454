"""A page that keeps every visitor connected: the index is a stream that shows their number.

Plain WSGI, without packages. The index responds once, with GRIP's fields; Penstock holds the
connection from then on, and this process is free. A message published to the channel `everybody`
reaches all visitors.
"""

import json
import os
import time

BEGAN = time.time()


def index(_environ):
    fields = [
        ("Content-Type", "text/event-stream"),
        ("Cache-Control", "no-store"),
        ("Grip-Hold", "stream"),
        ("Grip-Channel", "everybody"),
        ("Grip-Keep-Alive", f":\\n\\n; format=cstring; timeout={os.environ.get('BEAT', '15')}"),
    ]
    return "200 OK", fields, b"event: welcome\ndata: \n\n"


def ping(_environ):
    return "200 OK", [("Content-Type", "text/plain")], b"pong\n"


def about(_environ):
    told = json.dumps({"pid": os.getpid(), "seconds": round(time.time() - BEGAN, 1)})
    return "200 OK", [("Content-Type", "application/json")], told.encode()


def missing(_environ):
    return "404 Not Found", [("Content-Type", "text/plain")], b"there is nothing here\n"


PATHS = {"/": index, "/ping": ping, "/about": about}


def application(environ, start_response):
    status, fields, body = PATHS.get(environ["PATH_INFO"], missing)(environ)
    start_response(status, [*fields, ("Content-Length", str(len(body)))])
    return [body]
