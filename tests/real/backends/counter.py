"""An HTTP server that counts its requests: `counter.py NAME ADDRESS FILE`, standard library only.

A `POST` or `PUT` with an id as its body appends a line with method and id to the file, in one write
and before the response. `GET /health` is answered at once. The response names the server and the id
from the request's query, so that a response meant for another request shows. Work takes a random
time before the line and after it, so that a kill or a stop at random hits requests on either side.
"""

import asyncio
import os
import random
import sys

WORK_SECONDS = 0.015


async def serve(reader, writer, name, file):
    """Answers the requests of one connection, one after the other."""
    try:
        while head := await read_head(reader):
            (method, target), length = head
            body = await reader.readexactly(length)
            if target != "/health":
                await asyncio.sleep(random.uniform(0, WORK_SECONDS))
                if method in ("POST", "PUT"):
                    # With O_APPEND one write is one place in the file, even with other writers.
                    os.write(file, method.encode() + b" " + body + b"\n")
                    await asyncio.sleep(random.uniform(0, WORK_SECONDS))
            answer = f"{name} {method} {target.partition('?')[2]}".encode()
            fields = f"Content-Type: text/plain\r\nContent-Length: {len(answer)}"
            writer.write(f"HTTP/1.1 200 OK\r\n{fields}\r\n\r\n".encode() + answer)
            await writer.drain()
    except (OSError, asyncio.IncompleteReadError):
        # The client has closed; the appended line stays.
        pass
    finally:
        writer.close()


async def read_head(reader):
    """Reads the next request's method, target and body length; None at the end."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    length = 0
    for line in lines:
        field, _, value = line.partition(":")
        if field.lower() == "content-length":
            length = int(value)
    return first.split(" ")[:2], length


async def main():
    name, address, path = sys.argv[1:]
    host, _, port = address.rpartition(":")
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    server = await asyncio.start_server(
        lambda reader, writer: serve(reader, writer, name, file), host, int(port), backlog=1024
    )
    host, port = server.sockets[0].getsockname()
    print(f"counting on {host}:{port}", flush=True)
    await server.serve_forever()


asyncio.run(main())
