"""Performs the action in the request field `Attempt` and responds with its result.

The words are those of `hostile.rb`: `read`, `write`, `create` and `list` a path, `link` one, `call` the
kernel, speak to a socket (`unix`, `abstract`, `tcp`), write to every socket that it has (`raw`).
"""

import ctypes
import errno
import os
import socket
import stat

LIBC = ctypes.CDLL(None, use_errno=True)


def argument(word):
    kind, _, value = word.partition(":")
    if kind == "buffer":
        return ctypes.create_string_buffer(int(value))
    if kind == "text":
        return ctypes.c_char_p(value.encode())
    return ctypes.c_long(int(word))


def call(*words):
    arguments = [argument(word) for word in words]
    done = LIBC.syscall(*arguments)
    if done == -1:
        raise OSError(ctypes.get_errno(), "call")
    return done


def speak(family, address, request):
    with socket.socket(family) as client:
        client.settimeout(10)
        client.connect(address)
        client.sendall(request.replace("+", " ").encode().decode("unicode_escape").encode())
        status = client.recv(64).split(b" ")
    # A refusal is no success.
    if len(status) > 1 and status[1] in (b"401", b"403"):
        raise OSError(errno.EPERM, "refused by an answer")
    return status


def read(path):
    with open(path, "rb") as file:
        return f"{len(file.read(16))} bytes"


def write(path):
    with open(path, "ab", buffering=0) as file:
        return file.write(b"x")


def create(path):
    return os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)


def leaked(word):
    links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    found = [os.readlink(link) for link in links if os.path.lexists(link)]
    found = [name for name in found if word in name]
    if not found:
        raise OSError(errno.EBADF, "no such descriptor")
    return found


def raw(text):
    """Writes bytes, given as hexadecimal digits, to every socket of this process."""
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                os.write(number, bytes.fromhex(text))
        except OSError:
            pass
    return "written"


ACTIONS = {
    "read": read,
    "write": write,
    "create": create,
    "list": os.listdir,
    "link": os.readlink,
    "call": call,
    "unix": lambda path, request: speak(socket.AF_UNIX, path, request),
    "abstract": lambda name: speak(socket.AF_UNIX, "\0" + name, "x"),
    "tcp": lambda port, request: speak(socket.AF_INET, ("127.0.0.1", int(port)), request),
    "leaked": leaked,
    "raw": raw,
}


def app(environ, start_response):
    start_response("200 OK", [])
    action, *words = environ.get("HTTP_ATTEMPT", "call 39").split(" ")
    try:
        text = f"DONE: {ACTIONS[action](*words)}"
    except OSError as error:
        text = f"refused: {errno.errorcode.get(error.errno, error.errno)}"
    return [text.encode()]
