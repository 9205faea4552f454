"""WebSockets of ASGI applications: real worker processes; the test plays the server."""

import unittest

from channel_harness import ReactorWorker, channel, gone, open_frame, open_websocket, wire

APP = """
import asyncio, sys

async def application(scope, receive, send):
    if scope["type"] == "lifespan":
        raise NotImplementedError
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200})
        return await send({"type": "http.response.body", "body": b"hello"})
    event = await receive()
    assert event == {"type": "websocket.connect"}, event
    await globals()[scope["path"][1:]](scope, receive, send)

def log(text):
    sys.stderr.write(text + "\\n")

async def accept(send, **more):
    await send({"type": "websocket.accept", **more})

async def echo(scope, receive, send):
    await accept(send)
    while True:
        event = await receive()
        if event["type"] == "websocket.disconnect":
            return log(f"disconnect {event['code']} {event['reason']!r}")
        await send({**event, "type": "websocket.send"})

async def empties(scope, receive, send):
    await accept(send)
    while True:
        await send({"type": "websocket.send", "bytes": b""})

async def unoffered(scope, receive, send):
    await accept(send, subprotocol="b")

async def chat(scope, receive, send):
    await accept(send, subprotocol=scope["subprotocols"][1], headers=[(b"x-a", b"b")])
    await send({"type": "websocket.send", "text": repr((scope["type"], "method" in scope))})
    await send({"type": "websocket.close", "code": 4001, "reason": "enough"})
    log(f"after close: {await receive()}")
    try:
        await send({"type": "websocket.send", "text": "x"})
    except RuntimeError as error:
        log(f"refused: {error}")

async def refuse(scope, receive, send):
    await send({"type": "websocket.close"})

async def deny(scope, receive, send):
    assert "websocket.http.response" in scope["extensions"]
    await send({"type": "websocket.http.response.start", "status": 401, "headers": [(b"a", b"b")]})
    await send({"type": "websocket.http.response.body", "body": b"who ", "more_body": True})
    await send({"type": "websocket.http.response.body", "body": b"are you"})

async def return_at_once(scope, receive, send):
    pass

async def return_accepted(scope, receive, send):
    await accept(send)

async def raise_early(scope, receive, send):
    raise ValueError("early")

async def raise_late(scope, receive, send):
    await accept(send)
    raise ValueError("late")

async def send_early(scope, receive, send):
    await send({"type": "websocket.send", "text": "x"})

async def bad_code(scope, receive, send):
    await accept(send)
    await send({"type": "websocket.close", "code": 70000})

async def empty_event(scope, receive, send):
    await accept(send)
    await send({"type": "websocket.send"})

async def flood(scope, receive, send):
    await accept(send)
    async def one(size, letter):
        await send({"type": "websocket.send", "bytes": letter * size})
    await one(200_000, b"a")
    await asyncio.gather(one(100_000, b"b"), one(1, b"c"), one(300_000, b"d"), one(2, b"e"))
    await send({"type": "websocket.close"})

async def close_meanwhile(scope, receive, send):
    await accept(send)
    async def one():
        try:
            await send({"type": "websocket.send", "bytes": b"x" * 300_000})
        except RuntimeError as error:
            log(f"refused: {error}")
    await send({"type": "websocket.send", "text": "first"})
    task = asyncio.ensure_future(one())
    await asyncio.sleep(0)
    await send({"type": "websocket.close"})
    await task

async def late(scope, receive, send):
    await accept(send)
    event = await receive()
    while event["type"] != "websocket.disconnect":
        event = await receive()
    try:
        await send({"type": "websocket.send", "text": "x"})
    except OSError as error:
        log(f"send raised OSError: {error}")

async def slow_accept(scope, receive, send):
    event = await receive()
    log(f"before accept: {event}")
    await accept(send)
"""


class WebSockets(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.worker = ReactorWorker(APP)
        cls.worker.__enter__().ready()

    @classmethod
    def tearDownClass(cls):
        cls.worker.__exit__()

    stream = 10

    def open(self, path, **scope):
        """Opens a WebSocket; returns the frames received for it."""
        type(self).stream += 1
        self.worker.send(open_websocket(self.stream, path="/" + path, **scope))
        return self.worker.answer(self.stream)

    def accepted(self, path):
        answer = self.open(path)
        self.worker.read_until(lambda: answer.parts)
        self.assertEqual(answer.parts[0].kind, channel.ACCEPT)
        return answer

    def ended(self, path, **scope):
        answer = self.open(path, **scope)
        self.worker.read_until(lambda: answer.is_ended)
        return answer

    def wait_for_log(self, text):
        for _ in range(1000):
            if text in self.worker.log():
                return
            self.worker.ask(open_frame(1, path="/"))
        self.fail(f"{text!r} is not in {self.worker.log()}")

    def message(self, payload, is_text=False):
        self.worker.send(channel.encode_message(self.stream, int(is_text), payload))

    def test_messages_come_back_as_they_were(self):
        answer = self.accepted("echo")
        self.assertEqual(answer.strings, [""])
        messages = ["text é", b"bytes", "", b"", b"x" * 10_000]
        for text in messages:
            is_text = isinstance(text, str)
            self.message(text.encode() if is_text else text, is_text)
        self.worker.read_until(lambda: len(answer.messages) == len(messages))
        self.assertEqual(answer.messages, messages)
        self.worker.send(channel.encode_close(self.stream, 1001, "going"))
        self.worker.read_until(lambda: answer.is_ended)
        self.assertEqual(answer.parts[-1].kind, channel.CLOSE)
        self.wait_for_log("disconnect 1001 'going'")

    def test_all_window_comes_back(self):
        answer = self.accepted("echo")
        sizes = [1, 70_000, 100_000, 85_000, 5, 0]
        for size in sizes:
            self.message(b"x" * size)
        given = self.worker.given
        costs = sum(sizes) + 64 * len(sizes)
        self.worker.read_until(
            lambda: len(answer.messages) == len(sizes) and given.get(self.stream) == costs
        )
        # A message longer than the window uses the whole of it, in both directions.
        self.worker.send(channel.encode_window(self.stream, costs))
        self.message(b"y" * 400_000)
        whole = costs + channel.WINDOW_BYTES
        self.worker.read_until(
            lambda: given.get(self.stream) == whole and len(answer.messages) == 7
        )
        self.assertEqual(len(answer.messages[6]), 400_000)
        self.worker.send(channel.encode_close(self.stream, 1005, ""))
        self.worker.read_until(lambda: answer.is_ended)

    def test_messages_without_a_byte_wait_for_window_too(self):
        answer = self.accepted("empties")
        fit = channel.WINDOW_BYTES // 64
        self.worker.read_until(lambda: len(answer.messages) == fit)
        self.worker.ask(open_frame(1, path="/"))
        self.assertEqual(len(answer.messages), fit)
        self.worker.send(channel.encode_window(self.stream, 2 * 64))
        self.worker.read_until(lambda: len(answer.messages) == fit + 2)
        self.worker.send(channel.encode_close(self.stream, 1005, ""))
        self.worker.read_until(lambda: answer.is_ended)

    def test_a_subprotocol_that_was_not_offered_is_refused(self):
        answer = self.ended("unoffered", subprotocols=["a"])
        self.assertEqual([part.kind for part in answer.parts], [channel.RESET])
        self.assertEqual(answer.parts[0].flags, wire.FLAG_PROTOCOL_ERROR)
        self.wait_for_log("'b', which the client did not offer")

    def test_messages_wait_for_window_in_order(self):
        answer = self.accepted("flood")
        letters = lambda: b"".join(message[:1] for message in answer.messages)  # noqa: E731
        self.worker.read_until(lambda: letters() == b"a")
        self.worker.ask(open_frame(1, path="/"))
        self.assertEqual(letters(), b"a")
        self.worker.send(channel.encode_window(self.stream, 37_983))
        self.worker.ask(open_frame(1, path="/"))
        self.assertEqual(letters(), b"a")
        self.worker.send(channel.encode_window(self.stream, 1))
        self.worker.read_until(lambda: letters() == b"ab")
        self.worker.send(channel.encode_window(self.stream, channel.WINDOW_BYTES))
        self.worker.read_until(lambda: letters() == b"abc")
        self.worker.ask(open_frame(1, path="/"))
        self.assertEqual(letters(), b"abc")
        self.worker.send(channel.encode_window(self.stream, 65))
        self.worker.read_until(lambda: letters() == b"abcd")
        self.worker.send(channel.encode_window(self.stream, channel.WINDOW_BYTES))
        self.worker.read_until(lambda: answer.is_ended)
        self.assertEqual((letters(), answer.close), (b"abcde", (1000, "")))

    def test_a_close_while_a_message_waits(self):
        answer = self.ended("close_meanwhile")
        self.assertEqual((answer.messages, answer.close), (["first"], (1000, "")))
        self.wait_for_log("refused: 'what was to be sent' after the end")

    def test_subprotocol_headers_and_a_close(self):
        answer = self.ended("chat", subprotocols=["a", "chat.v1"])
        self.assertEqual(answer.strings, ["chat.v1", "x-a", "b"])
        self.assertEqual(answer.messages, ["('websocket', False)"])
        self.assertEqual(answer.close, (4001, "enough"))
        self.wait_for_log("after close: {'type': 'websocket.disconnect', 'code': 4001")
        self.wait_for_log("refused: 'websocket.send' after the end")
        # Crosses the worker's close.
        self.worker.send(channel.encode_close(self.stream, 1000, ""))
        self.worker.ask(open_frame(1, path="/"))

    def test_refusals(self):
        answer = self.ended("refuse")
        self.assertEqual((answer.strings, answer.kinds), (["403"], [channel.STREAM_RESPONSE]))
        answer = self.ended("deny")
        self.assertEqual((answer.strings, answer.body), (["401", "a", "b"], b"who are you"))
        self.assertEqual(answer.kinds, [channel.STREAM_RESPONSE])

    def test_returns(self):
        answer = self.ended("return_at_once")
        self.assertEqual(
            (answer.reason, answer.parts[0].flags), ("no answer", wire.FLAG_PROTOCOL_ERROR)
        )
        self.assertEqual(self.ended("return_accepted").close, (1000, ""))

    def test_exceptions(self):
        answer = self.ended("raise_early")
        self.assertEqual(answer.reason, "application raised ValueError")
        self.assertIn("error in WebSocket /raise_early\nTraceback", self.worker.log())
        self.assertEqual(self.ended("raise_late").close, (1011, ""))
        self.assertIn("ValueError: late", self.worker.log())

    def test_broken_rules(self):
        answer = self.ended("send_early")
        self.assertEqual(answer.reason, "'websocket.send' before 'websocket.accept'")
        self.assertEqual(answer.parts[0].flags, wire.FLAG_PROTOCOL_ERROR)
        for path in ("bad_code", "empty_event"):
            self.assertEqual(self.ended(path).close, (1011, ""))
        self.assertIn("a close code of 70000", self.worker.log())
        self.assertIn("a message that is neither text nor bytes", self.worker.log())

    def test_a_client_that_leaves(self):
        answer = self.accepted("late")
        self.worker.send(channel.encode_close(self.stream, 1006, ""))
        self.worker.read_until(lambda: answer.is_ended)
        self.wait_for_log("send raised OSError: the client has left")

    def test_a_client_that_leaves_before_the_accept(self):
        before = self.worker.log().count("error in")
        answer = self.open("slow_accept")
        self.worker.send(gone(self.stream))
        self.worker.read_until(lambda: answer.is_ended)
        self.assertEqual((answer.reason, answer.kinds), ("cancelled", [channel.RESET]))
        self.wait_for_log("before accept: {'type': 'websocket.disconnect', 'code': 1006")
        self.assertEqual(self.worker.log().count("error in"), before)

    def test_a_client_that_leaves_while_a_message_waits(self):
        answer = self.accepted("flood")
        self.worker.read_until(lambda: answer.messages)
        self.worker.send(channel.encode_close(self.stream, 1006, ""))
        self.worker.read_until(lambda: answer.is_ended)
        self.assertEqual(len(answer.messages), 1)


class End(unittest.TestCase):
    def test_the_end_of_the_server_is_a_broken_connection(self):
        with ReactorWorker(APP) as worker:
            worker.ready().send(open_websocket(1, path="/echo"))
            worker.read_until(lambda: worker.answer(1).parts)
            worker.channel.sock.close()
            self.assertEqual(worker.wait(), 0)
            self.assertEqual(worker.log(), "disconnect 1006 ''\n")


if __name__ == "__main__":
    unittest.main()
