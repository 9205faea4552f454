"""An ASGI application that echoes WebSocket messages and lists header names on request."""


async def application(scope, receive, send):
    if scope["type"] != "websocket":
        return
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        if message.get("text") == "fields":
            names = sorted({name.decode() for name, _ in scope["headers"]})
            await send({"type": "websocket.send", "text": " ".join(names)})
        else:
            message["type"] = "websocket.send"
            await send(message)
