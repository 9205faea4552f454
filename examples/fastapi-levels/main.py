"""Water levels with FastAPI: readings by JSON, live by Server-Sent Events and by WebSocket.

Readings are in the memory of one process, so this example runs in one: see penstock.toml. Every
listener gets every new reading; one that does not keep up loses the oldest.
"""

import asyncio
import json
from contextlib import asynccontextmanager, contextmanager

from fastapi import FastAPI, WebSocket, WebSocketDisconnect
from fastapi.responses import HTMLResponse, StreamingResponse
from pydantic import BaseModel, Field

KEPT = 100
BEHIND_MAX = 16


class Reading(BaseModel):
    """One reading of a gauge."""

    gauge: str = Field(min_length=1, max_length=40)
    metres: float = Field(ge=-10, le=100)


@asynccontextmanager
async def lifespan(app):
    app.state.readings, app.state.listeners = [], set()
    yield


app = FastAPI(title="Levels", lifespan=lifespan)


@app.get("/", response_class=HTMLResponse)
async def page():
    return PAGE


@app.get("/readings")
async def readings() -> list[Reading]:
    return app.state.readings


@app.post("/readings", status_code=201)
async def add(reading: Reading) -> Reading:
    app.state.readings = [*app.state.readings, reading][-KEPT:]
    for queue in app.state.listeners:
        if queue.full():
            queue.get_nowait()
        queue.put_nowait(reading)
    return reading


@app.get("/live")
async def live():
    async def events():
        with listening() as queue:
            yield ": the next readings follow\n\n"
            while True:
                yield f"data: {(await queue.get()).model_dump_json()}\n\n"

    return StreamingResponse(events(), media_type="text/event-stream")


@app.websocket("/socket")
async def socket(websocket: WebSocket):
    """Receives readings as JSON and sends all readings."""
    await websocket.accept()
    with listening() as queue:
        telling = asyncio.create_task(tell(websocket, queue))
        try:
            while True:
                await add(Reading(**json.loads(await websocket.receive_text())))
        except WebSocketDisconnect:
            pass
        finally:
            telling.cancel()


async def tell(websocket, queue):
    while True:
        await websocket.send_text((await queue.get()).model_dump_json())


@contextmanager
def listening():
    queue = asyncio.Queue(BEHIND_MAX)
    app.state.listeners.add(queue)
    try:
        yield queue
    finally:
        app.state.listeners.discard(queue)


PAGE = """<!doctype html>
<meta charset="utf-8"><title>Levels</title>
<h1>Levels</h1>
<form id="form"><input name="gauge" placeholder="gauge"> <input name="metres" placeholder="metres"> <button>Add</button></form>
<ul id="list"></ul>
<script>
  const show = (reading) => {
    const item = document.createElement("li");
    item.textContent = `${reading.gauge}: ${reading.metres} m`;
    list.prepend(item);
  };
  fetch("readings").then((answer) => answer.json()).then((all) => all.forEach(show));
  new EventSource("live").onmessage = (event) => show(JSON.parse(event.data));
  form.onsubmit = (event) => {
    event.preventDefault();
    const [gauge, metres] = [form.gauge.value, Number(form.metres.value)];
    fetch("readings", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ gauge, metres }) });
  };
</script>
"""
