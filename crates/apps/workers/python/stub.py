"""Loads the worker package out of a bundle and runs it: `python3 -c STUB BUNDLE_FD OPTIONS`.

The bundle is a memory file with all modules (see `worker_scripts.rs`), read with `pread` because several
workers may share it. Sources stay reachable for tracebacks through the loader.
"""

import sys

# Before anything that an older Python does not have.
if sys.version_info < (3, 8):
    sys.exit(
        "Python 3.8 or newer is needed, and %s is %s" % (sys.executable, sys.version.split()[0])
    )

import importlib.abc  # noqa: E402
import importlib.machinery  # noqa: E402
import os  # noqa: E402


class Bundle(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    def __init__(self, fd):
        self.sources, data = {}, b""
        while True:
            chunk = os.pread(fd, 1 << 20, len(data))
            if not chunk:
                break
            data += chunk
        os.close(fd)
        parts, at = [], 0
        while at < len(data):
            size = int.from_bytes(data[at : at + 4], "little")
            parts.append(data[at + 4 : at + 4 + size])
            at += 4 + size
        self.native = b""
        for name, source in zip(map(bytes.decode, parts[::2]), parts[1::2]):
            module, ending = name.rsplit(".", 1)
            if ending == "so":
                self.native = source
            else:
                module = ("penstock_worker." + module).replace(".__init__", "")
                self.sources[module] = (name, source.decode())

    def find_spec(self, name, path=None, target=None):
        if name not in self.sources:
            return None
        origin = "penstock_worker/" + self.sources[name][0]
        spec = importlib.machinery.ModuleSpec(name, self, origin=origin)
        spec.has_location = True  # gives the module its __file__
        if name == "penstock_worker":
            spec.submodule_search_locations = []
        return spec

    def get_source(self, name):
        return self.sources[name][1]

    def get_code(self, name):
        file, source = self.sources[name]
        return compile(source, "penstock_worker/" + file, "exec", dont_inherit=True)

    def is_package(self, name):
        return name == "penstock_worker"


sys.meta_path.insert(0, Bundle(int(sys.argv.pop(1))))
from penstock_worker.boot import main  # noqa: E402

sys.exit(main(sys.argv[1:]))
