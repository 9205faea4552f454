import sqlite3

from fastapi import FastAPI
from one_view import PATH
from pydantic import BaseModel

app = FastAPI()
db = sqlite3.connect(PATH, check_same_thread=False)


class Row(BaseModel):
    id: int
    name: str


@app.get("/")
async def view() -> Row:
    found = db.execute("SELECT id, name FROM rows WHERE id = 7").fetchone()
    return Row(id=found[0], name=found[1])
