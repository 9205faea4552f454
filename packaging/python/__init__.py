"""Penstock, a web server in one binary: this package finds and runs it."""

import os
import sysconfig

__all__ = ["find_penstock"]


def find_penstock():
    """Return the path of the binary that this package has installed.

    Raises FileNotFoundError if it is missing.
    """
    folders = [sysconfig.get_path("scripts")]
    # `pip install --user`, and `pip install --target FOLDER`.
    folders.append(sysconfig.get_path("scripts", scheme="posix_user"))
    beside = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    folders.append(os.path.join(beside, "bin"))
    for folder in folders:
        path = os.path.join(folder, "penstock")
        if os.access(path, os.X_OK):
            return path
    raise FileNotFoundError(
        f"the penstock binary is in none of {', '.join(folders)}: "
        "run pip install --force-reinstall penstock"
    )
