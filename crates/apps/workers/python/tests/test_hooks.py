"""Hooks of real templates and workers: their order, their arguments, and what a failure does."""

import os
import struct
import tempfile
import unittest
from pathlib import Path

from harness import Template, Worker, request, wait_for, wire

APP = """
import os
def application(environ, start_response):
    start_response("200 OK", [])
    return [open(os.environ["PENSTOCK_TEST_LOG"], "rb").read()]
"""

# Every name writes a line with its arguments to the file that the application answers with.
NOTE = """
import os
def note(name, *facts):
    with open(os.environ["PENSTOCK_TEST_LOG"], "a") as log:
        log.write(" ".join([name, *map(str, facts)]) + "\\n")
note("loaded")
"""

GUNICORN = (
    NOTE
    + """
import multiprocessing
workers = multiprocessing.cpu_count() * 2
bind = "0.0.0.0:8000"
def on_starting(server): note("on_starting", server.pid == os.getppid())
def when_ready(server): note("when_ready", server.pid == os.getppid())
def pre_fork(server, worker): note("pre_fork", worker.age, worker.pid)
def post_fork(server, worker):
    server.log.info("worker %s of %d", worker.age, server.pid)
    note("post_fork", worker.age, worker.pid == os.getpid())
def post_worker_init(worker): note("post_worker_init", worker.age)
def worker_exit(server, worker): note("worker_exit", worker.age, worker.pid == os.getpid())
def pre_request(worker, req): note("pre_request")
"""
)

PUMA = (
    NOTE
    + """
def on_boot(): note("on_boot")
def before_fork(worker): note("before_fork", worker.index)
def after_worker_fork(index): note("after_worker_fork", index)
def after_fork(server, worker): note("after_fork", worker.age, server.pid == os.getppid())
def before_worker_boot(index): note("before_worker_boot", index)
def on_worker_boot(): note("on_worker_boot")
def before_worker_shutdown(*given): note("before_worker_shutdown", len(given))
"""
)


class Hooks(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="penstock-hooks-")
        self.log = Path(self.folder.name, "log")
        self.log.touch()
        os.environ["PENSTOCK_TEST_LOG"] = str(self.log)

    def tearDown(self):
        del os.environ["PENSTOCK_TEST_LOG"]
        self.folder.cleanup()

    def options(self, source, name="penstock_hooks.py"):
        path = Path(self.folder.name, name)
        path.write_text(source)
        return ["--hooks", str(path), "--worker-number", "3"]

    def lines(self):
        return self.log.read_text().splitlines()

    def test_a_file_of_gunicorns_is_called_in_its_order(self):
        options = self.options(GUNICORN, "gunicorn.conf.py")
        boot = ["loaded", "on_starting True", "when_ready True"]
        with Template(APP, options=options) as template:
            template.ready()
            self.assertEqual(self.lines(), boot)
            never = "gunicorn.conf.py: never called by Penstock: pre_request\n"
            self.assertEqual(template.log(), never)
            with template.fork() as worker:
                answer = worker.ready().ask(request()).body.decode().splitlines()
                forked = ["pre_fork 7 None", "post_fork 7 True", "post_worker_init 7"]
                self.assertEqual(answer, boot + forked)
                self.assertEqual(worker.log(), f"worker 7 of {os.getpid()}\n")
                self.assertEqual(worker.dismiss().wait(), 0)
                self.assertEqual(self.lines()[len(boot + forked) :], ["worker_exit 7 True"])
        self.assertNotIn("pre_request", self.lines())

    def test_names_of_penstock_puma_and_unicorn_get_what_they_take(self):
        with Template(APP, options=self.options(PUMA)) as template:
            with template.ready().fork() as worker:
                worker.ready()
                wait_for(lambda: "after_worker_fork 7" in self.lines(), "the template's hook")
                lines = [line for line in self.lines() if not line.startswith("after_worker_fork")]
                expected = ["loaded", "on_boot", "before_fork 7"]
                expected += ["after_fork 7 True", "before_worker_boot 7", "on_worker_boot"]
                self.assertEqual(lines, expected)
            self.assertEqual(self.lines()[-1], "before_worker_shutdown 2")

    def test_a_worker_that_is_not_forked_has_the_hooks_of_both(self):
        with Worker(APP, options=self.options(PUMA)) as worker:
            worker.ready()
            expected = ["loaded", "on_boot", "after_fork 3 True", "before_worker_boot 3"]
            self.assertEqual(self.lines(), [*expected, "on_worker_boot"])

    def test_a_hook_that_fails_ends_the_boot_with_its_traceback(self):
        raising = "def {}(*_): raise ValueError('no database')\n"
        for name in ("on_starting", "on_boot", "before_fork", "post_fork"):
            with self.subTest(name), Template(
                APP, options=self.options(raising.format(name))
            ) as it:
                if name.startswith("on_"):
                    frame = it.control.frame()
                else:
                    with it.ready().fork() as worker:
                        frame = worker.boot()
                text = frame.payload.decode()
                self.assertEqual(frame.kind, wire.BOOT_FAILED, text)
                self.assertTrue(text.startswith("Traceback (most recent call last):\n"), text)
                self.assertIn(f'penstock_hooks.py", line 1, in {name}\n', text)
                self.assertTrue(text.endswith("ValueError: no database\n"), text)
                self.assertNotIn("penstock_worker", text)

    def test_files_that_are_no_hooks_are_refused(self):
        rows = [
            ("def befor_fork(): pass\n", "has no hook: define one of on_starting, on_boot"),
            ("def on_boot(:\n", "SyntaxError"),
            ("import missing_module\n", "No module named 'missing_module'"),
        ]
        for source, expected in rows:
            with self.subTest(source), Worker(APP, options=self.options(source)) as worker:
                frame = worker.control.frame()
                self.assertEqual(frame.kind, wire.BOOT_FAILED)
                self.assertIn(expected, frame.payload.decode())

    def test_hooks_may_import_from_the_applications_folder(self):
        source = (
            NOTE + "def on_boot():\n    import app\n    note('on_boot', app.application.__name__)\n"
        )
        with Template(APP, options=self.options(source)) as template:
            template.ready()
            self.assertEqual(self.lines(), ["loaded", "on_boot application"])

    def test_a_failure_at_the_end_is_written_down(self):
        source = "def worker_exit(server, worker): raise ValueError('too late')\n"
        with Template(APP, options=self.options(source)) as template:
            with template.ready().fork() as worker:
                self.assertEqual(worker.ready().dismiss().wait(), 0)
                log = worker.log()
        self.assertTrue(log.startswith("error in a hook of worker_end\nTraceback"), log)
        self.assertTrue(log.endswith("ValueError: too late\n"), log)

    def test_a_worker_that_becomes_a_template_does_not_end(self):
        with Template(APP, options=self.options(PUMA)) as template:
            with template.ready().fork() as worker:
                worker.ready()
                worker.control.sock.sendall(struct.pack("<BBHI", wire.PROMOTE, 0, 0, 0))
                worker.slots[0].sock.close()
                frame = worker.control.frame()
                self.assertEqual(frame.kind, wire.READY, frame.payload)
                self.assertNotIn("before_worker_shutdown 2", self.lines())


if __name__ == "__main__":
    unittest.main()
