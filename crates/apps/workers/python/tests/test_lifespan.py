"""ASGI's lifespan, and the shapes of an application that ASGI requires."""

import unittest

from channel_harness import ReactorWorker, open_frame, wire

HEAD = """
import asyncio, sys

def log(text):
    sys.stderr.write(text + "\\n")

async def hello(scope, send):
    await send({"type": "http.response.start", "status": 200})
    await send({"type": "http.response.body", "body": repr(scope["state"]).encode()})
"""

LIVES = """
async def application(scope, receive, send):
    if scope["type"] != "lifespan":
        scope["state"]["of request"] = True
        return await hello(scope, send)
    assert (await receive()) == {"type": "lifespan.startup"}
    scope["state"]["pool"] = "open"
    task = asyncio.ensure_future(asyncio.sleep(3600))
    await send({"type": "lifespan.startup.complete"})
    assert (await receive()) == {"type": "lifespan.shutdown"}
    log("shutting down")
    await asyncio.sleep(0)
    await send({"type": "lifespan.shutdown.complete"})
"""

FAILS = """
async def application(scope, receive, send):
    await receive()
    await send({"type": "lifespan.startup.failed", "message": "no database at db:5432"})
"""

FAILS_SAYING_NOTHING = """
async def application(scope, receive, send):
    await receive()
    await send({"type": "lifespan.startup.failed"})
    raise ValueError("told already")
"""

UNKNOWN = """
async def application(scope, receive, send):
    assert scope["type"] == "http"
    await hello(scope, send)
"""

RETURNS = """
async def application(scope, receive, send):
    if scope["type"] == "http":
        await hello(scope, send)
"""

RAISES_LATER = """
async def application(scope, receive, send):
    if scope["type"] == "http":
        return await hello(scope, send)
    await receive()
    raise ValueError("in my startup")
"""

SLOW_END = """
async def application(scope, receive, send):
    if scope["type"] == "http":
        return await hello(scope, send)
    await receive()
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await asyncio.sleep(3600)
"""

FAILS_AT_THE_END = """
async def application(scope, receive, send):
    if scope["type"] == "http":
        return await hello(scope, send)
    await receive()
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await send({"type": "lifespan.shutdown.failed", "message": "still in use"})
"""


class Lifespan(unittest.TestCase):
    def run_through(self, source, **options):
        """Returns the state that a request saw, and the log, of a whole life."""
        with ReactorWorker(HEAD + source, **options) as worker:
            answer = worker.ready().ask(open_frame(1))
            worker.channel.sock.close()
            self.assertEqual(worker.wait(), 0)
            return eval(answer.body), worker.log()

    def boot_failure(self, source, entry="app:application"):
        with ReactorWorker(HEAD + source, entry) as worker:
            frame = worker.control.frame()
            self.assertEqual(frame.kind, wire.BOOT_FAILED, frame)
            self.assertEqual(worker.wait(), 1)
            return frame.payload.decode()

    def test_startup_state_and_shutdown(self):
        state, log = self.run_through(LIVES)
        self.assertEqual(state, {"pool": "open", "of request": True})
        self.assertEqual(log, "shutting down\n")

    def test_each_request_has_a_state_of_its_own(self):
        with ReactorWorker(HEAD + LIVES.replace("= True", "= len(scope['state'])")) as worker:
            worker.ready()
            bodies = {worker.ask(open_frame(stream)).body for stream in range(3)}
            self.assertEqual(bodies, {b"{'pool': 'open', 'of request': 1}"})

    def test_a_failed_startup_is_told(self):
        self.assertIn("StartupFailed: no database at db:5432", self.boot_failure(FAILS))
        text = self.boot_failure(FAILS_SAYING_NOTHING)
        self.assertIn("the application's startup failed", text)

    def test_applications_without_lifespan(self):
        for source in (UNKNOWN, RETURNS):
            with self.subTest(source):
                self.assertEqual(self.run_through(source), ({}, ""))

    def test_an_error_after_the_startup_was_asked_for_is_reported(self):
        state, log = self.run_through(RAISES_LATER)
        self.assertEqual(state, {})
        self.assertIn("error in the application's lifespan\nTraceback", log)
        self.assertIn("ValueError: in my startup", log)

    def test_a_shutdown_that_takes_too_long(self):
        _, log = self.run_through(SLOW_END, stop_timeout=0.3)
        self.assertRegex(log, r"^the application's shutdown took longer than 0\.\d+ seconds\n$")

    def test_a_shutdown_that_fails(self):
        _, log = self.run_through(FAILS_AT_THE_END)
        self.assertEqual(log, "the application's shutdown failed: still in use\n")

    def test_what_is_no_application_of_this_kind(self):
        for source, guess in (
            ("class application:\n    def __init__(self, scope): pass\n", "ASGI 2"),
            ("def application(scope): pass\n", "ASGI 2"),
            ("def application(environ, start_response): pass\n", 'kind = "wsgi"'),
        ):
            with self.subTest(source):
                text = self.boot_failure(source)
                self.assertIn(guess, text)


if __name__ == "__main__":
    unittest.main()
