"""A Socket.IO server without a message queue: a client's session lives in one process."""

import os

import socketio

# Polls are short, so that none delays the end of the test.
server = socketio.AsyncServer(async_mode="asgi", ping_interval=2)
application = socketio.ASGIApp(server)


@server.event
async def say(_client, text):
    return {"text": text, "process": os.getpid()}
