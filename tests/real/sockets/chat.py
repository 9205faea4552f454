"""A Socket.IO server without a message queue: the session of a client lives in one process."""

import os

import socketio

# Polls are short, so that nothing lasts at the end.
server = socketio.AsyncServer(async_mode="asgi", ping_interval=2)
application = socketio.ASGIApp(server)


@server.event
async def say(_client, text):
    return {"text": text, "process": os.getpid()}
