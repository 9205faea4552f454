"""The native part of this package, where the interpreter can load it: `crates/apps/workers/native`.

`wire` and `wsgi` ask for it once. It is the same code for CPython 3.10 and later (stable ABI) and for
every C library. Without it, under another interpreter or with `PENSTOCK_NATIVE=off`, the scripts do
all of it by themselves.

# Invariants
- A part that cannot be loaded costs speed, never the start.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from typing import Any

_NAME = "penstock_worker._native"


def _load() -> Any:
    """The module; None where there is none."""
    setting = os.environ.get("PENSTOCK_NATIVE", "")
    is_fit = sys.implementation.name == "cpython" and sys.version_info >= (3, 10)
    # Builds without the global lock have no stable ABI.
    if setting == "off" or not is_fit or "t" in getattr(sys, "abiflags", ""):
        return None
    data = _bundled()
    try:
        if not data:
            # Tests name a file.
            return _import_from(setting) if setting else None
        fd = os.memfd_create("penstock-native")
        try:
            with open(fd, "wb", closefd=False) as file:
                file.write(data)
            # Not by the usual path: the C library takes a library of a known path for loaded, and
            # the number of this descriptor will be used again.
            return _import_from(f"/proc/self/task/../fd/{fd}")
        finally:
            os.close(fd)
    except Exception:
        return None


def _bundled() -> bytes:
    return getattr(getattr(__spec__, "loader", None), "native", b"")


def _import_from(path: str) -> Any:
    loader = importlib.machinery.ExtensionFileLoader(_NAME, path)
    spec = importlib.util.spec_from_loader(_NAME, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


module: Any = _load()

# Whether the server is the one that this part was made for, and so reads its ring of answers.
is_of_server = module is not None and bool(_bundled())
