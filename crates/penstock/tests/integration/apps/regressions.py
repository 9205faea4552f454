"""The application of the tests in `regressions.rs`."""

import os
import signal
import threading
from time import sleep as pause


def wait_while(condition):
    while condition():
        pause(0.003)


def wait_for(name):
    wait_while(lambda: not os.path.exists(name))


def ticking():
    yield b"begun\n"
    while not os.path.exists("go"):
        yield b"tick\n"
        pause(0.02)
    yield b"done\n"


def freeze_server():
    """Stops the server, so that it finds this response and the later ones all at once."""
    server = os.getppid()
    os.kill(server, signal.SIGSTOP)
    threading.Timer(0.1, os.kill, (server, signal.SIGCONT)).start()


# A worker that starts while the gate exists does not become ready before it is removed.
wait_while(lambda: os.path.exists("gate"))


def app(environ, start):
    path, headers = environ["PATH_INFO"], []
    body = [b"ok"]
    if path == "/pid":
        body = [str(os.getpid()).encode()]
    elif path == "/length":
        body = [str(len(environ["wsgi.input"].read())).encode()]
    elif path == "/big":
        body = [b"0123456789abcdef" * (1 << 20)]
    elif path == "/pieces":
        body = iter([b"a" * 10, b"b" * 10])
    elif path == "/longer":
        body, headers = iter([b"more than three"]), [("Content-Length", "3")]
    elif path == "/ticking":
        body = ticking()
    elif path == "/stuck":
        threading.Event().wait()
    elif path == "/hold":
        wait_for("go")
    elif path == "/left":
        with open("seen", "a") as seen:
            seen.write("left\n")
    elif path in ("/file", "/freeze"):
        body = environ["wsgi.file_wrapper"](open("content", "rb"))
        headers = [("X-Number", environ["QUERY_STRING"])]
        if path == "/freeze":
            freeze_server()
    start("200 OK", headers)
    return body
