"""The native part of an ASGI worker against the scripts: the same frames and the same application must
give the same bytes, events and log.

Applications are programs of random steps, made from a number in the request: what they send, what
they await and how, where they fail. The frames are right ones, cut and changed ones, in random
groups, with cancellations in between. One process of each plays all cases in its own loop.
"""

import asyncio
import contextlib
import gc
import hashlib
import json
import os
import random
import select
import socket
import struct
import subprocess
import sys
import time
import unittest
import warnings
import weakref

from channel_harness import channel, gone, open_frame, open_websocket

from harness import ROOT

NATIVE = os.environ.get("PENSTOCK_NATIVE", "off")
CASES = int(os.environ.get("PENSTOCK_FUZZ_CASES", "500"))
DEADLINE = 300.0

#: Plays each line of standard input, groups of frames in hexadecimal, to a reactor of its own; writes
#: what came back, what the applications saw, what was logged and how the reactor ended.
SERVER = r"""
import asyncio, collections, contextvars, gc, inspect, io, json, os, random, re, socket, sys
import types, warnings
from penstock_worker import asgi, channel, native, wire

assert bool(native.module) == (os.environ["PENSTOCK_NATIVE"] != "off")
gc.disable()
sys.unraisablehook = lambda given: seen.append(["unraisable", repr(given.exc_value)])
warnings.simplefilter("always")
variable = contextvars.ContextVar("variable", default=None)
seen = []

class Bytes(bytes):
    pass

class Text(str):
    pass

class Event(dict):
    pass

class Own(BaseException):
    pass

def start_event(chance):
    status = chance.choice([200] * 12 + [404, 204, 599, 600, 199, 0, -1, 1 << 70, True, 200.0, "200", None])
    headers = chance.choice([
        lambda: [(b"content-type", b"text/plain"), (b"x", b"")],
        lambda: [(b"content-type", b"text/plain")],
        lambda: [],
        lambda: (),
        lambda: None,
        lambda: [[b"a", b"b"], (b"c", b"\xe4\t")],
        lambda: ((b"a", b"b"), [b"c", b"d"]),
        lambda: ((name, b"v") for name in (b"g", b"h")),
        lambda: {(b"a", b"b")},
        lambda: {b"ab": 1},
        lambda: [(b"a", "text")],
        lambda: [("a", b"b")],
        lambda: [(b"a", b"b\nc")],
        lambda: [(b"a\x7f", b"b")],
        lambda: [(b"a", b"b\0c")],
        lambda: [(b"a", b"b", b"c")],
        lambda: [(b"a",)],
        lambda: [b"ab"],
        lambda: [(bytearray(b"a"), memoryview(b"b"))],
        lambda: [(Bytes(b"a"), b"b")],
        lambda: [(b"a", b"v" * 300_000)],
        lambda: [(b"a", b"v" * (256 << 10))],
        lambda: [(b"", b"")] * 40_000,
        lambda: 7,
    ])()
    event = {"type": "http.response.start", "status": status, "headers": headers}
    if chance.random() < 0.1:
        event.pop(chance.choice(["status", "headers", "type"]))
    return event

def body_event(chance):
    body = chance.choice([
        b"hello", b"", b"x" * 70_000, b"y" * 65_536, b"z" * 300_000, bytearray(b"array"),
        memoryview(b"view"), "text", None, 3, Bytes(b"own"), [b"list"],
    ])
    more = chance.choice([False] * 8 + [True] * 3 + [None, 0, 1, "", "more"])
    event = {"type": "http.response.body", "body": body, "more_body": more}
    if chance.random() < 0.3:
        event.pop(chance.choice(["body", "more_body"]))
    return event

def any_event(chance):
    number = chance.random()
    if number < 0.1:
        return chance.choice([
            None, [], "event", {}, {"type": None}, {"type": 3}, {"type": "http.response.trailers"},
            {"type": "websocket.accept"}, {"type": b"http.response.start"}, {"type": []},
        ])
    event = start_event(chance) if number < 0.5 else body_event(chance)
    kind = chance.random()
    if kind < 0.05:
        return Event(event)
    if kind < 0.1:
        return collections.OrderedDict(event)
    if kind < 0.13 and "type" in event:
        event["type"] = Text(event["type"])
    if kind > 0.97:
        return list(event.items())
    return event

def shown(value):
    if isinstance(value, dict):
        return {str(key): shown(value[key]) for key in value}
    if isinstance(value, (list, tuple)):
        return [shown(one) for one in value]
    if isinstance(value, bytes) and len(value) > 50:
        return f"{len(value)} bytes"
    return repr(value)

@types.coroutine
def by_generator(call):
    return (yield from call)

@types.coroutine
def by_iterator(call):
    return (yield from call.__await__())

async def do(step, chance, receive, send, events):
    if step == "receive":
        return await receive()
    if step == "receive in a task":
        return await asyncio.create_task(receive())
    if step == "receive with a limit":
        return await asyncio.wait_for(receive(), None)
    if step == "receive for a moment":
        task = asyncio.ensure_future(receive())
        await asyncio.wait([task], timeout=0)
        await asyncio.sleep(0)
        if not task.done():
            task.cancel()
        done = (await asyncio.gather(task, return_exceptions=True))[0]
        return done if isinstance(done, dict) else type(done).__name__
    if step == "send":
        return await send(next(events))
    if step == "send by name":
        return await send(event=next(events))
    if step == "send in a task":
        return await asyncio.create_task(send(next(events)))
    if step == "send two":
        both = await asyncio.gather(send(next(events)), send(next(events)), return_exceptions=True)
        return [repr(one) for one in both]
    if step == "send shielded":
        return await asyncio.shield(send(next(events)))
    if step == "never await":
        send(next(events))
        return
    if step == "close":
        call = send(next(events))
        call.close()
        call.close()
        return await call
    if step == "throw":
        call = chance.choice([lambda: send(next(events)), receive])()
        return call.throw(ValueError("thrown"))
    if step == "throw a class":
        return receive().throw(KeyError)
    if step == "await twice":
        call = send(next(events))
        await call
        return await call
    if step == "begin with a value":
        call = receive()
        try:
            return call.send(1)
        finally:
            call.close()
    if step == "by a generator":
        return await by_generator(chance.choice([lambda: send(next(events)), receive])())
    if step == "by an iterator":
        return await by_iterator(chance.choice([lambda: send(next(events)), receive])())
    if step == "two wait":
        call = receive()
        async def wait():
            return await call
        both = [asyncio.create_task(wait()) for _ in range(2)]
        for _ in range(3):
            await asyncio.sleep(0)
        for task in both:
            task.cancel()
        done = await asyncio.gather(*both, return_exceptions=True)
        return [repr(one) for one in done]
    if step == "by hand":
        call = send(next(events))
        try:
            call.send(None)
        except StopIteration as stop:
            return repr(stop.value)
        return await call
    if step == "look":
        call = receive()
        text = [
            asyncio.iscoroutine(call), inspect.iscoroutine(call), inspect.isawaitable(call),
            isinstance(call, collections.abc.Coroutine), inspect.getcoroutinestate(call),
            call.__name__, call.__qualname__, call.cr_running, call.cr_await, call.cr_code.co_name,
            sorted(inspect.getcoroutinelocals(call)),
        ]
        call.close()
        for method in (receive, send):
            text += [
                inspect.iscoroutinefunction(method), asyncio.iscoroutinefunction(method),
                inspect.ismethod(method), method.__name__, method.__doc__,
                str(inspect.signature(method)), method.__self__ is receive.__self__,
            ]
        return text + [inspect.getcoroutinestate(call), call.cr_code.co_name]
    if step == "arguments":
        chance.choice([lambda: send(), lambda: send(1, 2), lambda: receive(1), lambda: send(x=1)])()
    if step == "pause":
        return await asyncio.sleep(0)
    if step == "raise":
        raise chance.choice([
            ValueError("asked\nto"), KeyError("x"), SystemExit(3), asyncio.CancelledError(),
            OSError("own"), Own("own"), StopIteration(1), GeneratorExit(), KeyboardInterrupt(),
        ])
    if step == "cancel":
        asyncio.current_task().cancel()
        return await asyncio.sleep(0)

STEPS = (
    ["send"] * 40 + ["receive"] * 12 + ["pause"] * 6 + ["raise"] * 4 + ["send in a task"] * 4
    + ["receive in a task", "receive with a limit", "send by name", "send two", "send shielded",
       "never await", "close", "throw", "throw a class", "await twice", "begin with a value",
       "by hand", "look", "arguments", "cancel", "by a generator", "by an iterator", "two wait"] + ["receive for a moment"] * 4
)

def usual_events(chance):
    yield {"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]}
    while True:
        yield body_event(chance) if chance.random() < 0.8 else any_event(chance)

def random_events(chance):
    while True:
        yield any_event(chance)

async def application(scope, receive, send):
    number = int(scope["query_string"] or b"0")
    chance = random.Random(number)
    task, me = asyncio.current_task(), [number]
    seen.append(["scope", number, repr(scope)])
    assert variable.get() is None
    variable.set(number)
    scope["state"]["mine"] = number
    scope["asgi"]["mine"] = number
    scope["extensions"]["mine"] = number
    scope["headers"].append((b"mine", b"1"))
    events = usual_events(chance) if chance.random() < 0.7 else random_events(chance)
    if chance.random() < 0.5:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]})
        if chance.random() < 0.7:
            await send({"type": "http.response.body", "body": b"hello"})
        events = usual_events(chance)
        next(events)
    is_tolerant = chance.random() < 0.7
    for _ in range(chance.randrange(8)):
        step = chance.choice(STEPS)
        try:
            result = await do(step, chance, receive, send, events)
            seen.append([number, step, shown(result)])
        except Exception as error:
            seen.append([number, step, type(error).__name__, str(error)])
            if not is_tolerant:
                raise
        except BaseException as error:
            seen.append([number, step, type(error).__name__, str(error)])
            raise
        assert asyncio.current_task() is task and variable.get() == number

class Awaited:
    def __init__(self, coroutine):
        self.coroutine = coroutine
    def __await__(self):
        return self.coroutine.__await__()

def entry(scope, receive, send):
    coroutine = application(scope, receive, send)
    # Not each application is a coroutine function.
    kind = int(scope["query_string"] or b"0") % 11
    if kind == 1:
        return Awaited(coroutine)
    if kind == 2:
        coroutine.close()
        return None
    return coroutine

class Log(list):
    def write(self, text):
        self.append(text)
    def flush(self):
        pass

def by_stream(entry):
    # Which of two streams goes first is not the same in both: a task starts a turn later.
    return str(entry[1] if entry[0] == "scope" else entry[0])

def masked(data):
    # The time that a response took.
    frames, at = [], 0
    while len(data) - at >= 8:
        size = 8 + int.from_bytes(data[at + 4 : at + 8], "little")
        frame = bytearray(data[at : at + size])
        if frame[0] == channel.STREAM_RESPONSE:
            frame[12:16] = bytes(4)
        frames.append(bytes(frame).hex())
        at += size
    return frames, data[at:].hex()

def run(groups):
    seen.clear()
    sys.stderr = log = Log()
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    errors = []
    loop.set_exception_handler(lambda _, context: errors.append(
        [context["message"], repr(context.get("exception"))]))
    ours, theirs = socket.socketpair()
    files, their_files = socket.socketpair()
    for one in (ours, theirs):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    ours.setblocking(False)
    reactor = asgi.AsgiReactor(loop, entry, {"shared": 1}, theirs, their_files)
    got = b""
    def turn(times):
        nonlocal got
        for _ in range(times):
            try:
                loop.run_until_complete(asyncio.sleep(0))
            except (SystemExit, KeyboardInterrupt) as error:
                seen.append(["let through", repr(error)])
            try:
                while True:
                    piece = ours.recv(1 << 20)
                    if not piece:
                        break
                    got += piece
            except OSError:
                pass
    for group in groups:
        try:
            ours.sendall(group)
        except OSError as error:
            seen.append(["not sent", type(error).__name__])
        # Until each of them has come to its end, or waits for the client.
        turn(60)
    ours.shutdown(socket.SHUT_WR)
    turn(4)
    end = repr(reactor.closed.exception()) if reactor.closed.done() else "open"
    tasks = reactor.disconnect_all()
    turn(20)
    left = sum(not task.done() for task in tasks)
    for task in asyncio.all_tasks(loop):
        task.cancel()
    turn(20)
    streams = len(reactor._streams) + len(reactor._ended_running)
    reactor.close()
    del tasks, reactor
    loop.run_until_complete(asyncio.sleep(0.002))
    loop.close()
    ours.close()
    files.close()
    sys.stderr = sys.__stderr__
    frames, rest = masked(got)
    gc.collect()
    # Where a coroutine is given up depends on the frames between.
    text = re.sub(r"[^\n]*(RuntimeWarning: coroutine '[^']*' was never awaited)\n(  [^\n]*\n)?",
                  r"\1\n", "".join(sorted(log)))
    seen.sort(key=by_stream)
    frames.sort(key=lambda frame: frame[16:24])
    return {"sent": frames, "rest": rest, "seen": seen, "end": end, "left": left,
            "streams": streams, "log": text, "errors": sorted(errors)}

for line in sys.stdin:
    print(json.dumps(run([bytes.fromhex(part) for part in line.split()])), flush=True)
"""


def input_frame(stream, piece, flags=0):
    return struct.pack("<BBHII", channel.INPUT, flags, 0, 4 + len(piece), stream) + piece


def window(stream, size):
    return struct.pack("<BBHIII", channel.WINDOW, 0, 0, 8, stream, size)


def opened(chance, stream):
    """An OPEN, mostly a plain one."""
    query = str(chance.randrange(1 << 30)).encode()
    fields = [(b"host", b"example.com"), (b"accept", b"*/*")]
    for number in range(chance.randint(0, 4)):
        size = chance.choice([0, 1, 20, 255, 2000])
        name = chance.choice([b"cookie", b"x-%d" % number, b"x" * 40, b""])
        fields.append((name, chance.randbytes(size)))
    changed = {
        "query_string": query,
        "path": chance.choice(["/", "/\xe4\u20ac", "/" + "p" * 300, ""]),
        "headers": fields,
    }
    if chance.random() < 0.2:
        changed["client"] = chance.choice([None, ("::1", 1), ("127.0.0.1", 65535)])
    if chance.random() < 0.1:
        changed["server"] = ("unix.sock", None)
    if chance.random() < 0.2:
        chain = chance.choice([[], ["pem"]])
        changed["extensions"] = {"tls": {"server_cert": None, "client_cert_chain": chain}}
    if chance.random() < 0.05:
        changed[f"other-{chance.randrange(30)}"] = chance.choice([1, -1, [b"x", ["y"]], {"a": {}}])
    if chance.random() < 0.07:
        return open_websocket(stream, **changed)
    if chance.random() < 0.1:
        return open_frame(stream, chance.randbytes(9), 4, **changed)
    body = chance.randbytes(chance.choice([0, 0, 0, 3, 5000, 70_000]))
    if chance.random() < 0.03:
        body = chance.randbytes(300_000)
    return open_frame(stream, body, **changed)


def cases(seed):
    """Groups of frames: those of a group are sent at once."""
    chance = random.Random(seed)
    for _ in range(CASES):
        groups = []
        for _ in range(chance.randint(1, 4)):
            frames = []
            for _ in range(chance.choice([1, 1, 2, 5])):
                kind, stream = chance.random(), chance.randrange(40)
                if kind < 0.75:
                    frames.append(opened(chance, stream))
                elif kind < 0.85:
                    frames.append(gone(stream if kind < 0.8 else chance.randrange(8)))
                elif kind < 0.92:
                    frames.append(window(stream, chance.choice([1, 70_000, 1 << 20])))
                else:
                    frames.append(input_frame(stream, b"piece", chance.choice([0, 1])))
            # A large group would come in two parts, with any number of turns in between.
            is_large = sum(map(len, frames)) > 200_000
            groups += frames if is_large else [b"".join(frames)]
        if chance.random() < 0.25:
            changed = bytearray(groups[-1])
            for _ in range(chance.randint(1, 3)):
                edge = chance.choice([20, 60, len(changed)])
                changed[chance.randrange(min(edge, len(changed)))] = chance.choice(
                    [0, 1, 2, 3, 4, 8, 41, 48, 64, 91, 97, 115, 117, 122, 123, 127, 128, 255]
                )
            groups[-1] = bytes(changed)
        if chance.random() < 0.2:
            cut = chance.randrange(len(groups[-1]))
            groups[-1:] = [groups[-1][:cut] or b"\0", groups[-1][cut:]]
        yield [group for group in groups if group]


def outcomes(setting, lines):
    environ = {**os.environ, "PENSTOCK_NATIVE": setting, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-B", "-c", SERVER],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        env=environ,
    )
    if done.returncode or done.stderr:
        raise AssertionError(done.stderr[-5000:])
    return [json.loads(line) for line in done.stdout.splitlines()]


@unittest.skipIf(NATIVE == "off", "PENSTOCK_NATIVE names no native part")
class NativePart(unittest.TestCase):
    maxDiff = None

    def test_frames_and_applications_have_the_same_outcome_in_both(self):
        seed = int(os.environ.get("PENSTOCK_FUZZ_SEED", "1"))
        lines = [" ".join(group.hex() for group in groups) for groups in cases(seed)]
        scripts, native = outcomes("off", lines), outcomes(NATIVE, lines)
        self.assertEqual(len(scripts), CASES)
        for number, (one, other) in enumerate(zip(scripts, native)):
            for part in one:
                self.assertEqual(one[part], other[part], f"seed {seed}, case {number}, {part}")
        # The cases reach what they are for.
        digests = {
            hashlib.sha256(repr(outcome["sent"]).encode()).hexdigest() for outcome in scripts
        }
        self.assertGreater(len(digests), CASES // 2)
        ends = {outcome["end"][:9] for outcome in scripts}
        self.assertLessEqual({"None", "WireError"}, ends)
        log = "".join(outcome["log"] for outcome in scripts)
        for text in ("bad headers", "after the end", "never awaited", "ValueError: asked"):
            self.assertIn(text, log)


async def application(scope, receive, send):
    """Answers as its path says: in one piece, with a task for each call, or with a mistake."""
    await receive()
    start = {"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]}
    if scope["path"] == "/tasks":
        await asyncio.create_task(send(start))
        await asyncio.sleep(0)
        await asyncio.gather(send({"type": "http.response.body", "body": b"hello"}))
        return
    if scope["path"] == "/wait":
        waiting = asyncio.ensure_future(receive())
        await asyncio.sleep(0)
        waiting.cancel()
    if scope["path"] == "/mistakes":
        send(start).close()
        with contextlib.suppress(RuntimeError):
            await send({"type": "http.response.body"})
        with contextlib.suppress(TypeError):
            send()
        with contextlib.suppress(ValueError):
            send(start).throw(ValueError())
    await send(start)
    await send({"type": "http.response.body", "body": b"hello"})


class Kept:
    """An object that a weak reference can be made of."""


#: Serves one request of `application`, which the other text defines, in a reactor of its own.
ONE_REQUEST = r"""
import asyncio, gc, os, socket, sys
from channel_harness import open_frame
from penstock_worker import asgi, forks

loop = asyncio.new_event_loop()
asyncio.set_event_loop(loop)
ours, theirs = socket.socketpair()
files, their_files = socket.socketpair()
ours.settimeout(60)
START = {"type": "http.response.start", "status": 200, "headers": []}
BODY = {"type": "http.response.body", "body": b"hello"}
reactor = asgi.AsgiReactor(loop, None, {}, theirs, their_files)
forks.close_on_fork(theirs, their_files)

def turn(times=20):
    for _ in range(times):
        loop.call_soon(loop.stop)
        loop.run_forever()

def serve():
    reactor._app = application
    ours.sendall(open_frame(1))
    turn()
"""


@unittest.skipIf(NATIVE == "off", "PENSTOCK_NATIVE names no native part")
class InAnotherProcess(unittest.TestCase):
    def output(self, text):
        paths = os.pathsep.join([str(ROOT), os.path.dirname(os.path.abspath(__file__))])
        done = subprocess.run(
            [sys.executable, "-B", "-c", ONE_REQUEST + text],
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            env={**os.environ, "PYTHONPATH": paths},
        )
        self.assertEqual(done.returncode, 0, done.stderr[-5000:])
        return done.stdout

    def test_an_application_that_ignores_its_end_is_given_up(self):
        output = self.output(r"""
class Once:
    def __init__(self):
        self.future = loop.create_future()
    def __await__(self):
        self.future._asyncio_future_blocking = True
        yield self.future

times, waiting = 0, None
async def application(scope, receive, send):
    global times, waiting
    waiting = Once()
    while True:
        try:
            await waiting
        except BaseException:
            times += 1
            if times == 1000:
                os._exit(1)

loop.set_exception_handler(lambda _, context: None)
serve()
stream = reactor._streams.pop(1)
sys.unraisablehook = lambda given: print(given.exc_value)
# Only the callback of the future holds the task.
callbacks = list(waiting.future._callbacks)
stream.task = None
del stream
for callback, _ in callbacks:
    waiting.future.remove_done_callback(callback)
del callback, callbacks, _
gc.collect()
print("given up", times)
""")
        lines = output.splitlines()
        self.assertEqual(lines[-1], "given up 2")
        self.assertEqual(set(lines[:-1]), {"coroutine ignored GeneratorExit"})

    def test_a_forked_process_leaves_the_number_of_the_channel_alone(self):
        output = self.output(r"""
async def application(scope, receive, send):
    child = os.fork()
    if child == 0:
        # A socket of its own has the number that the channel had.
        others = [socket.socket() for _ in range(4)]
        mine, other = socket.socketpair()
        mine.setblocking(False)
        os.dup2(other.fileno(), reactor._fd)
        mine.send(open_frame(2))
        reactor._gathering_since = 0
        await send(START)
        try:
            await send(BODY)
            reactor.read_channel()
        except Exception:
            pass
        try:
            sent = mine.recv(1000)
        except BlockingIOError:
            sent = b"nothing"
        os.set_blocking(reactor._fd, False)
        is_left = os.read(reactor._fd, 1000) == open_frame(2)
        os.write(1, b"sent %s, left %d\n" % (sent, is_left))
        os._exit(0)
    os.waitpid(child, 0)
    await send(START)
    await send(BODY)

serve()
assert ours.recv(1000).endswith(b"hello")
""")
        self.assertEqual(output, "sent nothing, left 1\n")


@unittest.skipIf(NATIVE == "off", "PENSTOCK_NATIVE names no native part")
class InThisProcess(unittest.TestCase):
    def setUp(self):
        from penstock_worker import asgi

        self.loop = asyncio.new_event_loop()
        self.addCleanup(self.loop.close)
        self.ours, theirs = socket.socketpair()
        files, their_files = socket.socketpair()
        self.addCleanup(self.ours.close)
        self.addCleanup(files.close)
        self.ours.settimeout(DEADLINE)
        self.reactor = asgi.AsgiReactor(self.loop, application, {}, theirs, their_files)
        self.addCleanup(self.reactor.close)

    def answer(self, application, count=1):
        """The frames that `count` requests to this application are answered with, in one turn or in
        several."""
        self.reactor._app = application
        self.ours.sendall(b"".join(open_frame(stream + 1) for stream in range(count)))
        self.ours.setblocking(False)
        answers, deadline = b"", time.monotonic() + DEADLINE
        while answers.count(b"hello") < count and time.monotonic() < deadline:
            self.turn()
            with contextlib.suppress(BlockingIOError):
                answers += self.ours.recv(1 << 16)
        return answers

    def turn(self):
        """One turn of the loop."""
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()

    def test_a_plain_request_is_answered_in_the_turn_that_reads_it(self):
        self.ours.sendall(open_frame(1) + open_frame(2))
        self.turn()
        self.ours.setblocking(False)
        answers = self.ours.recv(1 << 16)
        size = len(answers) // 2
        self.assertEqual(answers[-5:], b"hello")
        self.assertEqual([answers[8], answers[size + 8]], [1, 2])
        self.assertEqual(self.reactor._streams, {})

    def test_a_task_factory_of_the_application_makes_the_tasks(self):
        made = []

        def factory(loop, coroutine, **options):
            made.append(asyncio.Task(coroutine, loop=loop, **options))
            return made[-1]

        self.loop.set_task_factory(factory)
        self.ours.sendall(open_frame(1) + open_frame(2))
        self.ours.setblocking(False)
        answers = b""
        while answers.count(b"hello") < 2:
            self.turn()
            with contextlib.suppress(BlockingIOError):
                answers += self.ours.recv(1 << 16)
        self.assertEqual(len(made), 2)

    def test_the_loop_has_its_own_call_soon_back_afterwards(self):
        self.reactor.close()
        self.assertNotIn("call_soon", vars(self.loop))

    def test_a_call_soon_of_the_application_is_not_taken_away(self):
        def own(*args, **options):
            return type(self.loop).call_soon(self.loop, *args, **options)

        self.loop.call_soon = own
        self.reactor.close()
        self.assertIs(self.loop.call_soon, own)

    def test_a_reactor_closes_where_the_application_has_taken_call_soon_away(self):
        vars(self.loop).pop("call_soon", None)
        self.assertIn(b"hello", self.answer(application))
        self.reactor.close()
        self.assertLess(self.reactor._socket.fileno(), 0)
        self.assertLess(self.reactor._files.fileno(), 0)

    def test_in_debug_mode_a_slow_step_is_that_of_its_task(self):
        async def slow(scope, receive, send):
            await application(scope, receive, send)
            end = time.monotonic() + 0.002
            while time.monotonic() < end:
                pass

        self.loop.set_debug(True)
        self.loop.slow_callback_duration = 0.001
        with self.assertLogs("asyncio", "WARNING") as log:
            self.answer(slow)
            self.turn()
        self.assertIn("AsgiStream.run()", "".join(log.output))

    def test_only_native_code_makes_calls_and_methods(self):
        made = []

        async def seen(scope, receive, send):
            for type_ in (type(receive), type(receive())):
                with contextlib.suppress(TypeError):
                    made.append(type_())
                with contextlib.suppress(TypeError):
                    made.append(object.__new__(type_))
            await application(scope, receive, send)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.assertIn(b"hello", self.answer(seen))
        self.assertEqual(made, [])

    def test_calls_and_methods_have_weak_references(self):
        ends, alive = [], []

        async def seen(scope, receive, send):
            call = receive()
            references = [weakref.ref(one, ends.append) for one in (call, receive, send)]
            alive.append([reference() for reference in references] == [call, receive, send])
            await call
            del call
            alive.append(references[0]() is None)
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"hello"})
            scope["references"] = references
            kept.append(scope)

        kept = []
        self.assertIn(b"hello", self.answer(seen))
        gc.collect()
        self.assertEqual(alive, [True, True])
        self.assertEqual(len(ends), 3)
        self.assertEqual([reference() for reference in kept[0]["references"]], [None] * 3)

    def test_a_method_keeps_its_request_and_is_collected_with_it(self):
        references = []

        async def seen(scope, receive, send):
            scope["send"] = send
            scope["mine"] = Kept()
            references.append(weakref.ref(scope["mine"]))
            await application(scope, receive, send)

        self.assertIn(b"hello", self.answer(seen))
        gc.collect()
        self.assertIsNone(references[0]())

    def test_the_finalizer_of_a_call_that_was_not_awaited_only_warns(self):
        results = []

        class Last:
            """Begins a call when both are collected, behind the finalizer of the call."""

            def __init__(self, call):
                self.call, self.me = call, self

            def __del__(self):
                try:
                    self.call.send(None)
                except StopIteration as stop:
                    results.append(stop.value["type"])
                except RuntimeError as error:
                    results.append(str(error))

        async def seen(scope, receive, send):
            Last(receive())
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                gc.collect()
            results.append("never awaited" in str(caught[0].message))
            await application(scope, disconnected, send)

        async def disconnected():
            return {"type": "http.disconnect"}

        self.assertIn(b"hello", self.answer(seen))
        self.assertEqual(sorted(results, key=str), [True, "http.request"])

    def test_stacks_of_tasks_name_their_requests(self):
        from penstock_worker import task_stacks

        texts = []

        async def seen(scope, receive, send):
            await receive()
            waiting = asyncio.ensure_future(receive())
            await asyncio.sleep(0)
            texts.append(task_stacks.describe(self.loop))
            waiting.cancel()
            await application(scope, disconnected, send)

        async def disconnected():
            return {"type": "http.disconnect"}

        self.assertIn(b"hello", self.answer(seen))
        self.assertIn("\nGET /", texts[0])
        self.assertIn("in wait_to_receive", texts[0])

    def test_requests_leave_nothing_behind(self):
        for path in ("/", "/tasks", "/wait", "/mistakes"):

            def serve(count, path=path):
                for number in range(count):
                    fields = [(b"x", b"%d" % number), (b"cookie", b"c" * (number % 300))]
                    body = b"body" * (number % 3)
                    self.ours.sendall(open_frame(number % 7, body, path=path, headers=fields))
                    self.turn()
                    while self.reactor._streams or not select.select([self.ours], [], [], 0)[0]:
                        self.turn()
                    self.ours.recv(1 << 16)

            serve(700)
            gc.collect()
            before = sys.getallocatedblocks()
            serve(2100)
            gc.collect()
            self.assertLess(sys.getallocatedblocks() - before, 300, path)


if __name__ == "__main__":
    unittest.main()
