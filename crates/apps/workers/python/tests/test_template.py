"""Starts real templates: what workers share with them, and what they must not."""

import os
import signal
import struct
import unittest
from functools import partial
from pathlib import Path

from harness import DEADLINE, Forked, Template, Worker, request, wait_for, wire

HELLO = """
import os, sys, random, time
loaded = (os.getpid(), time.monotonic_ns())
print("loaded", file=sys.stderr)
def application(environ, start_response):
    start_response("200 OK", [])
    facts = loaded, os.getpid(), os.getppid(), os.getpgid(0), random.random()
    return [repr(facts).encode()]
"""


def children():
    path = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children")
    return {int(pid) for pid in path.read_text().split()}


def descriptors(pid):
    return {os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()}


def count_descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def promote(worker):
    worker.control.sock.sendall(struct.pack("<BBHI", wire.PROMOTE, 0, 0, 0))


class Fork(unittest.TestCase):
    def test_workers_share_the_code_and_are_children_of_the_server(self):
        with Template(HELLO) as template:
            template.ready()
            pid = template.process.pid
            self.assertNotIn("prevents_fork", template.described)
            with template.fork() as one, template.fork() as two:
                facts = [eval(w.ready().ask(request()).body) for w in (one, two)]
                self.assertEqual(facts[0][0], facts[1][0], "loaded once")
                self.assertEqual(facts[0][0][0], pid)
                for worker, (_, own, parent, group, _) in zip((one, two), facts):
                    self.assertEqual((own, parent, group), (worker.pid, os.getpid(), worker.pid))
                self.assertNotEqual(facts[0][4], facts[1][4], "random numbers differ")
            self.assertEqual(template.log(), "loaded\n")
        self.assertEqual(template.process.returncode, 0)

    def test_workers_write_to_their_own_standard_streams(self):
        source = """
import sys
print("kept in the buffer of the template", end="")
def application(environ, start_response):
    print("out", flush=True)
    print("err", file=environ["wsgi.errors"], flush=True)
    start_response("200 OK", [])
    return []
"""
        with Template(source) as template, template.ready().fork() as worker:
            worker.ready().ask(request())
            self.assertEqual(worker.log(), "err\n")
            worker.stdout.seek(0)
            self.assertEqual(worker.stdout.read(), b"out\n")
            self.assertEqual(template.log(), "")

    def test_an_application_that_gives_its_standard_error_another_meaning_keeps_it(self):
        source = """
import os, sys
file = open("own.log", "w")
os.dup2(file.fileno(), 2)
def application(environ, start_response):
    os.write(2, b"mine")
    start_response("200 OK", [])
    return []
"""
        with Template(source) as template, template.ready().fork() as worker:
            worker.ready().ask(request())
            self.assertEqual(worker.log(), "")
            self.assertEqual(Path(template.folder.name, "own.log").read_text(), "mine")

    def test_many_slots_come_in_several_frames(self):
        with Template(HELLO) as template, template.ready().fork(slots=70, spares=3) as worker:
            worker.ready(at_once=31)
            pids = {eval(worker.ask(request(), slot).body)[1] for slot in range(70)}
            self.assertEqual(pids, {worker.pid})

    def test_a_worker_holds_nothing_of_its_template(self):
        with Template(HELLO) as template:
            template.ready()
            own = count_descriptors(template.process.pid)
            with template.fork() as first, template.fork() as second:
                first.ready()
                second.ready()
                # A worker may be ready before the template has closed the worker's descriptors.
                given = partial(count_descriptors, template.process.pid)
                wait_for(lambda: given() == own, "the template keeps what is its workers'")
                control = descriptors(template.process.pid)
                sockets = [
                    {link for link in descriptors(pid) if link.startswith("socket:")}
                    for pid in (template.process.pid, first.pid, second.pid)
                ]
                self.assertEqual([len(links) for links in sockets], [1, 2, 2])
                self.assertEqual(len(set.union(*sockets)), 5)
            before = descriptors(template.process.pid)
            self.assertEqual(before, control)

    def test_handlers_at_exit_run_in_workers_only_and_once(self):
        source = HELLO + "import atexit\natexit.register(lambda: print('bye', file=sys.stderr))\n"
        with Template(source) as template:
            with template.ready().fork() as worker:
                worker.ready().ask(request())
                worker.close()
                self.assertEqual(worker.wait(), 0)
                self.assertEqual(worker.log(), "bye\n")
            template.control.sock.close()
            self.assertEqual(template.process.wait(DEADLINE), 0)
            self.assertEqual(template.log(), "loaded\n")

    def test_a_worker_outlives_its_template_and_stays_when_its_slots_are_closed(self):
        with Template(HELLO) as template, template.ready().fork() as worker:
            worker.ready()
            template.control.sock.close()
            self.assertEqual(template.process.wait(DEADLINE), 0)
            self.assertEqual(worker.ask(request()).status, "200 OK")
            worker.slots[0].sock.close()
            worker.control.sock.close()
            self.assertEqual(worker.wait(), 0)

    def test_a_template_reaps_and_a_signal_ends_a_worker_only(self):
        with Template(HELLO) as template, template.ready().fork() as worker:
            worker.ready()
            children = Path(f"/proc/{template.process.pid}/task/{template.process.pid}/children")
            # The worker may be ready before the template has reaped the intermediate process.
            wait_for(lambda: children.read_text() == "", "the intermediate process is reaped")
            os.kill(worker.pid, signal.SIGTERM)
            self.assertEqual(worker.wait(), -signal.SIGTERM)
            with template.fork() as other:
                self.assertEqual(other.ready().ask(request()).status, "200 OK")

    def test_a_worker_whose_server_is_not_its_parent_ends(self):
        # The number of this process's parent, which is never the worker's.
        options = ["--server-pid", str(os.getppid())]
        with Template(HELLO, options=options) as template:
            before = children()
            with template.ready().fork() as worker:
                self.assertTrue(worker.control.is_closed())
                worker.pid = (children() - before).pop()
                self.assertEqual(worker.wait(), 1)

    def test_a_fork_that_fails_is_told(self):
        source = HELLO + (
            "import resource\nresource.setrlimit(resource.RLIMIT_NPROC, (0, 0))\n"
            "os.setuid(65534) if os.getuid() == 0 else None\n"
        )
        with Template(source) as template:
            template.ready()
            with template.fork():
                frame = template.control.frame()
            self.assertEqual(frame.kind, wire.FORK_FAILED)
            self.assertEqual(struct.unpack_from("<Q", frame.payload), (7,))
            self.assertIn(b"Resource temporarily unavailable", frame.payload)

    def test_code_that_cannot_be_forked_is_named(self):
        rows = [
            (
                "import threading\nthreading.Thread(target=threading.Event().wait, name='pump', "
                "daemon=True).start()\n",
                "1 more threads run: pump",
            ),
            ("import penstock_worker\npenstock_worker.prevent_fork('a pipe')\n", "a pipe"),
            (
                "import penstock_worker as p\np.prevent_fork()\n",
                "the application said prevent_fork",
            ),
        ]
        for source, reason in rows:
            with self.subTest(reason), Template(HELLO + source) as template:
                self.assertEqual(template.ready().described.get("prevents_fork"), reason)

    def test_threads_of_libraries_prevent_it_unless_they_can_only_be_openblas_s(self):
        native = """
import ctypes, mmap, os, sys, types
libc = ctypes.CDLL(None)
def start():
    libc.pthread_create(ctypes.byref(ctypes.c_ulong()), None, libc.pause, None)
def rename(name):
    before = open("/proc/self/comm").read().strip()
    libc.prctl(15, name)
    return before.encode()
def load(name):
    with open(name, "wb+") as file:
        file.write(bytes(4096))
        file.flush()
        return mmap.mmap(file.fileno(), 4096)
os.cpu_count = lambda: 3
"""
        blas = "one = load('libopenblas64.so')\n"
        rows = [
            ("start()\n", "1 native threads run: "),
            ("start()\nstart()\n" + blas, None),
            ("start()\nstart()\nstart()\n" + blas, "3 native threads run: "),
            ("start()\nstart()\nstart()\n" + blas + "two = load('openblas.so')\n", None),
            (
                "old = rename(b'pool')\nstart()\nrename(old)\n" + blas,
                "1 native threads run: pool",
            ),
            (
                "start()\nsys.modules['grpc'] = types.ModuleType('grpc')\n" + blas,
                "grpc is loaded, and 1 native threads run",
            ),
        ]
        for source, reason in rows:
            with self.subTest(source), Template(HELLO + native + source) as template:
                described = template.ready().described
                self.assertNotIn("leaves_threads", described)
                if reason is None:
                    self.assertNotIn("prevents_fork", described)
                else:
                    self.assertIn(reason, described["prevents_fork"])

    def test_it_is_forked_beside_threads_when_told_so(self):
        source = HELLO + (
            "import threading\nthreading.Thread(target=threading.Event().wait, name='pump', "
            "daemon=True).start()\n"
        )
        with Template(source, options=["--ignore-threads"]) as template:
            described = template.ready().described
            self.assertNotIn("prevents_fork", described)
            self.assertEqual(described["leaves_threads"], "pump")
            with template.fork() as worker:
                self.assertEqual(worker.ready().ask(request()).status, "200 OK")
        forbidden = "import penstock_worker\npenstock_worker.prevent_fork('a pipe')\n"
        with Template(HELLO + forbidden, options=["--ignore-threads"]) as template:
            self.assertEqual(template.ready().described["prevents_fork"], "a pipe")

    def test_a_thread_that_has_ended_prevents_nothing(self):
        source = "import threading\nt = threading.Thread(target=int)\nt.start()\nt.join()\n"
        with Template(HELLO + source) as template:
            self.assertNotIn("prevents_fork", template.ready().described)

    def test_a_broken_application_does_not_become_a_template(self):
        with Template("1 / 0\n") as template:
            frame = template.control.frame()
            self.assertEqual(frame.kind, wire.BOOT_FAILED)
            self.assertIn("ZeroDivisionError", frame.payload.decode())
            self.assertEqual(template.process.wait(DEADLINE), 1)

    def test_nonsense_on_the_control_socket_ends_a_template(self):
        for data in (struct.pack("<BBHI", wire.PROMOTE, 0, 0, 0), b"GET / HTTP/1.1\r\n\r\n"):
            with self.subTest(data), Template(HELLO) as template:
                template.ready().control.sock.sendall(data)
                self.assertEqual(template.process.wait(DEADLINE), 1)
                self.assertIn("WireError", template.log())


class Promote(unittest.TestCase):
    def check(self, worker, pid):
        """Makes a worker a template, then forks two workers from it."""
        for slot in [*worker.slots, *worker.spares]:
            slot.sock.close()
        promote(worker)
        frame = worker.control.frame()
        self.assertEqual(frame.kind, wire.READY, frame)
        self.assertNotIn(b"prevents_fork", frame.payload)
        with Forked(worker.control, 2, 0) as one, Forked(worker.control, 1, 0) as two:
            for forked in (one, two):
                facts = eval(forked.ready().ask(request()).body)
                self.assertEqual(facts[0][0], pid)
                self.assertEqual(facts[1:3], (forked.pid, os.getpid()))
            return facts

    def test_a_forked_worker_becomes_a_template(self):
        for slots, spares in ((1, 0), (3, 2)):
            with self.subTest(slots), Template(HELLO) as template:
                template.ready()
                with template.fork(slots=slots, spares=spares) as worker:
                    worker.ready().ask(request())
                    template.control.sock.close()
                    self.check(worker, template.process.pid)

    def test_a_spawned_worker_that_stays_becomes_a_template(self):
        Template("").__exit__()
        with Worker(HELLO, slots=2, options=["--may-become-template"]) as worker:
            worker.ready().ask(request())
            self.check(worker, worker.process.pid)

    def test_a_request_may_forbid_it(self):
        source = """
def application(environ, start_response):
    environ["penstock.prevent_fork"]("a socket is shared")
    start_response("200 OK", [])
    return []
"""
        with Worker(source, options=["--may-become-template"]) as worker:
            worker.ready().ask(request())
            worker.slots[0].sock.close()
            promote(worker)
            self.assertIn(b'"prevents_fork": "a socket is shared"', worker.control.frame().payload)

    def test_a_worker_that_does_not_stay_refuses(self):
        with Worker(HELLO, slots=2) as worker:
            worker.ready()
            promote(worker)
            self.assertEqual(worker.process.wait(DEADLINE), 1)


if __name__ == "__main__":
    unittest.main()
