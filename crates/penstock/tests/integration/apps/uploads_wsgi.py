"""A WSGI application that streams request bodies; see `uploads.rs`."""

import os
import time


def note(text):
    with open("seen.txt", "a") as seen:
        seen.write(text + "\n")


def gate(name):
    while not os.path.exists(name):
        time.sleep(0.003)


def rest(body):
    total = 0
    try:
        while True:
            piece = body.read(10_000)
            if not piece:
                break
            total += len(piece)
    except OSError:
        note("cut")
        raise
    note(f"whole {total}")
    return total


def echo(body):
    yield b"go"
    while True:
        try:
            piece = body.read1()
        except OSError:
            note("cut")
            raise
        if not piece:
            break
        yield b"<" + piece + b">"
    yield b"end"


def app(environ, start_response):
    path, body = environ["PATH_INFO"], environ["wsgi.input"]
    answer = None
    note("begun")
    if path == "/echo":
        answer = echo(body)
    elif path == "/early":
        answer = [b"early"]
    elif path == "/lines":
        answer = [b"|".join(body)]
    elif path.startswith("/behind/"):
        gate(path[8:])
        answer = [b"%d" % rest(body)]
    elif path.startswith("/after/"):
        total = rest(body)
        gate(path[7:])
        answer = [b"%d" % total]
    else:
        answer = [b"%d" % rest(body)]
    start_response("200 OK", [("Content-Type", "text/plain")])
    return answer
