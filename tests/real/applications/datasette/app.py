import sqlite3
from pathlib import Path

from datasette.app import Datasette

path = Path(__file__).with_name("data.db")
if not path.exists():
    with sqlite3.connect(path) as connection:
        connection.execute("create table if not exists gauges (name text, metres real)")
        connection.execute("insert into gauges values ('weir', 1.25)")

app = Datasette([str(path)])
