"""Starts real workers: how they load applications, report that, and end."""

import json
import os
import signal
import socket
import sys
import unittest
from pathlib import Path

from harness import DEADLINE, ROOT, Worker, request, wire

HELLO = """
import os, sys, threading
def application(environ, start_response):
    start_response("200 OK", [])
    return [repr((threading.current_thread().name, sys.path[0], os.getcwd())).encode()]
app = application
class Holder:
    inner = staticmethod(application)
def create():
    return application
number = 5
"""

BLOCKING = """
import threading
both = threading.Barrier(2)
def application(environ, start_response):
    start_response("200 OK", [])
    both.wait(20)
    return [str(environ["wsgi.multithread"]).encode()]
"""


class Boot(unittest.TestCase):
    def test_entries_name_attributes_and_factories(self):
        rows = ["app", "app:app", "app:Holder.inner", "app:create()"]
        for entry in rows:
            with self.subTest(entry), Worker(HELLO, entry) as worker:
                worker.ready()
                self.assertEqual(worker.ask(request()).status, "200 OK")

    def test_the_application_runs_in_its_folder(self):
        with Worker(HELLO) as worker:
            worker.ready()
            folder = os.path.realpath(worker.folder.name)
            body = eval(worker.ask(request()).body)
            self.assertEqual(body, ("MainThread", folder, folder))

    def test_ready_describes_the_process(self):
        with Worker(HELLO) as worker:
            described = json.loads(worker.control.frame().payload)
            self.assertEqual(described["pid"], worker.process.pid)
            self.assertEqual(described["interface"], "wsgi 1.0")
            self.assertRegex(described["interpreter"], r"^CPython 3\.\d+\.")

    def test_a_failed_boot_shows_the_applications_traceback(self):
        rows = [
            ("import missing_module\n", "app:application", "ModuleNotFoundError: No module named"),
            ("def f(:\n", "app:application", "SyntaxError"),
            ("x = 1 / 0\n", "app:application", "ZeroDivisionError"),
            ("raise SystemExit('no')\n", "app:application", "SystemExit: no"),
            (HELLO, "nope:application", "No module named 'nope'"),
            (HELLO, "app:nope", "has no attribute 'nope'"),
            (HELLO, "app:number", "app:number is a int, not a WSGI application"),
        ]
        for source, entry, error in rows:
            with self.subTest(error), Worker(source, entry) as worker:
                frame = worker.control.frame()
                self.assertEqual(frame.kind, wire.BOOT_FAILED)
                text = frame.payload.decode()
                self.assertIn(error, text)
                self.assertNotIn("importlib", text)
                self.assertNotIn("boot.py", text)
                self.assertEqual(worker.process.wait(DEADLINE), 1)

    def test_a_closed_slot_ends_the_process_in_order(self):
        for slots in (1, 3):
            source = HELLO + "import atexit\natexit.register(print, 'bye', file=sys.stderr)\n"
            with self.subTest(slots), Worker(source, slots=slots) as worker:
                worker.ready()
                for slot in worker.slots:
                    slot.sock.shutdown(socket.SHUT_WR)
                self.assertEqual(worker.process.wait(DEADLINE), 0)
                self.assertEqual(worker.log(), "bye\n")

    def test_a_closed_control_socket_ends_a_process_that_is_busy(self):
        with Worker(BLOCKING, slots=2) as worker:
            worker.ready()
            worker.slots[0].send(request())
            worker.control.sock.close()
            self.assertEqual(worker.process.wait(DEADLINE), 0)

    def test_a_server_that_goes_away_ends_a_stream_and_its_body_is_closed(self):
        source = """
import sys
class Endless:
    def __iter__(self):
        return self
    def __next__(self):
        return b"tick"
    def close(self):
        print("closed", file=sys.stderr)
def application(environ, start_response):
    start_response("200 OK", [])
    return Endless()
"""
        with Worker(source) as worker:
            worker.ready()
            worker.slots[0].send(request())
            self.assertEqual(worker.slots[0].frame().kind, wire.HEAD)
            worker.slots[0].sock.close()
            self.assertEqual(worker.process.wait(DEADLINE), 0)
            self.assertEqual(worker.log(), "closed\n")

    def test_threads_serve_their_slots_side_by_side(self):
        with Worker(BLOCKING, slots=2) as worker:
            worker.ready()
            for slot in worker.slots:
                slot.send(request())
            self.assertEqual([slot.reply().body for slot in worker.slots], [b"True", b"True"])

    def test_signals_are_the_servers_business(self):
        with Worker(HELLO) as worker:
            worker.ready()
            worker.process.send_signal(signal.SIGINT)
            self.assertEqual(worker.ask(request()).status, "200 OK")
            worker.process.send_signal(signal.SIGTERM)
            self.assertEqual(worker.process.wait(DEADLINE), -signal.SIGTERM)

    def test_nonsense_on_a_slot_ends_the_process(self):
        for slots in (1, 2):
            with self.subTest(slots), Worker(HELLO, slots=slots) as worker:
                worker.ready()
                worker.slots[0].send(b"GET / HTTP/1.1\r\n\r\n")
                self.assertEqual(worker.process.wait(DEADLINE), 1)

    def test_children_of_the_application_inherit_no_socket(self):
        source = """
import subprocess
child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, close_fds=False)
def application(environ, start_response):
    start_response("200 OK", [])
    return [str(child.pid).encode()]
"""
        with Worker(source) as worker:
            worker.ready()
            pid = int(worker.ask(request()).body)
            links = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
            self.assertFalse([link for link in links if link.startswith("socket:")])

    def test_the_stub_runs_the_package_from_a_bundle(self):
        files = sorted((ROOT / "penstock_worker").glob("*.py"))
        bundle = b"".join(
            len(part).to_bytes(4, "little") + part
            for file in files
            for part in (file.name.encode(), file.read_bytes())
        )
        fd = os.memfd_create("bundle", 0)
        os.write(fd, bundle)
        self.addCleanup(os.close, fd)
        stub = (ROOT / "stub.py").read_text()
        source = "def application(environ, start_response):\n    start_response(5, [])\n"
        command = [sys.executable, "-c", stub, str(fd)]
        with Worker(source, command=command, more_fds=[fd]) as worker:
            worker.ready()
            self.assertEqual(worker.ask(request()).flags, wire.FLAG_PROTOCOL_ERROR)
            self.assertIn('File "penstock_worker/wsgi.py", line', worker.log())
            self.assertIn("    raise AppProtocolError(", worker.log(), "source lines are shown")


if __name__ == "__main__":
    unittest.main()
