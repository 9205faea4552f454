"""Real back ends, started by hand: each is a program with its configuration in a directory.

`test_backends` puts each behind the real server. A back end is a context manager made for a
directory; inside it, `servers` holds its addresses and `protocol` its protocol, as a configuration
has them. All serve the same application (`app.py`, `app.ru`, `index.php`, `App.java`), so one table
of requests tests them all. A missing program is an error that names Debian's package, never a skip.
"""

import json
import shutil
import socket
import subprocess
from pathlib import Path

from harness import Child, until

HERE = Path(__file__).resolve().parent
PYTHON = HERE / ".venv" / "bin" / "python"
READY_SECONDS = 60


def need(package, *paths):
    """Returns the path of a program, given by name or by possible paths (`*` allowed)."""
    for path in map(str, paths):
        found = [path] if "/" in path else [shutil.which(path)]
        if "*" in path:
            found = sorted(str(p) for p in Path("/").glob(path.lstrip("/")))
        for candidate in found:
            if candidate and Path(candidate).exists():
                return candidate
    raise AssertionError(f"{package} is missing (scripts/setup backends installs it)")


def need_ruby(package, *libraries):
    """Returns the path of a Ruby that has these libraries."""
    ruby = need("ruby", "ruby")
    requires = [f"-r{library}" for library in libraries]
    found = subprocess.run([ruby, *requires, "-e", ""], capture_output=True, timeout=READY_SECONDS)
    if found.returncode:
        raise AssertionError(f"{package} is missing (scripts/setup backends installs it)")
    return ruby


class Backend:
    """The processes of a back end, which end with the context."""

    protocol = "http"
    #: Lines for its table besides protocol and servers.
    settings = ""
    #: What its program itself does not do.
    streams = True
    methods = ("GET", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "PROPFIND")
    largest = 100 << 20

    def __init__(self, folder):
        self.folder = Path(folder)
        self.servers = []
        self._children = []

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.print_output()
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind, error, trace):
        for child in self._children:
            child.kill()

    def start(self):
        """Starts the program and fills `servers`."""
        raise NotImplementedError

    def run(self, *command, ready, env=None):
        """Starts a process in the directory and waits for a line that matches `ready`, if given."""
        env = {"FOLDER": str(self.folder)} | (env or {})
        child = Child(command, env=env, cwd=self.folder)
        self._children.append(child)
        return child.wait_for(ready, READY_SECONDS) if ready else None

    def run_until_it_listens(self, *command):
        """Starts a process that prints nothing, and waits until its first socket accepts
        connections."""
        self.run(*command, ready="")

        def connects():
            try:
                with socket.socket(socket.AF_UNIX) as probe:
                    probe.connect(self.servers[0].removeprefix("unix:"))
            except OSError:
                return False
            return True

        until(f"{self.servers[0]} takes connections", connects, READY_SECONDS)

    def socket(self, name="app"):
        """Adds a Unix socket in the directory to `servers`."""
        path = self.folder / f"{name}.sock"
        self.servers.append(f"unix:{path}")
        return path

    def config(self, route=""):
        """Returns a whole configuration with this back end behind every path."""
        return (
            "[server]\nthreads = 2\n\n"
            f"[upstreams.b]\nprotocol = {json.dumps(self.protocol)}\n"
            f"servers = {json.dumps(self.servers)}\n{self.settings}\n\n"
            f'[[sites]]\n[[sites.routes]]\npath = "/*"\nupstream = "b"\n{route}\n'
        )

    def print_output(self):
        for child in self._children:
            print(f"--- output of {type(self).__name__}", *child.lines[-60:], sep="\n")
