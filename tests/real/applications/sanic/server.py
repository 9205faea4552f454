from sanic import Sanic, text

app = Sanic("penstock")


@app.get("/")
async def index(request):
    return text("Hello from Sanic")


@app.websocket("/echo")
async def echo(request, socket):
    await socket.send(await socket.recv())
