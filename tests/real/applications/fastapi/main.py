from fastapi import FastAPI, WebSocket

app = FastAPI()


@app.get("/")
def index():
    return {"hello": "FastAPI"}


@app.websocket("/echo")
async def echo(socket: WebSocket):
    await socket.accept()
    await socket.send_text(await socket.receive_text())
    await socket.close()
