"""The smallest useful ASGI application: text, a slow response, a stream, a WebSocket echo."""

import asyncio
from urllib.parse import parse_qs

HELLO = b"Hello, world!\n"
TEXT = [(b"content-type", b"text/plain")]


async def application(scope, receive, send):
    """GET / says hello, /slow?ms=N after N ms, /stream?n=N&ms=M a line every M ms; a WebSocket is
    echoed."""
    if scope["type"] == "websocket":
        await echo(receive, send)
    elif scope["type"] == "http":
        asked = parse_qs(scope["query_string"].decode("latin-1"))
        milliseconds = int(asked.get("ms", ["100"])[0])
        if scope["path"] == "/slow":
            await asyncio.sleep(milliseconds / 1000)
        if scope["path"] == "/stream":
            await stream(send, int(asked.get("n", ["10"])[0]), milliseconds / 1000)
        else:
            await send({"type": "http.response.start", "status": 200, "headers": TEXT})
            await send({"type": "http.response.body", "body": HELLO})
    else:
        raise NotImplementedError(scope["type"])


async def stream(send, count, pause):
    await send({"type": "http.response.start", "status": 200, "headers": TEXT})
    for number in range(count):
        await send({"type": "http.response.body", "body": b"line %d\n" % number, "more_body": True})
        await asyncio.sleep(pause)
    await send({"type": "http.response.body"})


async def echo(receive, send):
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        text, data = message.get("text"), message.get("bytes")
        if text is not None:
            await send({"type": "websocket.send", "text": text})
        else:
            await send({"type": "websocket.send", "bytes": data})
