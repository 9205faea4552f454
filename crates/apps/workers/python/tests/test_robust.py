"""Starts real workers with applications that misbehave: each costs only its own request."""

import os
import signal
import socket
import unittest
from functools import partial
from pathlib import Path

from harness import DEADLINE, Template, Worker, request, wait_for, wire

FINE = """
    start_response("200 OK", [])
    return [b"fine"]
"""


def application(body, head="import os, sys"):
    """Returns an application that runs `body` for `/bad`, and answers other paths."""
    lines = "".join(f"        {line}\n" for line in body.splitlines())
    return f"""
{head}
def application(environ, start_response):
    if environ["PATH_INFO"] == "/bad":
{lines}{FINE}"""


class Interruptions(unittest.TestCase):
    def test_nothing_follows_a_frame_that_was_cut(self):
        # What came next would be read as the rest of it, and go to another client.
        body = """
class Interrupted(Exception): pass
def interrupt(*_): raise Interrupted
signal.signal(signal.SIGALRM, interrupt)
signal.setitimer(signal.ITIMER_REAL, 0.2)
start_response("200 OK", [])
return [b"x" * 4_000_000]"""
        with Worker(application(body.strip(), "import signal")) as worker:
            worker.ready()
            peer = worker.slots[0]
            # Nobody reads, so that the worker waits in the middle of the frame.
            peer.send(request(PATH_INFO="/bad") + request())
            wait_for(lambda: "Interrupted" in worker.log(), "the interruption")
            with self.assertRaises(EOFError):
                peer.take(4_000_000)
            self.assertLess(len(peer.data), 4_000_000)
            self.assertNotIn(b"fine", peer.data)


class Descriptors(unittest.TestCase):
    def test_small_numbers_are_not_ours(self):
        rows = [
            "os.closerange(3, 100)",
            "for fd in range(3, 100):\n    try: os.write(fd, b'garbage')\n    except OSError: pass",
        ]
        for row in rows:
            for slots in (1, 2):
                with self.subTest(row, slots=slots), Worker(
                    application(row), slots=slots
                ) as worker:
                    worker.ready()
                    self.assertEqual(worker.ask(request(PATH_INFO="/bad")).body, b"fine")
                    self.assertEqual(worker.ask(request()).body, b"fine")

    def test_nor_in_a_forked_worker(self):
        source = application("os.closerange(3, 100)")
        with Template(source) as template, template.ready().fork(slots=2) as worker:
            worker.ready()
            self.assertEqual(worker.ask(request(PATH_INFO="/bad")).body, b"fine")
            self.assertEqual(worker.ask(request(), slot=1).body, b"fine")

    def test_closed_standard_streams_cost_nothing(self):
        rows = ["sys.stdout.close()\nsys.stderr.close()", "os.close(1)\nos.close(2)"]
        for row in rows:
            for then in ("", "\nraise OSError", "\nprint('x')\nsys.stderr.write('x')"):
                with self.subTest(row + then), Worker(application(row + then)) as worker:
                    worker.ready()
                    worker.ask(request(PATH_INFO="/bad"))
                    self.assertEqual(worker.ask(request()).body, b"fine")

    def test_closed_while_loading_too(self):
        for row in ("sys.stdout.close(); sys.stderr.close()", "os.close(1); os.close(2)"):
            source = application("raise OSError", head=f"import os, sys\n{row}")
            with self.subTest(row), Template(source) as template:
                with template.ready().fork() as worker:
                    reply = worker.ready().ask(request(PATH_INFO="/bad"))
                    self.assertEqual(reply.reason, "application raised OSError")
                    self.assertEqual(worker.ask(request()).body, b"fine")


class Ends(unittest.TestCase):
    def test_exceptions_that_end_programs_end_the_request(self):
        for row in ("raise SystemExit(3)", "sys.exit()", "raise KeyboardInterrupt"):
            with self.subTest(row), Worker(application(row), slots=2) as worker:
                worker.ready()
                self.assertEqual(worker.ask(request(PATH_INFO="/bad")).frames, [wire.FAILED])
                self.assertEqual(worker.ask(request()).body, b"fine")

    def test_a_process_that_ends_itself_closes_its_sockets(self):
        with Worker(application("os._exit(7)"), slots=2) as worker:
            worker.ready().slots[1].send(request(PATH_INFO="/bad"))
            self.assertTrue(worker.slots[0].is_closed())
            self.assertEqual(worker.process.wait(DEADLINE), 7)

    def test_blocked_signals_are_no_shield(self):
        row = (
            "import signal\n"
            "signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))\n"
            "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
        )
        with Worker(application(row)) as worker:
            worker.ready().ask(request(PATH_INFO="/bad"))
            worker.process.send_signal(signal.SIGTERM)
            self.assertEqual(worker.ask(request()).body, b"fine")
            worker.process.kill()
            self.assertEqual(worker.process.wait(DEADLINE), -signal.SIGKILL)

    def test_another_folder_stays_until_the_application_changes_it_back(self):
        source = application("os.chdir('/')").replace('b"fine"', "os.getcwd().encode()")
        with Worker(source) as worker:
            self.assertNotEqual(worker.ready().ask(request()).body, b"/")
            self.assertEqual(worker.ask(request(PATH_INFO="/bad")).body, b"/")


class Children(unittest.TestCase):
    def test_a_child_that_comes_back_answers_nothing(self):
        rows = [
            "os.fork()",
            "if not os.fork(): raise ValueError",
            "if not os.fork(): sys.exit()",
            "child = os.fork()",
        ]
        for row in rows:
            for slots in (1, 2):
                source = application(
                    row, head="import atexit, os, sys\natexit.register(print, 'bye')"
                )
                with self.subTest(row, slots=slots), Worker(source, slots=slots) as worker:
                    worker.ready()
                    self.assertEqual(worker.ask(request(PATH_INFO="/bad")).body, b"fine")
                    self.assertEqual(worker.ask(request()).body, b"fine")
                    children = Path(f"/proc/{worker.process.pid}/task/")
                    wait_for(partial(all_have_ended, children), "the child goes on")
                    self.assertEqual("came back" in worker.log(), "sys.exit" not in row)

    def test_a_child_that_streams_is_ended_too(self):
        source = """
import os
def application(environ, start_response):
    start_response("200 OK", [])
    yield b"one"
    os.fork()
    yield b"two"
"""
        with Worker(source) as worker:
            worker.ready()
            for _ in range(2):
                self.assertEqual(worker.ask(request()).body, b"onetwo")

    def test_a_child_keeps_no_socket(self):
        row = (
            "child = os.fork()\n"
            "if child == 0:\n    os.read(os.pipe()[0], 1)\n"
            "start_response('200 OK', [])\nreturn [str(child).encode()]"
        )
        for kind in (Worker, Template):
            with self.subTest(kind.__name__), kind(application(row)) as process:
                process.ready()
                worker = process if kind is Worker else process.fork().ready()
                child = int(worker.ask(request(PATH_INFO="/bad")).body)
                self.addCleanup(os.kill, child, signal.SIGKILL)
                wait_for(partial(has_no_sockets, child), "a socket stays open")
                if kind is Template:
                    worker.__exit__()

    def test_a_child_that_comes_back_from_loading_does_not_serve(self):
        source = application("", head="import os, sys\nos.fork()").replace('== "/bad":', "and 0: 0")
        with Worker(source) as worker:
            worker.ready()
            self.assertEqual(worker.ask(request()).body, b"fine")
            self.assertFalse(worker.control.data)
            wait_for(lambda: "came back" in worker.log(), "the child goes on")
            self.assertEqual(worker.log().count("came back"), 1)

    def test_processes_of_multiprocessing_work(self):
        head = "import multiprocessing, os\ncontext = multiprocessing.get_context('fork')"
        row = (
            "queue = context.SimpleQueue()\n"
            "process = context.Process(target=queue.put, args=(5,))\n"
            "process.start()\nassert queue.get() == 5\nprocess.join()\nassert process.exitcode == 0"
        )
        with Worker(application(row, head=head)) as worker:
            worker.ready()
            for _ in range(2):
                self.assertEqual(worker.ask(request(PATH_INFO="/bad")).body, b"fine")
            self.assertEqual(worker.log(), "")


def has_no_sockets(pid):
    try:
        links = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
    # The descriptor was closed meanwhile.
    except FileNotFoundError:
        return False
    return not [link for link in links if link.startswith("socket:")]


def all_have_ended(tasks):
    """Returns whether every child of a process is a zombie or gone."""
    for children in tasks.glob("*/children"):
        for pid in children.read_text().split():
            stat = Path(f"/proc/{pid}/stat").read_text()
            if stat.rpartition(")")[2].split()[0] != "Z":
                return False
    return True


class Stacks(unittest.TestCase):
    BUSY = """
import threading
ready = threading.Event()
def stuck_in_here(environ):
    environ["wsgi.errors"].write("waiting\\n")
    threading.Event().wait()
def application(environ, start_response):
    if environ["PATH_INFO"] == "/bad":
        stuck_in_here(environ)
    start_response("200 OK", [])
    return [b"fine"]
"""

    def quit_and_look(self, worker, pid, sought):
        worker.slots[0].send(request(PATH_INFO="/bad"))
        wait_for(lambda: "waiting" in worker.log(), "the request never began")
        os.kill(pid, signal.SIGQUIT)
        wait_for(lambda: sought in worker.log(), f"no {sought} is shown")

    def test_stacks_of_all_threads_are_shown_and_the_process_goes_on(self):
        for slots in (1, 2):
            with self.subTest(slots), Worker(self.BUSY, slots=slots) as worker:
                worker.ready()
                # All threads have begun once all have answered.
                for slot in range(slots):
                    self.assertEqual(worker.ask(request(), slot=slot).body, b"fine")
                self.quit_and_look(worker, worker.process.pid, "in stuck_in_here")
                if slots > 1:
                    self.assertEqual(worker.ask(request(), slot=1).body, b"fine")
                    wait_for(lambda: worker.log().count("hread 0x") >= 3, "a thread is missing")
                worker.process.kill()

    def test_also_in_a_forked_worker_with_its_own_standard_error(self):
        with Template(self.BUSY) as template, template.ready().fork() as worker:
            self.quit_and_look(worker.ready(), worker.pid, "in stuck_in_here")
            self.assertEqual(template.log(), "")
            os.kill(worker.pid, signal.SIGKILL)

    def test_also_when_a_library_never_lets_the_interpreter_run(self):
        source = """
import ctypes, sys
def application(environ, start_response):
    sys.stderr.write("waiting\\n")
    # Holds the interpreter's lock, unlike functions of CDLL.
    ctypes.PyDLL(None).pause()
"""
        with Worker(source) as worker:
            worker.ready()
            self.quit_and_look(worker, worker.process.pid, "in application")
            worker.process.kill()

    def test_also_when_standard_error_is_closed(self):
        source = self.BUSY.replace(
            "threading.Event().wait()", "import os; os.close(2)\n    ready.wait()"
        )
        with Worker(source) as worker:
            worker.ready().slots[0].send(request(PATH_INFO="/bad"))
            link = Path(f"/proc/{worker.process.pid}/fd/2")
            wait_for(lambda: not os.path.lexists(link), "it stays open")
            os.kill(worker.process.pid, signal.SIGQUIT)
            wait_for(lambda: "in stuck_in_here" in worker.log(), "no stack")
            worker.process.kill()

    def test_a_template_shows_its_own_and_goes_on(self):
        with Template(self.BUSY) as template:
            template.ready().process.send_signal(signal.SIGQUIT)
            wait_for(lambda: "in main" in template.log(), "no stack")
            with template.fork() as worker:
                self.assertEqual(worker.ready().ask(request()).body, b"fine")


class Wire(unittest.TestCase):
    def test_a_worker_whose_server_died_in_the_middle_of_a_frame_ends(self):
        with Worker(application("pass")) as worker:
            worker.ready().slots[0].sock.sendall(request()[:20])
            worker.slots[0].sock.shutdown(socket.SHUT_WR)
            self.assertEqual(worker.process.wait(DEADLINE), 0)


if __name__ == "__main__":
    unittest.main()
