"""Disks under the cache fail one after another without harm to clients; `kill -9` tears nothing.

Three cache directories, each a file system of its own in a file (ext4 on a loop device), stand
before an origin that makes each body from its URL. Constant clients check every byte. Meanwhile one
disk is unmounted under the running server, made read-only, filled, frozen (`fsfreeze`: writers
block), given errors (its device is cut short, so that reads and writes fail with EIO) or made
unwritable (`chattr +i`).

Invariants: every response is whole and right; the other two disks go on serving what they have; the
status names the one that is out; and it comes back once it is repaired.

Then a server with a cache on a disk is killed while it writes, again and again: after each start
every body is right to the byte, and some are those stored before.

Mounting needs root and a free loop device; without them the first half is skipped. `PENSTOCK_KILLS`
is the number of kills (10); `PENSTOCK_SEED` repeats a run.
"""

import collections
import contextlib
import hashlib
import http.client
import http.server
import json
import os
import random
import shutil
import socketserver
import subprocess
import threading
import time
import unittest
from pathlib import Path

from harness import READY_SECONDS, RealCase, Server, until

KILLS = int(os.environ.get("PENSTOCK_KILLS", "10"))
SEED = int(os.environ.get("PENSTOCK_SEED") or random.SystemRandom().randrange(1 << 32))

# Seconds that a client waits for a response: a whole body from a busy machine.
PATIENCE = 60
# Seconds until a broken or repaired disk is noticed: the pauses between probes grow.
NOTICE = 60
CLIENTS = 8
URLS = 400
DISKS = ("one", "two", "three")
DISK_BYTES = 64 << 20
# The length left of a device that is cut short: the file system's metadata in front stays.
DISK_LEFT_BYTES = 8 << 20

SIZES = (1_000, 1_000, 4_000, 4_000, 30_000, 30_000, 200_000, 200_000, 1_000_000, 5_000_000)


def length_of(target):
    """Returns the length of a URL's body; most are small."""
    return SIZES[hashlib.sha256(target.encode()).digest()[0] % len(SIZES)]


def body_of(target):
    """Returns the body of a URL, which no other URL has: a keyed stream of bytes."""
    return hashlib.shake_128(target.encode()).digest(length_of(target))


class Bodies:
    """The bodies by their URL, each made once."""

    def __init__(self):
        self._made = {}

    def __getitem__(self, target):
        if target not in self._made:
            self._made[target] = body_of(target)
        return self._made[target]


BODIES = Bodies()


class Origin(socketserver.ThreadingMixIn, http.server.HTTPServer):
    """Answers every URL with its body, and counts the requests."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answering)
        self.asked = 0
        self._thread = threading.Thread(target=self.serve_forever, daemon=True)
        self._thread.start()

    def handle_error(self, request, client_address):
        """Ignores the errors of a killed server's connections."""

    def close(self):
        self.shutdown()
        self.server_close()


class Answering(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.server.asked += 1
        body = BODIES[self.path]
        self.send_response(200)
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Cache-Control", "max-age=86400")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        # In pieces: a body grows while it is read, and a kill may come between any two.
        for at in range(0, len(body), 65_536):
            self.wfile.write(body[at : at + 65_536])

    def log_message(self, *_):
        pass


class Front(Server):
    """The real server, with requests to its admin interface; it may be killed."""

    def __init__(self, config):
        super().__init__(config, app=False)
        self._lock = threading.Lock()

    def __enter__(self):
        super().__enter__()
        found = self._child.wait_for(r"^status http://127\.0\.0\.1:(\d+)/", READY_SECONDS)
        self._admin = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=PATIENCE)
        return self

    def __exit__(self, kind, error, trace):
        self._admin.close()
        super().__exit__(kind, error, trace)

    def status(self):
        with self._lock:
            self._admin.request("GET", "/status.json")
            return json.loads(self._admin.getresponse().read())

    def caches(self):
        """Returns the status of each cache by its name."""
        return {cache["name"]: cache for cache in self.status()["caches"]}

    def kill(self):
        """Sends SIGKILL: nothing is finished."""
        self._child.kill()
        self._connection.close()
        self._admin.close()


def fetch(connection, target):
    """Makes one GET; returns the status, whether it was a hit, and whether the body is right."""
    # The port changes with each start, and would be in the key.
    connection.request("GET", target, headers={"Host": "caches.example"})
    response = connection.getresponse()
    body = response.read()
    is_hit = "; hit" in (response.headers.get("Cache-Status") or "")
    return response.status, is_hit, body == BODIES[target]


class Client(threading.Thread):
    """Requests random URLs on one connection until it is stopped; records wrong responses."""

    def __init__(self, number, port, targets, stop):
        super().__init__(daemon=True)
        self.wrong = []
        self.cuts = []
        self.counts = collections.Counter()
        self._port = port
        self._targets = targets
        self._stop_asking = stop
        self._random = random.Random(SEED + number)

    def run(self):
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE)
        while not self._stop_asking.is_set():
            target = self._random.choice(self._targets)
            try:
                status, is_hit, is_right = fetch(connection, target)
            except (OSError, http.client.HTTPException) as error:
                self.cuts.append(f"{target}: {error!r}")
                connection.close()
                continue
            self.counts["hits" if is_hit else "misses"] += 1
            if status != 200 or not is_right:
                self.wrong.append(f"{target}: {status}, hit {is_hit}, right {is_right}")
        connection.close()


class Load:
    """Constant clients; a context manager that returns their results."""

    def __init__(self, port, targets):
        self._stop = threading.Event()
        self.clients = [Client(number, port, targets, self._stop) for number in range(CLIENTS)]

    def __enter__(self):
        for client in self.clients:
            client.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        for client in self.clients:
            client.join(PATIENCE)

    @property
    def wrong(self):
        return [it for client in self.clients for it in client.wrong]

    @property
    def cuts(self):
        return [it for client in self.clients for it in client.cuts]

    @property
    def counts(self):
        return sum((client.counts for client in self.clients), collections.Counter())


def run(*command):
    """Runs a command that must succeed."""
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode != 0:
        raise OSError(f"{command}: {done.stderr.strip() or done.returncode}")
    return done.stdout.strip()


class Disk:
    """A file system of its own in a file: made, mounted, broken in several ways, and repaired."""

    def __init__(self, folder, name):
        self.image = folder / f"{name}.img"
        self.mount = folder / name
        self.cache = self.mount / "cache"
        self.device = None
        # All devices that it ever had.
        self.devices = []

    def make(self):
        with open(self.image, "wb") as image:
            image.truncate(DISK_BYTES)
        self.mount.mkdir(exist_ok=True)
        self.device = run("losetup", "--find", "--show", self.image)
        self.devices.append(self.device)
        run("mkfs.ext4", "-q", "-F", "-O", "^has_journal", self.device)
        self.attach()

    def attach(self):
        run("mount", "-o", "errors=continue", self.device, self.mount)
        self.cache.mkdir(exist_ok=True)

    def unmount(self):
        """Detaches the disk as when it is pulled: open files stay open, no path leads to them."""
        run("umount", "-l", self.mount)

    def read_only(self):
        """Remounts read-only, as the kernel does after a file system error."""
        run("mount", "-o", "remount,errors=remount-ro", self.mount)
        device = Path(self.device).name
        Path(f"/sys/fs/ext4/{device}/trigger_fs_error").write_text("on purpose")

    def repair(self):
        """Repairs the file system, as its operator would."""
        self.unmount()
        # The last open file keeps the old file system, and that keeps the device.
        until("the old file system is unused", lambda: not fails(self.check), NOTICE)
        self.attach()

    def check(self):
        done = subprocess.run(["fsck.ext4", "-fy", self.device], capture_output=True, timeout=60)
        # 1 means that errors were found and corrected.
        if done.returncode > 1:
            raise OSError(done.stderr)

    def fill(self):
        """Takes all free space."""
        with open(self.mount / "filler", "wb", buffering=0) as filler:
            for size in (1 << 20, 1 << 12):
                with contextlib.suppress(OSError):
                    while True:
                        filler.write(bytes(size))

    def empty(self):
        (self.mount / "filler").unlink()

    def freeze(self):
        run("fsfreeze", "--freeze", self.mount)

    def thaw(self):
        run("fsfreeze", "--unfreeze", self.mount)

    def lose_end(self):
        """Makes the device shorter than its file system: I/O behind its end gives EIO."""
        # Only written pages can be dropped, and so have to be read again.
        run("sync", "--file-system", self.mount)
        os.truncate(self.image, DISK_LEFT_BYTES)
        run("losetup", "--set-capacity", self.device)
        Path("/proc/sys/vm/drop_caches").write_text("3\n")

    def replace(self):
        """Puts a new disk in place of the broken one."""
        self.unmount()
        self.image.unlink()
        self.make()

    def forbid(self):
        """Makes the directory immutable: root ignores permissions, but not this."""
        run("chattr", "-R", "+i", self.cache)

    def allow(self):
        run("chattr", "-R", "-i", self.cache)

    def close(self):
        """Leaves nothing mounted and no device, in any state."""
        commands = [("fsfreeze", "--unfreeze", self.mount), ("umount", "-l", self.mount)]
        commands += [("losetup", "--detach", device) for device in self.devices]
        for command in commands:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                run(*command)


CONFIG = """
[server]
threads = 2

{caches}
[upstreams.b]
servers = ["127.0.0.1:{port}"]

[[sites]]
[[sites.routes]]
path = "/*"
upstream = "b"
cache = {{ stores = {names}, lock_timeout = "20s" }}
"""

CACHE = """
[blocking.{name}]
threads = 4

[caches.{name}]
path = "{path}"
max_size = "{size}"
max_memory = "256KiB"
blocking = "{name}"
stall_timeout = "2s"

"""


def config(folder, port, caches, size):
    """Writes a configuration file with these caches, by name and directory."""
    tables = [CACHE.format(name=name, path=path, size=size) for name, path in caches.items()]
    file = folder / "penstock.toml"
    names = json.dumps(list(caches))
    file.write_text(CONFIG.format(caches="".join(tables), port=port, names=names))
    return file


class FailingDisks(RealCase):
    """Each kind of failure in turn, on one of three disks, under load."""

    @classmethod
    def setUpClass(cls):
        if os.geteuid() != 0:
            raise unittest.SkipTest("mounting needs root")
        for tool in ("losetup", "mount", "umount", "mkfs.ext4", "fsfreeze", "chattr"):
            if not shutil.which(tool):
                raise unittest.SkipTest(f"there is no {tool}")
        folder = cls.folder()
        cls.disks = {name: Disk(folder, name) for name in DISKS}
        for disk in cls.disks.values():
            cls.addClassCleanup(disk.close)
            try:
                disk.make()
            except OSError as error:
                raise unittest.SkipTest(f"no file system of our own here: {error}") from None
        cls.origin = Origin()
        cls.addClassCleanup(cls.origin.close)
        caches = {name: disk.cache for name, disk in cls.disks.items()}
        file = config(folder, cls.origin.server_address[1], caches, "40MiB")
        cls.server = cls.enterClassContext(Front(file))
        cls.targets = [f"/{number}" for number in range(URLS)]
        # Large bodies fill these disks on their own.
        cls.targets = [target for target in cls.targets if length_of(target) <= 200_000]

    def setUp(self):
        self.wait_all_in()

    def wait_all_in(self):
        until(
            "all disks are in use",
            lambda: all(cache["state"] == "working" for cache in self.server.caches().values()),
            NOTICE,
        )

    def hurt(self, name, hurt, mend, *, must_be_out=True, cuts_max=0):
        """Breaks a disk under load, waits until it is out, repairs it, waits until it is back."""
        disk = self.disks[name]
        others = [other for other in DISKS if other != name]
        print(f"caches: {self._testMethodName}:", end=" ", flush=True)
        load = Load(self.server.port, self.targets)
        # Clients' results are reported first, even after another failure.
        self.addCleanup(self.assert_none, load, cuts_max)
        with load:
            until("hits", lambda: load.counts["hits"] > 200, PATIENCE)
            before = self.server.caches()
            began = time.monotonic()
            hurt(disk)
            try:
                self.force_writes()
                if must_be_out:
                    out = until(f"{name} is out", lambda: self.is_out(name), NOTICE)
                    took = time.monotonic() - began
                    print(f"out after {took:.1f} s ({out['reason']})", end=", ", flush=True)
                    self.assertTrue(out["reason"])
                hits = {other: before[other]["counters"]["hits"] for other in others}
                until(
                    "the others go on answering",
                    lambda: self.all_have_hits(hits, 300),
                    PATIENCE,
                )
                for other in others:
                    self.assertEqual(self.server.caches()[other]["state"], "working")
            finally:
                mend(disk)
            began = time.monotonic()
            self.wait_all_in()
            took = time.monotonic() - began
            hits = self.server.caches()[name]["counters"]["hits"]
            until(
                f"{name} answers again",
                lambda: self.server.caches()[name]["counters"]["hits"] > hits + 20,
                PATIENCE,
            )
            print(f"back in {took:.1f} s after it was mended, {dict(load.counts)}", flush=True)
        self.assertGreater(load.counts["hits"], 0)

    def assert_none(self, load, cuts_max):
        self.assertLessEqual(
            len(load.cuts), cuts_max, f"cut: {load.cuts[:10]}, PENSTOCK_SEED={SEED}"
        )
        self.assertEqual(
            load.wrong[:10], [], f"{len(load.wrong)} wrong answers, PENSTOCK_SEED={SEED}"
        )

    def is_out(self, name):
        cache = self.server.caches()[name]
        return cache if cache["state"] == "out_of_service" else None

    def all_have_hits(self, before, more):
        caches = self.server.caches()
        return all(caches[name]["counters"]["hits"] >= hits + more for name, hits in before.items())

    def test_one_is_unmounted(self):
        self.hurt("one", Disk.unmount, Disk.attach)

    def test_one_is_read_only(self):
        self.hurt("two", Disk.read_only, Disk.repair)

    def test_one_is_full(self):
        self.hurt("three", Disk.fill, Disk.empty, must_be_out=False)

    def test_one_is_frozen(self):
        self.hurt("one", Disk.freeze, Disk.thaw)

    def test_one_gives_errors(self):
        errors = self.server.caches()["two"]["counters"]["errors"]
        # A body that is being sent is cut; no partial body passes as whole, and later requests
        # succeed.
        self.hurt("two", Disk.lose_end, Disk.replace, must_be_out=False, cuts_max=CLIENTS)
        self.assertGreater(self.server.caches()["two"]["counters"]["errors"], errors)

    def test_one_may_not_be_written(self):
        self.hurt("three", Disk.forbid, Disk.allow)

    def force_writes(self):
        """Requests new URLs, so that every disk has to write; no failing disk costs a response."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=PATIENCE)
        for number in range(120):
            target = f"/new/{self._testMethodName}/{number}"
            if length_of(target) > 200_000:
                continue
            status, _, is_right = fetch(connection, target)
            self.assertEqual((status, is_right), (200, True), target)
        connection.close()


def fails(action):
    try:
        action()
    except OSError:
        return True
    return False


class SuddenDeath(RealCase):
    """`kill -9` during writes: whatever is served afterwards is right to the byte."""

    @classmethod
    def setUpClass(cls):
        cls.root = cls.folder()
        cls.origin = Origin()
        cls.addClassCleanup(cls.origin.close)
        caches = {name: cls.root / name for name in DISKS}
        cls.config = config(cls.root, cls.origin.server_address[1], caches, "200MiB")

    def test_nothing_torn_is_served(self):
        chance = random.Random(SEED)
        known = []
        counts = collections.Counter()
        for life in range(KILLS + 1):
            front = Front(self.config)
            front.__enter__()
            try:
                counts += self.look_again(front, known, chance)
                if life < KILLS:
                    known += self.write_until_killed(front, life, chance)
            except BaseException:
                front.print_output()
                raise
            finally:
                front.kill()
        print(f"caches: seed {SEED}, killed {KILLS} times: {dict(counts)}", flush=True)
        self.assertGreater(counts["later hits"], 0, "no object survived a kill")

    def look_again(self, front, known, chance):
        """Requests URLs of earlier lives: some while the directories are still read in, others
        after."""
        counts = collections.Counter()
        sample = chance.sample(known, min(len(known), 80))
        for is_read_in in (False, True):
            if is_read_in:
                until(
                    "the folders are read in",
                    lambda: all(it["state"] == "working" for it in front.caches().values()),
                    NOTICE,
                )
            connection = http.client.HTTPConnection("127.0.0.1", front.port, timeout=PATIENCE)
            for target in sample[is_read_in::2]:
                status, is_hit, is_right = fetch(connection, target)
                self.assertTrue(
                    status == 200 and is_right,
                    f"{target}: {status}, hit {is_hit}; PENSTOCK_SEED={SEED}",
                )
                when = "later" if is_read_in else "early"
                counts[f"{when} {'hits' if is_hit else 'misses'}"] += 1
            connection.close()
        return counts

    def write_until_killed(self, front, life, chance):
        """Clients request new bodies until the server is killed at a random moment."""
        targets = [f"/{life}/{number}" for number in range(120)]
        wanted = collections.deque(targets)
        begun, whole = [], []

        def ask():
            connection = http.client.HTTPConnection("127.0.0.1", front.port, timeout=PATIENCE)
            with contextlib.suppress(OSError, http.client.HTTPException, IndexError):
                while True:
                    target = wanted.popleft()
                    begun.append(target)
                    status, _, is_right = fetch(connection, target)
                    whole.append((target, status == 200 and is_right))
            connection.close()

        clients = [threading.Thread(target=ask, daemon=True) for _ in range(CLIENTS)]
        for client in clients:
            client.start()
        enough = chance.randrange(10, 100)
        until("enough is written", lambda: len(begun) >= enough, PATIENCE)
        front.kill()
        for client in clients:
            client.join(PATIENCE)
        self.assertEqual([target for target, is_right in whole if not is_right], [])
        return begun


if __name__ == "__main__":
    unittest.main()
