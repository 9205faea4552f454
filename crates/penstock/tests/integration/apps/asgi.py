"""A path for each thing that ASGI allows or forbids; `do_a_b` handles `/a-b`."""

import asyncio
import os
import sys

closed = []
go = asyncio.Event()


async def app(scope, receive, send):
    path = scope["path"]
    try:
        await globals()["do_" + path[1:].replace("-", "_")](send)
    finally:
        closed.append(path)

def start(send, *headers, status=200):
    plain = (b"content-type", b"text/plain")
    return send({"type": "http.response.start", "status": status, "headers": [plain, *headers]})

def piece(send, body, more=True):
    return send({"type": "http.response.body", "body": body, "more_body": more})

async def ok(send, body, *headers, status=200):
    await start(send, *headers, status=status)
    await piece(send, body, False)

def length(number):
    return (b"content-length", str(number).encode())

async def do_(send): await ok(send, b"hello")
async def do_pid(send): await ok(send, str(os.getpid()).encode())
async def do_closed(send):
    await ok(send, " ".join(path for path in closed if path in LONG).encode())

# Allowed.
async def do_empty(send): await ok(send, b"")
async def do_defaults(send):
    await send({"type": "http.response.start", "status": 200})
    await send({"type": "http.response.body"})
async def do_chunks(send):
    await start(send)
    for chunk in [b"", b"a", b"", b"bc"]:
        await piece(send, chunk)
    await piece(send, b"", False)
async def do_views(send):
    await start(send)
    await piece(send, bytearray(b"ab"))
    await piece(send, memoryview(b"c"), False)
async def do_declared(send):
    await start(send, length(3))
    await piece(send, b"a")
    await piece(send, b"bc", False)
async def do_large(send): await ok(send, b"y" * 3000000)
async def do_no_content(send): await ok(send, b"dropped", status=204)
async def do_not_modified(send): await ok(send, b"dropped", (b"etag", b'"a"'), status=304)
async def do_cookies(send):
    await ok(send, b"x", (b"set-cookie", b"a=1"), (b"set-cookie", b"b=2"))
async def do_latin(send): await ok(send, b"x", (b"x-name", b"caf\xe9"))
async def do_hop(send):
    await ok(send, b"x", (b"connection", b"close"), (b"transfer-encoding", b"chunked"))
async def do_raise_late(send):
    await ok(send, b"whole")
    raise ValueError("deliberate")
async def do_waiting(send):
    await start(send)
    await piece(send, b"one")
    await asyncio.wait_for(go.wait(), 20)
    await piece(send, b"two", False)
async def do_go(send):
    go.set()
    await ok(send, b"")
async def do_endless(send):
    await start(send)
    while True:
        await piece(send, b"x" * 10000)

# Forbidden.
async def do_raise(send): raise ValueError("deliberate")
async def do_raise_after_start(send):
    await start(send, (b"x-never", b"1"))
    raise ValueError("deliberate")
async def do_exit(send): sys.exit(3)
async def do_return(send): pass
async def do_start_only(send): await start(send, (b"x-never", b"1"))
async def do_body_first(send): await piece(send, b"early")
async def do_start_twice(send):
    await start(send)
    await start(send)
async def do_text(send): await ok(send, "text")
async def do_number(send): await ok(send, 7)
async def do_status_text(send): await ok(send, b"x", status="200 OK")
async def do_status_interim(send): await ok(send, b"x", status=100)
async def do_status_large(send): await ok(send, b"x", status=999)
async def do_header_text(send): await ok(send, b"x", ("x-text", "1"))
async def do_header_one(send): await ok(send, b"x", (b"x-one",))
async def do_value_inject(send): await ok(send, b"x", (b"x-a", b"1\r\nX-Evil: 1"))
async def do_value_newline(send): await ok(send, b"x", (b"x-a", b"1\nX-Evil: 1"))
async def do_value_nul(send): await ok(send, b"x", (b"x-a", b"1\0X-Evil"))
async def do_name_inject(send): await ok(send, b"x", (b"x-a: 1\r\nX-Evil", b"1"))
async def do_name_colon(send): await ok(send, b"x", (b"x-a:", b"1"))
async def do_name_space(send): await ok(send, b"x", (b"x a", b"1"))
async def do_name_empty(send): await ok(send, b"x", (b"", b"1"))
async def do_length_text(send): await ok(send, b"x", (b"content-length", b"1x"))
async def do_length_minus(send): await ok(send, b"x", length(-1))
async def do_length_two(send): await ok(send, b"x", length(1), length(2))
async def do_length_short(send): await ok(send, b"begun", length(10))
async def do_length_long(send): await ok(send, b"begun", length(3))
async def do_length_none(send): await ok(send, b"", length(10))

# Failed within the body.
async def begun(send, *headers):
    await start(send, *headers)
    await piece(send, b"begun")
async def do_mid_raise(send):
    await begun(send)
    raise ValueError("deliberate")
async def do_mid_return(send): await begun(send)
async def do_mid_start(send):
    await begun(send)
    await start(send)
async def do_mid_text(send):
    await begun(send)
    await piece(send, "and more")
async def do_mid_short(send):
    await begun(send, length(10))
    await piece(send, b"", False)
async def do_mid_long(send):
    await begun(send, length(7))
    await piece(send, b"and more", False)
async def do_mid_exit(send):
    await begun(send)
    sys.exit(3)

LONG = {"/endless"} | {"/" + name[3:].replace("_", "-") for name in globals() if "do_mid" in name}
