"""The application of the table of requests, for Python servers (WSGI)."""

import hashlib
import os
import time

PIECE = b"0123456789abcdef" * 4096


def pattern(length):
    while length > 0:
        yield PIECE[:length]
        length -= len(PIECE)


def stream(gate):
    yield b"first"
    while not os.path.exists(gate):
        time.sleep(0.005)
    yield b"last"


def digest(source):
    length, md5 = 0, hashlib.md5()
    while piece := source.read(1 << 16):
        length += len(piece)
        md5.update(piece)
    return f"{length} {md5.hexdigest()}"


def application(environ, start_response):
    method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
    status, headers = "200 OK", [("Content-Type", "text/plain")]
    words = path.strip("/").split("/")
    if words[0] == "status":
        status = f"{words[1]} Word"
        body = [] if words[1] in ("204", "304") else [b"why"]
        headers += [("X-Status", words[1])]
    elif words[0] == "big":
        body = pattern(int(words[1]))
        headers += [("Content-Length", words[1])]
    elif words[0] == "chunks":
        body = (piece for piece in (b"one", b"two" * 5000, b"three"))
    elif words[0] == "gate":
        body = stream(os.path.join(os.environ["FOLDER"], words[1]))
    elif words[0] == "fields":
        names = ("HTTP_HOST", "HTTP_X_FORWARDED_FOR", "HTTP_X_ODD", "QUERY_STRING", "HTTP_COOKIE")
        lines = [f"{name}={environ.get(name, '')}" for name in names]
        raw = path.encode("latin-1").decode("utf-8", "replace")
        body = ["\n".join([*lines, f"PATH={raw}"]).encode()]
        headers += [("Set-Cookie", "a=1; Path=/"), ("Set-Cookie", "b=2; Path=/")]
    else:
        # Not every server ends `wsgi.input` by itself.
        rest = environ["wsgi.input"]
        if not environ.get("wsgi.input_terminated"):
            rest = Bounded(rest, int(environ.get("CONTENT_LENGTH") or 0))
        text = f"{method} {path} {digest(rest)}".encode()
        headers += [("Content-Length", str(len(text)))]
        body = [text]
    start_response(status, headers)
    return [] if method == "HEAD" else body


class Bounded:
    def __init__(self, source, left):
        self.source, self.left = source, left

    def read(self, count):
        piece = self.source.read(min(count, self.left))
        self.left -= len(piece)
        return piece
