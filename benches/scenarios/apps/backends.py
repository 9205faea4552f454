"""Single-threaded back ends, each on its own Unix socket.

    backends.py FOLDER COUNT (compute | sleep) MILLISECONDS

The sockets are FOLDER/1.sock to FOLDER/COUNT.sock, with a process for each. Any number of
connections stay open; while one request is answered all others wait. `compute` is a fixed piece of
work of about that many milliseconds; `sleep` is a wait, as for a database.

Every socket listens before any process answers: once one socket is there, all are.
"""

import os
import selectors
import socket
import sys
import time

BODY = b"Hello from a back end with much to do.\n"
STEPS_A_MILLISECOND = 20_000


def compute(milliseconds):
    number = 1
    for _ in range(milliseconds * STEPS_A_MILLISECOND):
        number = (number * 1103515245 + 12345) & 0x7FFFFFFF
    return number


def sleep(milliseconds):
    time.sleep(milliseconds / 1000)


def serve(listener, work):
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fileobj is listener:
                stream, _ = listener.accept()
                selector.register(stream, selectors.EVENT_READ, bytearray())
            elif not answer(key.fileobj, key.data, work):
                selector.unregister(key.fileobj)
                key.fileobj.close()


def answer(stream, received, work):
    """Reads what has arrived and answers each whole request; returns False at the end."""
    try:
        got = stream.recv(65536)
        received += got
        while (end := received.find(b"\r\n\r\n")) >= 0:
            head = bytes(received[:end]).lower()
            del received[: end + 4]
            work()
            closes = b"\r\nconnection: close" in head or b" http/1.0" in head.split(b"\r\n")[0]
            stream.sendall(response(closes))
            if closes:
                return False
        return bool(got)
    except OSError:
        return False


def response(closes):
    head = f"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {len(BODY)}\r\n"
    return (head + ("Connection: close\r\n\r\n" if closes else "\r\n")).encode() + BODY


def listen(path):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(1024)
    return listener


def main():
    folder, count, kind, milliseconds = sys.argv[1:]
    work = {"compute": compute, "sleep": sleep}[kind]
    listeners = [listen(f"{folder}/{number}.sock") for number in range(1, int(count) + 1)]
    own = listeners[0]
    for listener in listeners[1:]:
        if os.fork() == 0:
            own = listener
            break
    for other in listeners:
        if other is not own:
            other.close()
    serve(own, lambda: work(int(milliseconds)))


if __name__ == "__main__":
    main()
