"""Real back ends, started by hand: each a program, its configuration in a folder, and where it listens.

`test_backends` puts each behind the real server. A back end is a context manager made for a folder;
inside, `servers` are its addresses and `protocol` what it speaks, as a configuration has them. All
serve the same application (`app.py`, `app.ru`, `index.php`, `App.java`), so one table of requests is
for all. A program that is not there is an error with the name of Debian's package, never a skip.
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
    """The path of a program: a name that is looked up, or places where it may lie (`*` allowed)."""
    for path in map(str, paths):
        found = [path] if "/" in path else [shutil.which(path)]
        if "*" in path:
            found = sorted(str(p) for p in Path("/").glob(path.lstrip("/")))
        for candidate in found:
            if candidate and Path(candidate).exists():
                return candidate
    raise AssertionError(f"{package} is missing (scripts/setup backends installs it)")


def need_ruby(package, *libraries):
    """The path of Ruby, which has these libraries."""
    ruby = need("ruby", "ruby")
    requires = [f"-r{library}" for library in libraries]
    found = subprocess.run([ruby, *requires, "-e", ""], capture_output=True, timeout=READY_SECONDS)
    if found.returncode:
        raise AssertionError(f"{package} is missing (scripts/setup backends installs it)")
    return ruby


class Backend:
    """What all share: the started processes and their end."""

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
        """Starts a process in the folder; the match of its first line like `ready`, if any is."""
        env = {"FOLDER": str(self.folder)} | (env or {})
        child = Child(command, env=env, cwd=self.folder)
        self._children.append(child)
        return child.wait_for(ready, READY_SECONDS) if ready else None

    def run_until_it_listens(self, *command):
        """Starts a process that says nothing of itself, until its first socket takes connections."""
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
        """A Unix socket in the folder, among `servers` from now on."""
        path = self.folder / f"{name}.sock"
        self.servers.append(f"unix:{path}")
        return path

    def config(self, route=""):
        """A whole configuration with this back end behind every path."""
        return (
            "[server]\nthreads = 2\n\n"
            f"[upstreams.b]\nprotocol = {json.dumps(self.protocol)}\n"
            f"servers = {json.dumps(self.servers)}\n{self.settings}\n\n"
            f'[[sites]]\n[[sites.routes]]\npath = "/*"\nupstream = "b"\n{route}\n'
        )

    def print_output(self):
        for child in self._children:
            print(f"--- output of {type(self).__name__}", *child.lines[-60:], sep="\n")
