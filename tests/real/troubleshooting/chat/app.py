"""Refuses every WebSocket."""


async def application(scope, receive, send):
    await receive()
    await send({"type": "websocket.close"})
