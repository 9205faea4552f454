"""A WebSocket server on a free port that echoes every message; other requests are refused."""

import asyncio

from websockets.asyncio.server import serve


async def echo(connection):
    async for message in connection:
        await connection.send(message)


async def main():
    async with serve(echo, "127.0.0.1", 0, max_size=16 << 20) as server:
        host, port = server.sockets[0].getsockname()
        print(f"echo on {host}:{port}", flush=True)
        await server.serve_forever()


asyncio.run(main())
