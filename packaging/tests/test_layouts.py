"""Every usual layout, served by a bare `penstock serve` in a bare Debian, within a minute.

The root has nothing but Python and pip's wheel, or Ruby and the gem; frameworks are installed into virtual
environments inside. PACKAGES/layouts.md has the seconds of each. pip reaches its index as this machine is set
up to.
"""

import os
import pathlib
import re
import shutil
import sys
import tempfile
import time
import unittest
from typing import NamedTuple

from support import (
    CHROOT_ENVIRONMENT,
    START_DEADLINE,
    PackageTest,
    debian_copy,
    debian_root,
    needs_root,
    package,
    project,
    run,
)

sys.path.insert(0, str(project.ROOT / "tests/real"))

import laying
import layouts

# Of the developer whose projects they are.
USER = 1000
HOME = pathlib.PurePosixPath("/home/dev")
ENVIRONMENTS = pathlib.PurePosixPath("/opt")
AUTHORITIES = pathlib.PurePosixPath("/etc/ssl/certs/ca-certificates.crt")
SERVE = "penstock serve --listen 127.0.0.1:0 --admin off"


class Refusal(NamedTuple):
    """A layout that is refused: the line with its command, and links that lead nowhere."""

    layout: layouts.Layout
    command: str
    links: dict[str, str] = {}


REFUSED = {
    "Flask, an application in a folder below": Refusal(
        layouts.Layout({"backend/app.py": layouts.FLASK}, "app:app (Flask)", environment="flask"),
        r"has an application: (.+)$",
    ),
    "Flask, an environment whose interpreter is gone": Refusal(
        layouts.Layout(
            {"app.py": layouts.FLASK, "requirements.txt": "flask\n", ".venv/pyvenv.cfg": ""},
            "app:app (Flask)",
        ),
        r"make the environment again: (.+)$",
        {".venv/bin/python": "/usr/bin/python3.5"},
    ),
}

rows = []


def tearDownModule():
    """Writes the table."""
    lines = ["| layout | what the start says | seconds |", "|---|---|---|"]
    lines += [f"| {name} | {said} | {seconds:.1f} |" for name, said, seconds in rows]
    path = project.PACKAGES / "layouts.md"
    path.write_text("\n".join(lines) + "\n")
    for line in pathlib.Path("/proc/self/mounts").read_text().splitlines():
        if "penstock-layouts-" in line:
            raise AssertionError(f"still mounted: {line}")


def network_environment():
    """The variables by which this machine sets pip up: its index and its authorities."""
    told = {
        name: value
        for name, value in os.environ.items()
        if name.startswith("PIP_") or name.lower().endswith("_proxy")
    }
    return told | {"PIP_CERT": str(AUTHORITIES), "SSL_CERT_FILE": str(AUTHORITIES)}


def chroot(root, *command, folder="/", user=0):
    """Runs a command in a folder of a root, with the network."""
    environment = CHROOT_ENVIRONMENT | network_environment() | {"HOME": str(HOME)}
    words = ["chroot", f"--userspec={user}:{user}", root, "env", "-C", folder, *command]
    return run(*words, env=environment)


def open_network(root):
    """Gives a root what names and certificates of the index need."""
    for path in (AUTHORITIES, "/etc/resolv.conf"):
        project.install(path, root / str(path).lstrip("/"))


def install_frameworks(root):
    """Makes a virtual environment for each framework in the bare root, once."""
    names = sorted({layout.environment for layout in layouts.PYTHON.values()})
    lists = project.ROOT / "tests/real/applications"
    wanted = {name: (lists / name / "requirements.txt").read_text() for name in names}
    stamp = root.with_suffix(".frameworks")
    if stamp.is_file() and stamp.read_text() == str(wanted):
        return
    open_network(root)
    # One pip for all of them.
    chroot(root, "python3", "-m", "venv", "--clear", ENVIRONMENTS / "pip")
    for name, packages in wanted.items():
        folder = ENVIRONMENTS / name
        chroot(root, "python3", "-m", "venv", "--clear", "--without-pip", folder)
        pip = [ENVIRONMENTS / "pip/bin/pip", "--python", folder / "bin/python"]
        chroot(root, *pip, "install", "--quiet", *packages.split())
    stamp.write_text(str(wanted))


class LayoutTest(PackageTest):
    """A root for all tests of a class, and a folder with a user of its own for each."""

    base = None

    @classmethod
    def setUpClass(cls):
        folder = pathlib.Path(tempfile.mkdtemp(prefix="penstock-layouts-"))
        cls.addClassCleanup(shutil.rmtree, folder, ignore_errors=True)
        cls.root = cls.enterClassContext(debian_copy(folder, cls.base))
        open_network(cls.root)
        cls.chroot("useradd", "--uid", USER, "--home-dir", HOME, "--create-home", "dev")

    @classmethod
    def inside(cls, path):
        """The path from here of a file in the root."""
        return cls.root / str(path).lstrip("/")

    @classmethod
    def chroot(cls, *command, **options):
        return chroot(cls.root, *command, **options)

    def make_project(self, layout, environment, links=None):
        """Makes the layout's folder in a parent of its own; returns it with its variables."""
        parent = HOME / self.id().rsplit(".", 1)[1].removeprefix("test_")
        folder = pathlib.Path(parent / "site")
        real = self.inside(folder)
        real.mkdir(parents=True)
        shutil.chown(self.inside(parent), USER, USER)
        shutil.chown(real, USER, USER)
        laying.generate(
            layout, real, environment, lambda line: self.chroot(*line, folder=folder, user=USER)
        )
        laying.write_files(layout, real)
        variables, link = laying.place_environment(layout, folder, environment)
        if link:
            self.inside(link).parent.mkdir(parents=True, exist_ok=True)
            self.inside(link).symlink_to(environment)
        for name, target in (links or {}).items():
            (real / name).parent.mkdir(parents=True, exist_ok=True)
            (real / name).symlink_to(target)
        self.chroot("chown", "-R", f"{USER}:{USER}", str(parent))
        return folder, {"HOME": str(parent)} | variables | layout.env

    def start(self, folder, variables, command=SERVE):
        words = ["chroot", f"--userspec={USER}:{USER}", self.root, "env", "-C", folder]
        environment = CHROOT_ENVIRONMENT | variables
        return self.serve(*words, *command.split(), env=environment)

    def serve_layout(self, name, layout, folder, variables, command=SERVE):
        """The first page comes in time; the row of the table says how long it took."""
        begun = time.monotonic()
        server = self.start(folder, variables, command)
        status, body = server.get("/")
        seconds = time.monotonic() - begun
        self.assertEqual(status, 200)
        self.assertIn(layout.text, body)
        serving = re.findall(r"^serving (.+)$", server.output, re.MULTILINE)
        self.assertEqual(len(serving), 1, server.output)
        self.assertIn(layout.found, serving[0])
        self.assertLess(seconds, START_DEADLINE)
        self.assertEqual(server.stop(), 0, server.output)
        rows.append((name, f"serving {serving[0]}", seconds))

    def check(self, name, layout):
        environment = pathlib.Path(ENVIRONMENTS / layout.environment)
        self.serve_layout(name, layout, *self.make_project(layout, environment))


@needs_root
class PythonLayouts(LayoutTest):
    base = "python"

    @classmethod
    def setUpClass(cls):
        install_frameworks(debian_root(cls.base))
        super().setUpClass()
        begun = time.monotonic()
        wheel = package(f"penstock-{project.VERSION}-*manylinux2014_x86_64.whl")
        shutil.copy(wheel, cls.root / "tmp")
        cls.chroot("python3", "-m", "venv", "/opt/penstock")
        cls.chroot("/opt/penstock/bin/pip", "install", "--quiet", f"/tmp/{wheel.name}")
        rows.append((f"`pip install {wheel.name}`", "", time.monotonic() - begun))
        (cls.root / "usr/local/bin/penstock").symlink_to("/opt/penstock/bin/penstock")

    def check_refused(self, name, refusal):
        """The refusal has a command that then works."""
        layout = refusal.layout
        environment = pathlib.Path(ENVIRONMENTS / layout.environment)
        folder, variables = self.make_project(layout, environment, refusal.links)
        words = ["chroot", f"--userspec={USER}:{USER}", self.root, "env", "-C", folder]
        text = run(*words, *SERVE.split(), code=2, env=CHROOT_ENVIRONMENT | variables)
        found = re.search(refusal.command, text, re.MULTILINE)
        self.assertTrue(found, text)
        command = found[1]
        if command.startswith("penstock serve "):
            serve = f"{SERVE} {command.removeprefix('penstock serve ')}"
        else:
            # How long it installs depends on the index.
            self.chroot("sh", "-ec", command, folder=folder, user=USER)
            serve = SERVE
        self.serve_layout(f"{name}: `{command}`", layout, folder, variables, serve)


@needs_root
class RubyLayouts(LayoutTest):
    base = "ruby"

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        begun = time.monotonic()
        gem = package(f"penstock-{project.VERSION}-x86_64-linux.gem")
        shutil.copy(gem, cls.root / "tmp")
        cls.chroot("gem", "install", "--local", "--no-document", f"/tmp/{gem.name}")
        rows.append((f"`gem install {gem.name}`", "", time.monotonic() - begun))


def _add_test(case, name, check):
    setattr(case, "test_" + re.sub(r"\W+", "_", name.lower()), check)


for _name, _layout in layouts.PYTHON.items():
    _add_test(PythonLayouts, _name, lambda self, n=_name, row=_layout: self.check(n, row))
for _name, _row in REFUSED.items():
    _add_test(PythonLayouts, _name, lambda self, n=_name, row=_row: self.check_refused(n, row))
for _name, _layout in layouts.RUBY.items():
    _add_test(RubyLayouts, _name, lambda self, n=_name, row=_layout: self.check(n, row))

if __name__ == "__main__":
    unittest.main()
