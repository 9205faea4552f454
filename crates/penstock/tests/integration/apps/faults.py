"""The application of the tests in `faults`: each path causes one kind of damage."""

import os
import signal
import socket
import stat
import sys
from time import sleep as pause



def sockets():
    """The worker's own descriptors, from 100 on: the control socket, then one per slot."""
    numbers = sorted(int(name) for name in os.listdir("/proc/self/fd"))
    found = [n for n in numbers if n >= 100 and is_socket(n)]
    return found[0], found[1:]


def is_socket(number):
    try:
        return stat.S_ISSOCK(os.fstat(number).st_mode)
    except OSError:
        return False


# Bytes that the server must never accept as a valid frame.
RUBBISH = {
    "noise": bytes(range(255, 0, -1)) * 300,
    "text": b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    "too-long": b"\x11\x02\x02\x00\xff\xff\xff\xff",
    "long": b"\x11\x02\x02\x00\x00\x00\x00\x04" + b"x" * 200_000,
    "kind": b"\xc8\x00\x00\x00\x00\x00\x00\x00",
    "flags": b"\x11\xff\x00\x00\x04\x00\x00\x00abcd",
    "body-first": b"\x12\x01\x00\x00\x04\x00\x00\x00abcd",
    "head-lies": b"\x11\x01\x02\x00\x0c\x00\x00\x00" + b"\0\0\0\0" + b"\xff\xff\xff\x7f" + b"200\0",
    "control": b"\x21\x00\x00\x00\x02\x00\x00\x00{}",
}


def write_all(fd, data):
    while data:
        data = data[os.write(fd, data) :]


def begin():
    with open("begun.new", "w") as file:
        file.write(str(os.getpid()))
    os.rename("begun.new", "begun")


def wait_for(name):
    while not os.path.exists(name):
        pause(0.003)


def become_daemon():
    """A process in its own session that keeps every descriptor; it ends by itself."""
    child = os.fork()
    if child == 0:
        os.setsid()
        daemon = os.fork()
        if daemon == 0:
            pause(60)
            os._exit(0)
        with open("daemon.new", "w") as file:
            file.write(str(daemon))
        os.rename("daemon.new", "daemon")
        os._exit(0)
    os.waitpid(child, 0)


def endless():
    piece = b"0123456789abcdef" * 4096
    while True:
        yield piece


def ticking():
    while True:
        yield b"tick\n"
        pause(0.005)


def app(environ, start):
    path, query = environ["PATH_INFO"], environ["QUERY_STRING"]
    size = len(environ["wsgi.input"].read())
    headers = [("Content-Type", "text/plain")]
    if path == "/raise":
        raise ValueError("on purpose")
    if path == "/forge":
        words = "a\rb\x1b[2J\x07\x9b31m\x7f\nFri, 01 Jan 2027 00:00:00 error: forged"
        os.write(1, words.encode() + b"\r\n")
        os.write(2, words.encode("latin-1") + b"\n")
        print(path, environ["HTTP_USER_AGENT"])
        raise ValueError(words)
    if path == "/forge-status":
        headers.append(("X-Forged\x1b[2J", "a\r\nb"))
    elif path == "/talk":
        for _ in range(64):
            os.write(2, b"talk " * 800 + b"\n")
    elif path == "/close-output":
        os.close(1)
        os.close(2)
    elif path == "/close-streams":
        sys.stdout.close()
        sys.stderr.close()
    elif path == "/daemon":
        become_daemon()
    elif path == "/hold":
        begin()
        wait_for("go")
    elif path == "/stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        begin()
        while True:
            pause(1)
    elif path == "/slot":
        for fd in sockets()[1]:
            write_all(fd, RUBBISH[query])
        pause(60)
    elif path == "/control":
        write_all(sockets()[0], RUBBISH[query])
    elif path == "/descriptor":
        sock = socket.socket(fileno=os.dup(sockets()[1][0]))
        with open(__file__) as file:
            socket.send_fds(sock, [b"\x10\x00\x00\x00\x00\x00\x00\x00"], [file.fileno()])
        pause(60)
    elif path == "/shut":
        for fd in sockets()[1]:
            socket.socket(fileno=os.dup(fd)).shutdown(socket.SHUT_RDWR)
    elif path == "/large":
        start("200 OK", headers + [("Content-Length", str(64 << 20))])
        return (b"0123456789abcdef" * 4096 for _ in range(1024))
    elif path == "/endless":
        start("200 OK", headers)
        return endless()
    elif path == "/ticking":
        start("200 OK", headers)
        return ticking()
    start("200 OK", headers)
    return [f"{os.getpid()} {size}".encode()]
