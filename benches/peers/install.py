"""What the comparison needs and this machine lacks: the peers, wrk, and Penstock's own release.

`run` calls `prepare` first, every time, so it asks little when nothing is missing: one look along
the PATH and one hash. As root on Debian it installs packages; everywhere else it says what is
missing and the comparison goes on without it. Only wrk and Penstock itself cannot be done without.
Python packages never go anywhere but into `benches/peers/.env`.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

PEERS = Path(__file__).resolve().parent
ROOT = PEERS.parents[1]
ENV = PEERS / ".env"

# The system's interpreters: one further up the PATH (pyenv, rbenv) is another version, and all
# servers of a scenario must run the application under the same one.
PYTHON = shutil.which("python3", path="/usr/bin:/usr/local/bin") or sys.executable
RUBY = shutil.which("ruby", path="/usr/bin:/usr/local/bin") or "ruby"

# Scenario -> Debian's packages -> the command that shows that they are there.
PACKAGES = {
    "wsgi": {"uwsgi-core uwsgi-plugin-python3": "uwsgi"},
    "rack": {"ruby ruby-rack": "ruby", "puma": "puma", "unicorn": "unicorn", "thin": "thin"},
    "static": {"nginx-light": "nginx"},
}


class MissingError(Exception):
    """Something without which nothing can be measured; the message says what to do."""


def command(name):
    """Where a command is, also when it lies in a folder for the administrator; None if nowhere."""
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/bin")


def prepare(scenarios):
    """Installs what the scenarios lack, as far as this user may."""
    wanted = {"wrk": "wrk", "util-linux": "taskset"}
    for scenario in scenarios:
        wanted |= PACKAGES[scenario]
    missing = [packages for packages, name in wanted.items() if not command(name)]
    if missing:
        packages(" ".join(missing).split())
    for name in ("wrk", "taskset"):
        if not command(name):
            raise MissingError(f"{name} is missing, and it does the measuring")
    if "wsgi" in scenarios:
        virtualenv()


def packages(names):
    if not command("apt-get") or os.getuid() != 0:
        return say(f"left out, because missing (by Debian's names): {' '.join(names)}")
    say(f"installing {' '.join(names)}")
    quiet = {
        "env": os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
        "stdout": subprocess.DEVNULL,
    }
    install = ["apt-get", "install", "-qq", "-y", "--no-install-recommends", *names]
    subprocess.run(["apt-get", "update", "-qq"], check=False, **quiet)
    if subprocess.run(install, check=False, **quiet).returncode != 0:
        say("apt-get failed: the comparison goes on without these")


def virtualenv():
    """The Python peers; stamped when complete, made anew when the stamp does not fit."""
    requirements = PEERS / "requirements.txt"
    told = requirements.read_bytes() + os.path.realpath(PYTHON).encode()
    stamp, fits = ENV / ".stamp", hashlib.sha256(told).hexdigest()
    if stamp.exists() and stamp.read_text() == fits:
        return
    say(f"making {ENV.relative_to(ROOT)} with {' '.join(requirements.read_text().split())}")
    try:
        subprocess.run([PYTHON, "-m", "venv", "--clear", ENV], check=True)
        pip = [ENV / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "-r", requirements], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise MissingError(f"no virtualenv for the WSGI servers: {error}") from None
    stamp.write_text(fits)


def penstock():
    """The release binary, built if it is not up to date."""
    if not command("cargo"):
        raise MissingError(
            "cargo is missing: install a Rust toolchain, or name a binary: --penstock"
        )
    build = ["cargo", "build", "--release", "--quiet", "-p", "penstock"]
    if subprocess.run(build, cwd=ROOT, check=False).returncode != 0:
        raise MissingError("penstock does not build")
    target = Path(os.environ.get("CARGO_TARGET_DIR") or "target")
    return ROOT / target / "release/penstock"


def say(text):
    print(f"peers: {text}", file=sys.stderr)
