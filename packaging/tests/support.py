"""What the tests of packages share: servers with a deadline, requests, clean folders, a Debian root.

The tests need root where they enter another root or namespace, and the packages that `make packages`
has built.
"""

import contextlib
import ctypes
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import image  # noqa: F401 (for the tests: found through the path above)
import project

# From a start to the first response, on a loaded machine. The promise is 60 seconds for a person.
START_DEADLINE = 60
# From SIGTERM to the end: the server's own bound is 30 seconds.
STOP_DEADLINE = 40
LISTENING = re.compile(r"^listening (http://\S+)$", re.MULTILINE)

CHROOT_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "DEBIAN_FRONTEND": "noninteractive",
    "LANG": "C.UTF-8",
}
# Bare Debian roots: release and packages, with what these need.
ROOTS = {
    "bookworm": ("bookworm", "python3", "python3-venv", "ruby", "ruby-rack"),
    "python": ("bookworm", "python3", "python3-venv"),
    "ruby": (
        "bookworm", "ruby", "bundler", "ruby-rack", "ruby-sinatra", "ruby-grape", "ruby-rails"
    ),
    # Rack 3, whose command is a gem of its own.
    "trixie": ("trixie", "ruby", "bundler", "ruby-rackup", "ruby-rails"),
}  # fmt: skip
# Of sched.h.
CLONE_NEWNS = 0x0002_0000

WSGI = """\
def application(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [f"hello {environ['PATH_INFO']} from {environ['wsgi.multiprocess']}".encode()]
"""
RACK = 'run ->(env) { [200, { "content-type" => "text/plain" }, ["hello #{env["PATH_INFO"]}"]] }\n'


def run(*command, code=0, **options):
    """Runs a program with a deadline; returns its output, both streams together."""
    command = [str(word) for word in command]
    options = {"timeout": 300, "stdin": subprocess.DEVNULL} | options
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **options
    )
    if done.returncode != code:
        raise AssertionError(f"{command} ended with {done.returncode}, not {code}:\n{done.stdout}")
    return done.stdout


class Server:
    """A running server, with its output and the address that it prints."""

    def __init__(self, command, **options):
        command = [str(word) for word in command]
        self.output = ""
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            **options,
        )
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        self.url = self._wait_for_address()

    def _read(self):
        for line in self.process.stdout:
            self.output += line

    def _wait_for_address(self):
        found = self.wait_for(lambda: LISTENING.search(self.output), START_DEADLINE)
        if not found:
            self.kill()
            raise AssertionError(f"it does not listen:\n{self.output}")
        return found[1].replace("0.0.0.0", "127.0.0.1").replace("[::]", "127.0.0.1")

    def wait_for(self, condition, seconds):
        """Waits until a condition is true; returns its value, or None at the deadline."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            value = condition()
            if value:
                return value
            if self.process.poll() is not None and not self.reader.is_alive():
                return condition()
            self.reader.join(0.05)
        return None

    def get(self, path="/"):
        """The status and the body of a response, once the application answers."""

        def answer():
            with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
                with urllib.request.urlopen(self.url + path, timeout=10) as response:
                    return response.status, response.read().decode()
            return None

        found = self.wait_for(answer, START_DEADLINE)
        if not found:
            raise AssertionError(f"no response to {path}:\n{self.output}")
        return found

    def stop(self, number=signal.SIGTERM):
        """Ends the server as an operator does; returns its exit code."""
        self.process.send_signal(number)
        try:
            return self.process.wait(STOP_DEADLINE)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"it does not stop:\n{self.output}") from None

    def kill(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(STOP_DEADLINE)


class PackageTest(unittest.TestCase):
    """A test with a folder of its own, whose servers end with it."""

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="penstock-packages-"))
        self.folder.chmod(0o755)
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def serve(self, *command, **options):
        server = Server(command, **options)
        self.addCleanup(server.process.stdout.close)
        self.addCleanup(server.kill)
        return server

    def write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def assert_serves(self, server, expected, path="/some/path"):
        status, body = server.get(path)
        self.assertEqual(status, 200)
        self.assertIn(expected, body)
        self.assertEqual(server.stop(), 0, server.output)


def package(pattern):
    """The one built package of this name; a test without it fails."""
    found = sorted(project.PACKAGES.glob(pattern))
    if len(found) != 1:
        raise AssertionError(f"{pattern}: {len(found)} in {project.PACKAGES}: run make packages")
    return found[0]


def clean_environment(**more):
    """An environment without what this machine sets for Python and Ruby."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    return kept | {"HOME": "/nonexistent"} | more


def needs_root(test):
    return unittest.skipUnless(os.getuid() == 0, "it needs root")(test)


def debian_root(name="bookworm"):
    """A bare Debian of `ROOTS`, made once; nothing may be written to it."""
    root = project.PACKAGES / "roots" / name
    stamp = root.with_suffix(".complete")
    release, *packages = ROOTS[name]
    wanted = " ".join([release, *packages])
    if not stamp.is_file() or stamp.read_text() != wanted:
        stamp.unlink(missing_ok=True)
        shutil.rmtree(root, ignore_errors=True)
        root.parent.mkdir(parents=True, exist_ok=True)
        run("debootstrap", "--variant=minbase", release, root, timeout=1200)
        install = "apt-get install --quiet --yes --no-install-recommends".split()
        # Scripts of packages look at /proc; the mount ends with the command.
        script = 'mount -t proc proc "$1/proc" && exec chroot "$@"'
        run(
            "unshare", "--mount", "sh", "-ec", script, "-", root, *install, *packages,
            env=CHROOT_ENVIRONMENT, timeout=1200,
        )  # fmt: skip
        # Half of it; tests copy the root and pack it into images.
        run("chroot", root, "sh", "-ec", "apt-get clean; rm -rf /var/lib/apt/lists/*")
        stamp.write_text(wanted)
    return root


def enter_private_mounts():
    """Keeps what this process mounts from here on to itself, so that it ends with the process."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "a private mount namespace is refused")
    run("mount", "--make-rprivate", "/")


@contextlib.contextmanager
def debian_copy(folder, name="bookworm"):
    """A Debian root that may be written to, over the one of `debian_root`."""
    lower = debian_root(name)
    enter_private_mounts()
    for name in ("upper", "work", "root"):
        (folder / name).mkdir()
    # The upper folder of an overlay cannot itself be on one.
    run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", folder / "upper")
    root = folder / "root"
    mounted = [folder / "upper"]
    try:
        for name in ("changes", "work"):
            (folder / "upper" / name).mkdir()
        options = f"lowerdir={lower},upperdir={folder}/upper/changes,workdir={folder}/upper/work"
        run("mount", "-t", "overlay", "-o", options, "overlay", root)
        mounted.append(root)
        run("mount", "-t", "proc", "proc", root / "proc")
        mounted.append(root / "proc")
        run("mount", "--bind", "/dev", root / "dev")
        mounted.append(root / "dev")
        yield root
    finally:
        for path in reversed(mounted):
            run("umount", "-l", path)
