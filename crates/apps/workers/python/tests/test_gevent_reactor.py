"""WSGI on gevent_reactor; skipped without gevent, which an application brings itself."""

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import unittest

from channel_harness import ReactorWorker, channel, gone, open_wsgi, wire

APP = """
import os, signal, sys, tempfile, threading, time
import gevent
from gevent.monkey import get_original
import socket

released = threading.Event()

def log(text):
    sys.stderr.write(text + "\\n")

def application(environ, start_response):
    return globals()[environ["PATH_INFO"][1:]](environ, start_response)

def hello(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", "5")])
    return [b"hello"]

def show(environ, start_response):
    start_response("200 OK", [])
    keys = ("wsgi.multithread", "REQUEST_METHOD", "SERVER_SOFTWARE", "wsgi.url_scheme")
    return [repr({key: environ[key] for key in keys}).encode()]

def echo(environ, start_response):
    start_response("200 OK", [])
    return [environ["wsgi.input"].read()]

def taken(environ, start_response):
    environ["werkzeug.socket"].sendall(b"taken over")
    return []

def printed(environ, start_response):
    text = repr(environ) + str(environ["werkzeug.socket"])
    start_response("200 OK", [])
    return [str("werkzeug.socket" in text).encode()]

def taken_late(environ, start_response):
    start_response("200 OK", [])(b"begun, ")
    try:
        environ["gunicorn.socket"].sendall(b"x")
    except OSError as error:
        return [str(error).encode()]

def wait(environ, start_response):
    released.wait()
    return hello(environ, start_response)

def go(environ, start_response):
    released.set()
    return hello(environ, start_response)

held = threading.Event()

def hold(environ, start_response):
    held.wait()
    return hello(environ, start_response)

def let_go(environ, start_response):
    held.set()
    return hello(environ, start_response)

stirred = get_original("threading", "Event")()

def elsewhere(environ, start_response):
    # From now on a thread of its own hears the signals: they interrupt no wait of the main one.
    ready = get_original("threading", "Event")()

    def hear():
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGQUIT])
        ready.set()
        stirred.wait()

    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGQUIT])
    gevent.get_hub().threadpool.spawn(hear)
    ready.wait()
    return hello(environ, start_response)

def here(environ, start_response):
    stirred.set()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGQUIT])
    return hello(environ, start_response)

def forked(environ, start_response):
    pid = os.fork()
    if pid == 0:
        gevent.sleep(0.001)
        os._exit(signal.set_wakeup_fd(-1) != -1)
    start_response("200 OK", [])
    return [str(os.waitpid(pid, 0)[1]).encode()]

def woken(environ, start_response):
    start_response("200 OK", [])
    return [str(signal.set_wakeup_fd(-1)).encode()]

def spoil(environ, start_response):
    from penstock_worker import thread_stacks
    thread_stacks.hooks.insert(0, lambda: 1 / 0)
    return hello(environ, start_response)

def nap(environ, start_response):
    time.sleep(0.2)
    return hello(environ, start_response)

def large(environ, start_response):
    start_response("200 OK", [])
    try:
        for letter in b"abcdefgh":
            yield bytes([letter]) * 100_000
    finally:
        log("large is closed")

def written(environ, start_response):
    write = start_response("200 OK", [])
    write(b"one")
    write(b"two")
    return [b"three"]

def file(environ, start_response):
    handle = tempfile.TemporaryFile()
    handle.write(b"0123456789" * 50_000)
    handle.seek(5)
    start_response("200 OK", [])
    return environ["wsgi.file_wrapper"](handle)

def small_file(environ, start_response):
    handle = tempfile.TemporaryFile()
    handle.write(b"0123456789")
    handle.seek(5)
    start_response("200 OK", [("Content-Length", "3")])
    return environ["wsgi.file_wrapper"](handle)

def raise_early(environ, start_response):
    raise ValueError("early")

def raise_late(environ, start_response):
    start_response("200 OK", [])
    yield b"part"
    raise ValueError("late")

def no_head(environ, start_response):
    return [b"x"]
"""


@unittest.skipUnless(importlib.util.find_spec("gevent"), "gevent is not installed")
class Greenlets(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.worker = ReactorWorker(APP, interface="wsgi", reactor="gevent")
        cls.worker.__enter__().ready()

    @classmethod
    def tearDownClass(cls):
        cls.worker.__exit__()

    stream = 100

    def ask(self, path, body=b"", flags=0):
        type(self).stream += 1
        return self.worker.ask(open_wsgi(self.stream, body, flags, PATH_INFO="/" + path))

    def test_a_whole_response_is_one_frame(self):
        answer = self.ask("hello")
        self.assertEqual(answer.strings[:2], ["200 OK", "Content-Type"])
        self.assertEqual((answer.body, answer.kinds), (b"hello", [channel.STREAM_RESPONSE]))

    def test_the_environ_is_complete(self):
        environ = eval(self.ask("show").body)
        expected = {"wsgi.multithread": True, "REQUEST_METHOD": "GET"}
        expected.update({"SERVER_SOFTWARE": "penstock", "wsgi.url_scheme": "http"})
        self.assertEqual(environ, expected)

    def test_bodies(self):
        self.assertEqual(self.ask("echo").body, b"")
        self.assertEqual(self.ask("echo", b"x" * 300).body, b"x" * 300)
        self.worker.send_file(self.stream + 1, b"y" * 200_000)
        self.assertEqual(self.ask("echo", flags=wire.FLAG_BODY_FILE).body, b"y" * 200_000)

    def test_a_connection_is_taken_over_before_the_response(self):
        worker = self.worker
        upgrade = {"HTTP_UPGRADE": "chat"}
        answer = worker.ask(open_wsgi(1, PATH_INFO="/taken", **upgrade))
        self.assertEqual(answer.kinds, [channel.HIJACK, channel.DATA])
        self.assertEqual(worker.files.take(4), (1).to_bytes(4, "little"))
        with socket.socket(fileno=worker.files.fds.pop()) as connection:
            connection.settimeout(20)
            self.assertEqual(connection.recv(100), b"taken over")
            # The connection ends with the call.
            self.assertEqual(connection.recv(100), b"")
        worker.answers.pop(1)
        answer = worker.ask(open_wsgi(1, PATH_INFO="/taken_late", **upgrade))
        self.assertIn(b"begun, the connection cannot be taken over", answer.body)
        worker.answers.pop(1)

    def test_more_upgrades_at_once_than_the_files_socket_holds(self):
        # A Unix socket of usual size holds 278 messages with a descriptor.
        worker, streams = self.worker, range(3000, 3400)
        worker.send(*(open_wsgi(at, PATH_INFO="/taken", HTTP_UPGRADE="chat") for at in streams))
        got = {}
        while not all(worker.answer(at).is_ended for at in streams):
            part = worker.read()
            if part.kind != channel.HIJACK:
                continue
            self.assertEqual(worker.files.take(4), part.stream.to_bytes(4, "little"))
            with socket.socket(fileno=worker.files.fds.pop(0)) as connection:
                connection.settimeout(20)
                got[part.stream] = connection.recv(100)
        self.assertEqual(got, dict.fromkeys(streams, b"taken over"))
        for at in streams:
            self.assertEqual(worker.answers.pop(at).kinds, [channel.HIJACK, channel.DATA])

    def test_a_connection_that_is_printed_is_not_taken_over(self):
        answer = self.worker.ask(open_wsgi(1, PATH_INFO="/printed", HTTP_UPGRADE="chat"))
        self.assertEqual((answer.body, answer.kinds), (b"True", [channel.STREAM_RESPONSE]))
        self.worker.answers.pop(1)

    def test_thousand_requests_at_once(self):
        worker, streams = self.worker, range(1000, 2000)
        worker.send(*(open_wsgi(stream, PATH_INFO="/wait") for stream in streams))
        worker.send(open_wsgi(3, PATH_INFO="/go"))
        worker.read_until(lambda: all(worker.answer(stream).is_ended for stream in streams))
        self.assertEqual({worker.answers.pop(stream).body for stream in streams}, {b"hello"})

    def test_a_slow_window_stops_its_stream_alone(self):
        worker = self.worker
        worker.send(open_wsgi(1, PATH_INFO="/large"))
        slow = worker.answer(1)
        worker.read_until(lambda: slow.size == channel.WINDOW_BYTES)
        for _ in range(20):
            self.assertEqual(self.ask("hello").body, b"hello")
        self.assertEqual(slow.size, channel.WINDOW_BYTES)
        worker.send(channel.encode_window(1, 1 << 20))
        worker.read_until(lambda: slow.is_ended)
        self.assertEqual(slow.body, b"".join(bytes([letter]) * 100_000 for letter in b"abcdefgh"))
        worker.answers.pop(1)

    def test_a_client_that_leaves_a_waiting_stream(self):
        worker = self.worker
        worker.send(open_wsgi(2, PATH_INFO="/large"))
        slow = worker.answer(2)
        worker.read_until(lambda: slow.size == channel.WINDOW_BYTES)
        before = worker.log().count("large is closed")
        worker.send(gone(2))
        worker.read_until(lambda: slow.is_ended)
        self.assertEqual(
            (slow.reason, worker.log().count("large is closed")), ("cancelled", before + 1)
        )
        worker.answers.pop(2)

    def test_write_and_files(self):
        self.assertEqual(self.ask("written").body, b"onetwothree")
        self.worker.send(channel.encode_window(self.stream + 1, 1))  # For no stream yet: ignored.
        type(self).stream += 1
        self.worker.send(open_wsgi(self.stream, PATH_INFO="/file"))
        self.worker.send(channel.encode_window(self.stream, 1 << 20))
        answer = self.worker.answer(self.stream)
        self.worker.read_until(lambda: answer.is_ended)
        self.assertEqual(answer.body, (b"0123456789" * 50_000)[5:])
        answer = self.ask("small_file")
        self.assertEqual((answer.body, answer.kinds), (b"567", [channel.STREAM_RESPONSE]))

    def test_exceptions(self):
        for path, reason, flags in (
            ("raise_early", "application raised ValueError", 0),
            ("raise_late", "application raised ValueError", 0),
            ("no_head", "start_response was not called", wire.FLAG_PROTOCOL_ERROR),
        ):
            with self.subTest(path):
                answer = self.ask(path)
                self.assertEqual((answer.reason, answer.parts[-1].flags), (reason, flags))
                self.assertIn(f"error in GET /{path}\n", self.worker.log())

    def test_stacks_of_greenlets_on_sigquit(self):
        self.worker.send(open_wsgi(4, PATH_INFO="/hold"))
        self.ask("hello")
        self.worker.process.send_signal(signal.SIGQUIT)
        self.worker.wait_log("in hold")
        self.ask("let_go")
        self.worker.read_until(lambda: self.worker.answer(4).is_ended)

    def test_a_signal_that_interrupts_no_wait_is_heard_at_once(self):
        with ReactorWorker(APP, interface="wsgi", reactor="gevent") as worker:
            worker.ready().send(open_wsgi(1, PATH_INFO="/hold"))
            worker.ask(open_wsgi(2, PATH_INFO="/elsewhere"))
            worker.process.send_signal(signal.SIGQUIT)
            worker.wait_log("in hold")
            worker.ask(open_wsgi(3, PATH_INFO="/here"))
            worker.ask(open_wsgi(5, PATH_INFO="/let_go"))
            worker.read_until(lambda: worker.answer(1).is_ended)

    def test_a_hook_that_fails_says_so_and_the_others_run(self):
        with ReactorWorker(APP, interface="wsgi", reactor="gevent") as worker:
            worker.ready().ask(open_wsgi(1, PATH_INFO="/spoil"))
            worker.process.send_signal(signal.SIGQUIT)
            worker.wait_log("ZeroDivisionError")
            worker.wait_log("* Greenlets")

    def test_an_application_that_hears_its_signals_in_this_way_keeps_it(self):
        own = "\n_, w = os.pipe()\nos.set_blocking(w, False)\nsignal.set_wakeup_fd(w)\n"
        own += "log(f'own {w}')\n"
        with ReactorWorker(APP + own, interface="wsgi", reactor="gevent") as worker:
            answer = worker.ready().ask(open_wsgi(1, PATH_INFO="/woken"))
            self.assertIn(f"own {answer.body.decode()}\n", worker.log())

    def test_what_the_application_forks_wakes_nobody(self):
        self.assertEqual(self.ask("forked").body, b"0")
        self.assertEqual(self.ask("hello").body, b"hello")


@unittest.skipUnless(importlib.util.find_spec("gevent"), "gevent is not installed")
class End(unittest.TestCase):
    def test_what_is_in_progress_is_waited_for(self):
        source = APP.replace("time.sleep(0.2)", "time.sleep(0.2); log('done')")
        with ReactorWorker(source, interface="wsgi", reactor="gevent") as worker:
            worker.ready().send(open_wsgi(1, PATH_INFO="/nap"))
            worker.ask(open_wsgi(2, PATH_INFO="/hello"))
            worker.channel.sock.close()
            self.assertEqual((worker.wait(), worker.log()), (0, "done\n"))

    def test_what_never_ends_is_left(self):
        with ReactorWorker(APP, interface="wsgi", reactor="gevent", stop_timeout=0.2) as worker:
            worker.ready().send(open_wsgi(1, PATH_INFO="/wait"))
            worker.ask(open_wsgi(2, PATH_INFO="/hello"))
            worker.channel.sock.close()
            self.assertEqual(worker.wait(), 0)

    def test_nonsense_ends_the_process(self):
        with ReactorWorker(APP, interface="wsgi", reactor="gevent") as worker:
            worker.ready().send(channel.encode_message(1, 0, b"x") + os.urandom(0), b"\xff" * 12)
            self.assertEqual(worker.wait(), 1)
            self.assertIn("WireError", worker.log())


class Missing(unittest.TestCase):
    def test_a_missing_gevent_is_named(self):
        # The interpreter outside of a virtualenv, if the tests run in one.
        python = os.path.realpath(sys.executable)
        if (
            subprocess.run([python, "-c", "import gevent"], stderr=subprocess.DEVNULL).returncode
            == 0
        ):
            self.skipTest("gevent is installed")
        with ReactorWorker(APP, interface="wsgi", reactor="gevent", python=python) as worker:
            frame = worker.control.frame()
            self.assertEqual(frame.kind, wire.BOOT_FAILED)
            self.assertIn('async = "gevent" needs gevent', frame.payload.decode())
            self.assertEqual(worker.wait(), 1)


if __name__ == "__main__":
    unittest.main()
