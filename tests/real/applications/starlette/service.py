from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute


async def index(request):
    return PlainTextResponse("Hello from Starlette")


async def echo(socket):
    await socket.accept()
    await socket.send_text(await socket.receive_text())
    await socket.close()


site = Starlette(routes=[Route("/", index), WebSocketRoute("/echo", echo)])
application = site
