"""A path for each thing that PEP 3333 allows or forbids; `do_a_b` handles `/a-b`."""

import io
import os
import sys
import tempfile
import threading

closed = []
go = threading.Event()
barrier = threading.Barrier(4)

class Body:
    "An iterable that counts how often it is closed."
    def __init__(self, path, chunks):
        self.path, self.chunks = path, iter(chunks)
    def __iter__(self):
        return self.chunks
    def close(self):
        closed.append(self.path)

def raising(*chunks):
    yield from chunks
    raise ValueError("deliberate")

def endless():
    while True:
        yield b"x" * 10000

def waiting():
    yield b"one"
    go.wait(20)
    yield b"two"

def plain(*more):
    return [("Content-Type", "text/plain"), *more]

def length(number):
    return plain(("Content-Length", str(number)))

def app(environ, start):
    path = environ["PATH_INFO"]
    name = path[1:].replace("-", "_")
    if environ["QUERY_STRING"] == "drain":
        environ["wsgi.input"].read()
    return globals()["do_" + name](environ, start, path)

def ok(start, body, headers=None):
    start("200 OK", plain() if headers is None else headers)
    return body

def do_(e, s, p): return ok(s, [b"hello"])
def do_pid(e, s, p): return ok(s, [str(os.getpid()).encode()])
def do_closed(e, s, p): return ok(s, [" ".join(closed).encode()])
def do_multithread(e, s, p):
    barrier.wait(20)
    return ok(s, [str(e["wsgi.multithread"]).encode()])

# Allowed.
def do_empty_list(e, s, p): return ok(s, [])
def do_empty_chunks(e, s, p): return ok(s, Body(p, [b"", b"", b""]))
def do_tuple(e, s, p): return ok(s, (b"a", b"b"))
def do_many(e, s, p): return ok(s, [b"a", b"", b"bc"])
def do_generator(e, s, p): return ok(s, Body(p, [b"", b"a", b"", b"bc"]))
def do_declared(e, s, p): return ok(s, Body(p, [b"a", b"bc"]), length(3))
def do_late_start(e, s, p):
    s("200 OK", plain())
    yield b"late"
def do_large(e, s, p): return ok(s, [b"y" * 3000000])
def do_no_content(e, s, p):
    s("204 No Content", [])
    return [b"dropped"]
def do_not_modified(e, s, p):
    s("304 Not Modified", [("ETag", '"a"')])
    return [b"dropped"]
def do_repeated(e, s, p):
    return ok(s, [b"x"], plain(("Set-Cookie", "a=1"), ("Set-Cookie", "b=2")))
def do_latin(e, s, p): return ok(s, [b"x"], plain(("X-Name", "caf\xe9")))
def do_hop(e, s, p):
    return ok(s, [b"x"], plain(("Connection", "close"), ("Transfer-Encoding", "chunked")))
def do_write(e, s, p):
    write = s("200 OK", plain())
    write(b"one,")
    write(b"")
    write(b"two,")
    return [b"three"]
def do_write_only(e, s, p):
    s("200 OK", length(3))(b"abc")
    return []
def do_exc_info(e, s, p):
    s("200 OK", plain(("X-First", "1")))
    try:
        raise ValueError("deliberate")
    except ValueError:
        s("503 Sorry", plain(("X-Second", "2")), sys.exc_info())
    return [b"sorry"]
def do_file(e, s, p):
    file = open(__file__, "rb")
    file.seek(1)
    return ok(s, e["wsgi.file_wrapper"](file))
def do_file_length(e, s, p):
    file = open(__file__, "rb")
    file.seek(1)
    return ok(s, e["wsgi.file_wrapper"](file), length(9))
def do_file_memory(e, s, p):
    class Noted(io.BytesIO):
        def close(self):
            closed.append(p)
    return ok(s, e["wsgi.file_wrapper"](Noted(b"z" * 20000), 4096))
def do_file_temp(e, s, p):
    file = tempfile.NamedTemporaryFile()
    file.write(b"temporary")
    file.flush()
    file.seek(0)
    return ok(s, e["wsgi.file_wrapper"](file))
def do_echo(e, s, p):
    body = e["wsgi.input"].read()
    return ok(s, [f"{e.get('CONTENT_LENGTH')}:".encode(), body])
def do_lines(e, s, p):
    i = e["wsgi.input"]
    return ok(s, [repr((i.readline(), i.read(2), i.readlines(), i.read(), list(i))).encode()])
def do_waiting(e, s, p): return ok(s, Body(p, waiting()))
def do_go(e, s, p):
    go.set()
    return ok(s, [])
def do_endless(e, s, p): return ok(s, Body(p, endless()))
def do_errors(e, s, p):
    e["wsgi.errors"].write("said to wsgi.errors\n")
    return ok(s, [])

# Forbidden.
def do_raise(e, s, p): raise ValueError("deliberate")
def do_raise_after_start(e, s, p):
    s("200 OK", plain(("X-Never", "1")))
    raise ValueError("deliberate")
def do_raise_first(e, s, p): return ok(s, Body(p, raising()))
def do_exit(e, s, p): sys.exit(3)
def do_interrupt(e, s, p): raise KeyboardInterrupt
def do_no_start(e, s, p): return [b"x"]
def do_none(e, s, p): return ok(s, None)
def do_text(e, s, p): return ok(s, "text")
def do_text_list(e, s, p): return ok(s, ["text"])
def do_number(e, s, p): return ok(s, 7)
def do_status_number(e, s, p):
    s(200, plain())
    return [b"x"]
def do_status_empty(e, s, p):
    s("", plain())
    return [b"x"]
def do_status_interim(e, s, p):
    s("100 Continue", [])
    return [b"x"]
def do_status_large(e, s, p):
    s("999 What", [])
    return [b"x"]
def do_status_inject(e, s, p):
    s("200 OK\r\nX-Evil: 1", plain())
    return [b"x"]
def do_headers_tuple(e, s, p): return ok(s, [b"x"], tuple(plain()))
def do_headers_lists(e, s, p): return ok(s, [b"x"], [["X-A", "1"]])
def do_value_number(e, s, p): return ok(s, [b"x"], [("X-A", 1)])
def do_value_inject(e, s, p): return ok(s, [b"x"], [("X-A", "1\r\nX-Evil: 1")])
def do_value_newline(e, s, p): return ok(s, [b"x"], [("X-A", "1\nX-Evil: 1")])
def do_value_nul(e, s, p): return ok(s, [b"x"], [("X-A", "1\0X-Evil\0" + "1")])
def do_value_split(e, s, p): return ok(s, [b"x"], [("X-A", "1\r\n\r\n<X-Evil: 1>")])
def do_value_wide(e, s, p): return ok(s, [b"x"], [("X-A", "\u20ac")])
def do_name_inject(e, s, p): return ok(s, [b"x"], [("X-Evil: 1\r\nX-A", "1")])
def do_name_colon(e, s, p): return ok(s, [b"x"], [("X-Evil:", "1")])
def do_name_space(e, s, p): return ok(s, [b"x"], [("X-Evil A", "1")])
def do_name_empty(e, s, p): return ok(s, [b"x"], [("", "1")])
def do_start_twice(e, s, p):
    s("200 OK", plain())
    return ok(s, [b"x"])
def do_length_text(e, s, p): return ok(s, [b"x"], plain(("Content-Length", "1x")))
def do_length_minus(e, s, p): return ok(s, [b"x"], plain(("Content-Length", "-1")))
def do_length_two(e, s, p):
    return ok(s, [b"x"], plain(("Content-Length", "1"), ("content-length", "2")))
def do_length_short(e, s, p): return ok(s, [b"12345"], length(10))
def do_length_long(e, s, p): return ok(s, [b"12345"], length(3))
def do_length_none(e, s, p): return ok(s, [], length(10))
def do_file_short(e, s, p):
    return ok(s, e["wsgi.file_wrapper"](open(__file__, "rb")), length(10000000))

# Failures after the head.
def do_mid_raise(e, s, p): return ok(s, Body(p, raising(b"begun")))
def do_mid_text(e, s, p): return ok(s, Body(p, [b"begun", "text"]))
def do_mid_short(e, s, p): return ok(s, Body(p, [b"begun"]), length(10))
def do_mid_long(e, s, p): return ok(s, Body(p, [b"begun", b"and more"]), length(7))
def do_mid_long_last(e, s, p): return ok(s, Body(p, [b"begun", b"and more"]), length(5))
def do_mid_exc_info(e, s, p):
    write = s("200 OK", plain())
    write(b"begun")
    try:
        raise ValueError("deliberate")
    except ValueError:
        s("500 Too Late", plain(), sys.exc_info())
    return [b"never"]
def do_mid_exit(e, s, p):
    s("200 OK", plain())(b"begun")
    sys.exit(1)
