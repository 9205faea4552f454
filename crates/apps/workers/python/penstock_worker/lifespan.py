"""ASGI's lifespan (spec 2.0): the application's own startup and shutdown.

`asgi.AsgiRunner` runs `startup` before READY and `shutdown` after the channel has closed. An
application that does not know lifespans raises or returns at once, and is served without.

# Invariants
- A failed startup is an exception with the application's message.
- No wait is longer than its deadline.
- Every request gets a shallow copy of `state`.
"""

from __future__ import annotations

import asyncio
from typing import Any, Awaitable, Callable, Dict, Optional

from .tracebacks import format_app_traceback, write_error

App = Callable[..., Awaitable[Any]]


class StartupFailed(Exception):
    """The application said `lifespan.startup.failed`."""


class Lifespan:
    """One run of the application with the scope `lifespan`."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._task: Optional[asyncio.Task[None]] = None
        self._events: asyncio.Queue[Dict[str, Any]] = asyncio.Queue()
        self._startup_done = asyncio.Event()
        self._shutdown_done = asyncio.Event()
        self._has_received = False
        self._message: Optional[str] = None
        self.state: Dict[str, Any] = {}

    async def startup(self) -> None:
        """Returns when the application may be served. Raises StartupFailed."""
        self._events.put_nowait({"type": "lifespan.startup"})
        self._task = asyncio.get_running_loop().create_task(self._run())
        await self._startup_done.wait()
        if self._message is not None:
            await asyncio.wait([self._task], timeout=1.0)
            raise StartupFailed(self._message or "the application's startup failed")

    async def shutdown(self, timeout: float) -> None:
        """Lets the application end, for at most `timeout` seconds."""
        task = self._task
        if task is None or task.done():
            return
        self._events.put_nowait({"type": "lifespan.shutdown"})
        try:
            await asyncio.wait_for(self._shutdown_done.wait(), timeout)
        except asyncio.TimeoutError:
            write_error(f"the application's shutdown took longer than {timeout:g} seconds\n")
        else:
            if self._message is not None:
                write_error(f"the application's shutdown failed: {self._message}\n")
        task.cancel()
        await asyncio.wait([task], timeout=1.0)

    async def _run(self) -> None:
        scope = {
            "type": "lifespan",
            "asgi": {"version": "3.0", "spec_version": "2.0"},
            "state": self.state,
        }
        try:
            await self._app(scope, self._receive, self._send)
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            # An error before it waits for the startup means that it knows no lifespans. A failure
            # that it reported itself is not reported twice.
            if self._has_received and self._message is None:
                text = format_app_traceback(error)
                write_error(f"error in the application's lifespan\n{text}")
        finally:
            self._startup_done.set()
            self._shutdown_done.set()

    async def _receive(self) -> Dict[str, Any]:
        event = await self._events.get()
        self._has_received = True
        return event

    async def _send(self, event: Dict[str, Any]) -> None:
        kind = event["type"]
        if kind == "lifespan.startup.complete" and not self._startup_done.is_set():
            self._startup_done.set()
        elif kind == "lifespan.startup.failed" and not self._startup_done.is_set():
            self._message = str(event.get("message") or "")
            self._startup_done.set()
        elif kind == "lifespan.shutdown.complete" and self._startup_done.is_set():
            self._shutdown_done.set()
        elif kind == "lifespan.shutdown.failed" and self._startup_done.is_set():
            self._message = str(event.get("message") or "")
            self._shutdown_done.set()
        else:
            raise RuntimeError(f"{kind!r} is out of place in a lifespan")
