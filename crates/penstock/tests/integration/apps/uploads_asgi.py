"""An ASGI application that streams request bodies; see `uploads.rs`."""

import asyncio
import os


def note(text):
    with open("seen.txt", "a") as seen:
        seen.write(text + "\n")


async def gate(name):
    while not os.path.exists(name):
        await asyncio.sleep(0.003)


async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": message["type"] + ".complete"})
            if message["type"] == "lifespan.shutdown":
                return
    await Request(scope, receive, send).run()


class Request:
    def __init__(self, scope, receive, send):
        self.path = scope["path"]
        self.receive, self.send = receive, send

    async def run(self):
        note("begun")
        if self.path == "/echo":
            return await self.echo()
        if self.path == "/early":
            return await self.answer(b"early")
        if self.path.startswith("/behind/"):
            await gate(self.path[8:])
        elif self.path.startswith("/after/"):
            total = await self.rest()
            await gate(self.path[7:])
            return await self.answer(b"%d" % total)
        total = await self.rest()
        if total is not None:
            await self.answer(b"%d" % total)

    async def rest(self):
        total = 0
        while True:
            message = await self.receive()
            if message["type"] != "http.request":
                note("cut")
                return None
            total += len(message["body"])
            if not message["more_body"]:
                note(f"whole {total}")
                return total

    async def echo(self):
        await self.send({"type": "http.response.start", "status": 200, "headers": []})
        await self.send({"type": "http.response.body", "body": b"go", "more_body": True})
        while True:
            message = await self.receive()
            if message["type"] != "http.request":
                return note("cut")
            body = b"<" + message["body"] + b">" if message["body"] else b""
            await self.send({"type": "http.response.body", "body": body, "more_body": True})
            if not message["more_body"]:
                break
        await self.send({"type": "http.response.body", "body": b"end"})

    async def answer(self, body):
        await self.send({"type": "http.response.start", "status": 200, "headers": []})
        await self.send({"type": "http.response.body", "body": body})
