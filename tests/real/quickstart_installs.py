"""Stand-ins for what quick starts install: packages that `scripts/setup` has put on this machine.

- `python3 -m venv` makes a virtual environment of the same interpreter as the prepared one, and
  `pip install` shows it the prepared one's packages and programs. A package that is named and not
  there is an error. With `PENSTOCK_APPLICATIONS=1` (`make test-applications`) both run as written,
  with the registry that pip is configured for.
- `gem install` requires that each gem is installed already: those are Debian's packages.
- `rails new` makes the project with a `Gemfile` of gems that this machine has.
- The wheel and the gem of Penstock are the binary that the tests test. Packages themselves are
  tried by `make test-packages`.
"""

import os
import re
import shlex
import subprocess
from pathlib import Path

from harness import BIN

REAL = os.environ.get("PENSTOCK_APPLICATIONS") == "1"
VENV = re.compile(r"python3 -m venv (\S+)")
PIP = re.compile(r"(\S+)/bin/pip install (.+)")
GEM = re.compile(r"gem install (.+)")
RAILS = re.compile(r"rails new (\S+)( .*)?")
PENSTOCK = re.compile(r"\S*penstock-\S*\.(whl|gem)")


class Installs:
    """The programs of one run, in `programs`; Python packages are those of `environment`."""

    def __init__(self, programs, environment):
        self.programs, self.environment = programs, environment

    def link(self, path):
        path.symlink_to(Path(BIN).resolve())

    def stand_in(self, command, cwd):
        """Returns the command to run in place of one that installs; None for others."""
        if found := VENV.fullmatch(command):
            return (
                None if REAL else f"{self.environment}/bin/python -m venv --without-pip {found[1]}"
            )
        if found := PIP.fullmatch(command):
            return self.pip(cwd / found[1], found[2].split())
        if found := GEM.fullmatch(command):
            return self.gem(found[1].split())
        if RAILS.fullmatch(command):
            return f"{command} --skip-bundle --skip-listen"
        return None

    def pip(self, folder, names):
        packages = [name for name in names if not PENSTOCK.fullmatch(name)]
        if len(packages) < len(names):
            self.link(folder / "bin" / "penstock")
        if REAL:
            return shlex.join([f"{folder}/bin/pip", "install", *packages])
        check = "import sys, importlib.metadata as m; [m.version(it) for it in sys.argv[1:]]"
        self.share(folder)
        return shlex.join([f"{folder}/bin/python", "-c", check, *packages])

    def share(self, folder):
        """Shows a new virtual environment the packages and programs of the prepared one."""
        programs = folder / "bin"
        site = next(folder.glob("lib/python*/site-packages"))
        prepared = self.environment / site.relative_to(folder)
        (site / "prepared.pth").write_text(f"{prepared}\n")
        for program in (self.environment / "bin").iterdir():
            copy = programs / program.name
            first, _, rest = program.read_bytes().partition(b"\n")
            if re.fullmatch(rb"#!\S+/python[\d.]*", first) and not copy.exists():
                copy.write_bytes(f"#!{programs}/python\n".encode() + rest)
                copy.chmod(0o755)

    def gem(self, names):
        gems = [name for name in names if not PENSTOCK.fullmatch(name)]
        if len(gems) < len(names):
            self.link(self.programs / "penstock")
        return " && ".join(["true", *(f"gem list -i '^{gem}$'" for gem in gems)])

    def clean(self, command, cwd):
        """Takes gems that this machine lacks out of the `Gemfile` of a new project."""
        if found := RAILS.match(command):
            gemfile = cwd / found[1] / "Gemfile"
            gemfile = gemfile if gemfile.exists() else cwd / "Gemfile"
            lines = gemfile.read_text().splitlines()
            gemfile.write_text("".join(f"{line}\n" for line in lines if is_here(line)))


def is_here(line):
    found = re.match(r"\s*gem ['\"]([\w-]+)['\"]", line)
    if not found:
        return True
    query = ["gem", "list", "-i", f"^{found[1]}$"]
    return subprocess.run(query, capture_output=True).returncode == 0
