"""Reactor workers forked from a template: each has its own event loop and its own startup."""

import importlib.util
import unittest

from channel_harness import channel, gone, open_frame, open_wsgi, wire

from harness import Template

ASGI = """
import os
loaded = os.getpid()
async def application(scope, receive, send):
    if scope["type"] == "lifespan":
        await receive()
        scope["state"]["started in"] = os.getpid()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        return
    facts = loaded, os.getpid(), scope["state"]["started in"]
    await send({"type": "http.response.start", "status": 200})
    await send({"type": "http.response.body", "body": repr(facts).encode()})
"""

FAILS = """
async def application(scope, receive, send):
    await receive()
    await send({"type": "lifespan.startup.failed", "message": "no database"})
"""

WSGI = """
import os, time
loaded = os.getpid()
def application(environ, start_response):
    time.sleep(0.001)
    start_response("200 OK", [])
    return [repr((loaded, os.getpid())).encode()]
"""


class Fork(unittest.TestCase):
    def fork(self, template):
        worker = template.fork(slots=2)
        worker.kinds = b"cf"
        return worker

    def body(self, worker, frame):
        worker.slots[0].send(frame)
        answer = worker.slots[0].frame()
        self.assertEqual((answer.kind, answer.flags), (channel.STREAM_RESPONSE, wire.FLAG_END))
        return answer.payload[answer.payload.index(b"(") :]

    def test_asgi(self):
        with Template(ASGI, ["--interface", "asgi", "--reactor", "tasks"]) as template:
            template.ready()
            self.assertNotIn("prevents_fork", template.described)
            with self.fork(template) as one, self.fork(template) as two:
                for worker in (one.ready(), two.ready()):
                    facts = eval(self.body(worker, open_frame(1)))
                    self.assertEqual(facts, (template.process.pid, worker.pid, worker.pid))
                one.slots[0].send(gone(1))
                one.slots[0].sock.close()
                self.assertEqual((one.wait(), one.log()), (0, ""))

    def test_a_startup_that_fails_fails_in_the_worker(self):
        with Template(FAILS, ["--interface", "asgi", "--reactor", "tasks"]) as template:
            template.ready()
            with self.fork(template) as worker, self.assertRaisesRegex(
                AssertionError, "no database"
            ):
                worker.ready()

    @unittest.skipUnless(importlib.util.find_spec("gevent"), "gevent is not installed")
    def test_greenlets(self):
        with Template(WSGI, ["--reactor", "gevent"]) as template:
            template.ready()
            self.assertNotIn("prevents_fork", template.described)
            with self.fork(template) as one, self.fork(template) as two:
                for worker in (one.ready(), two.ready()):
                    facts = eval(self.body(worker, open_wsgi(1)))
                    self.assertEqual(facts, (template.process.pid, worker.pid))


if __name__ == "__main__":
    unittest.main()
