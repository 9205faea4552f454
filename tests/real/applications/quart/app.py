from quart import Quart, websocket

app = Quart(__name__)


@app.get("/")
async def index():
    return "Hello from Quart"


@app.websocket("/echo")
async def echo():
    await websocket.send(await websocket.receive())
