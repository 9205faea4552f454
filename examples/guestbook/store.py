"""The guestbook's entries in one SQLite file, for `guestbook.py` and `fill.py`.

Several processes and threads use the file at once: write-ahead logging lets readers continue while
one writes, and a writer waits for another up to `BUSY_SECONDS` instead of failing. No connection
may be open when a process forks, so each thread opens its own on first use and `prepare` closes the
one it needs.
"""

import fcntl
import os
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

BUSY_SECONDS = 10
PAGE = 50

SCHEMA = """
CREATE TABLE IF NOT EXISTS entry (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL,
    message TEXT NOT NULL,
    written TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%SZ', 'now'))
)
"""

_own = threading.local()


def path():
    """Returns the path of the database: GUESTBOOK_DB, or data/guestbook.db beside this file."""
    chosen = os.environ.get("GUESTBOOK_DB")
    return Path(chosen) if chosen else Path(__file__).parent / "data" / "guestbook.db"


def prepare():
    """Creates the file and its table if missing; safe when several processes do it.

    The change to write-ahead logging does not wait for other processes as statements do, so they
    take turns by a lock of their own.
    """
    path().parent.mkdir(parents=True, exist_ok=True)
    with open(path().with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with closing(_open()) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(SCHEMA)


def add(name, message):
    """Writes one entry. When it returns, the entry survives the end of this process."""
    _connection().execute("INSERT INTO entry (name, message) VALUES (?, ?)", (name, message))


def page(before=None):
    """Returns at most `PAGE` entries older than entry `before`, newest first; and whether more
    follow."""
    rows = (
        _connection()
        .execute(
            "SELECT id, name, message, written FROM entry WHERE id < ? ORDER BY id DESC LIMIT ?",
            (2**63 - 1 if before is None else before, PAGE + 1),
        )
        .fetchall()
    )
    return rows[:PAGE], len(rows) > PAGE


def _connection():
    connection = getattr(_own, "connection", None)
    if connection is None:
        connection = _own.connection = _open()
        connection.row_factory = sqlite3.Row
    return connection


def _open():
    # Every statement is its own transaction: nothing here needs two.
    connection = sqlite3.connect(path(), timeout=BUSY_SECONDS, isolation_level=None)
    connection.execute("PRAGMA synchronous = NORMAL")
    return connection
