"""The row that each one-view application reads: a small table in a file of its own."""

import sqlite3
import tempfile
from pathlib import Path

PATH = Path(tempfile.mkdtemp(prefix="one-view-")) / "rows.db"

with sqlite3.connect(PATH) as db:
    db.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY, name TEXT)")
    db.executemany("INSERT INTO rows VALUES (?, ?)", [(n, f"row {n}") for n in range(100)])
