"""Back ends die, freeze, restart and drain at random under load; only their own requests suffer.

Five counting servers (`backends/counter.py`) stand behind the real server. Clients send `GET`,
`PUT` and `POST` with ids that are used once, while an agent of chaos kills, stops, restarts, drains
and deploys the servers by a seed, and always leaves two of the five alone.

Invariants, by the servers' own files: no idempotent request fails; a `POST` with a response is done
exactly once, one that failed at most once; and a `POST` fails only because its server was killed or
stopped while it had the request.

`PENSTOCK_CHAOS_SECONDS` is the length of a run (15); `PENSTOCK_SEED` repeats one. Actions and
results are printed.
"""

import collections
import http.client
import json
import os
import random
import re
import signal
import sys
import threading
import time
import unittest
from pathlib import Path

from harness import READY_SECONDS, Child, RealCase, Server, until

SECONDS = float(os.environ.get("PENSTOCK_CHAOS_SECONDS", "15"))
SEED = int(os.environ.get("PENSTOCK_SEED") or random.SystemRandom().randrange(1 << 32))

COUNTER = Path(__file__).resolve().parent / "backends" / "counter.py"
CLIENTS = 16
SERVERS = 5
LEFT_ALONE = 2
ACTIVE_MAX = 4
# Seconds that a server stays hurt: from unnoticeable to well past every timeout.
HURT_SECONDS = (0.1, 3)
# Further responses for each client once all servers are repaired.
CALM_ANSWERS = 50
# Seconds that a client waits for a response: all tries, a full queue and a busy machine.
PATIENCE = 60

CONFIG = """
[server]
threads = 2
access_log = {{ path = "access.log", format = "json" }}

[upstreams.b]
servers = {servers}
max_active = {active_max}
connect_timeout = "1s"
response_timeout = "1s"
retry = {{ attempts = 3 }}
health = {{ path = "/health", interval = "300ms", timeout = "1s", rise = 1, fall = 2 }}
eject = {{ max_failures = 3, duration = "1s" }}
"""


class Front(Server):
    """The real server, with requests to its admin interface."""

    def __enter__(self):
        super().__enter__()
        found = self._child.wait_for(r"^status http://127\.0\.0\.1:(\d+)/", READY_SECONDS)
        self._admin = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=PATIENCE)
        return self

    def __exit__(self, kind, error, trace):
        self._admin.close()
        super().__exit__(kind, error, trace)

    def upstream(self):
        """Returns the status of the upstream."""
        self._admin.request("GET", "/status.json")
        (upstream,) = json.loads(self._admin.getresponse().read())["upstreams"]
        return upstream

    def server(self, address):
        """Returns the status of one server."""
        return next(it for it in self.upstream()["servers"] if it["name"] == address)

    def manage(self, action, address):
        body = json.dumps({"action": action, "server": address})
        status, text = self.change("/upstreams/b/servers", body)
        if status != 200:
            raise AssertionError(f"{action} {address}: {status} {text}")

    def causes(self):
        """Returns the causes of failed requests by their ids, as logged."""
        found = (re.search(r"\?(\S+): (.*)$", line) for line in list(self._child.lines))
        return {match[1]: match[2] for match in found if match}


class Life(Child):
    """One process of a server."""

    def signal(self, number):
        os.killpg(self._process.pid, number)


class Counter:
    """One server of the upstream through all its lives, and the harm done to it."""

    def __init__(self, number, folder):
        self.name = f"s{number}"
        self.file = folder / f"{self.name}.txt"
        # An address of its own: while the server is dead, its port cannot become a client's port.
        self.address = f"127.0.9.{number}:0"
        self.state = "well"
        self.hurt_until = 0
        # (kind, begun, ended): nothing else may cost a request.
        self.harms = []
        self.start()

    def start(self):
        self.life = Life([sys.executable, COUNTER, self.name, self.address, self.file])
        self.address = self.life.wait_for(r"^counting on (\S+)", READY_SECONDS)[1]
        self.state = "well"

    def kill(self, harm="killed"):
        begun = time.monotonic()
        self.life.kill()
        self.end_freeze()
        self.harms.append((harm, begun, time.monotonic()))
        self.state = "dead"

    def freeze(self):
        self.harms.append(("frozen", time.monotonic(), float("inf")))
        self.life.signal(signal.SIGSTOP)
        self.state = "frozen"

    def thaw(self):
        self.life.signal(signal.SIGCONT)
        self.end_freeze()
        self.state = "well"

    def end_freeze(self):
        if self.state == "frozen":
            kind, begun, _ = self.harms.pop()
            self.harms.append((kind, begun, time.monotonic()))

    def was(self, harm, begun, ended):
        """Returns whether this harm was done to it at any moment between `begun` and `ended`."""
        return any(kind == harm and a <= ended and begun <= b for kind, a, b in self.harms)

    def done(self):
        """Returns the lines of its file: method and id."""
        return [tuple(line.split(" ")) for line in self.file.read_text().splitlines()]


class Chaos:
    """Harms servers one after another, and never more at once than may be hurt."""

    def __init__(self, counters, front):
        self.counters = counters
        self.front = front
        self.random = random.Random(SEED)
        self.done = collections.Counter()
        # The actions still to do before any repeats: a short run, too, has all of them.
        self.deck = []

    def run(self, seconds):
        deadline = time.monotonic() + seconds
        pace = threading.Event()
        while time.monotonic() < deadline:
            self.step()
            pace.wait(self.random.uniform(0.02, 0.4))

    def step(self):
        states = {it["name"]: it["state"] for it in self.front.upstream()["servers"]}
        # A server that came back counts as left alone once it gets requests again.
        alone = [it for it in self.counters if it.state == "well" and states[it.address] == "up"]
        now = time.monotonic()
        due = [it for it in self.counters if it.state != "well" and it.hurt_until < now]
        may_hurt = len(alone) > LEFT_ALONE
        if may_hurt and (not due or self.random.random() < 0.6):
            self.do(self.next_action(), self.random.choice(alone))
        elif due:
            self.mend(self.random.choice(due))

    def next_action(self):
        if not self.deck:
            self.deck = [self.kill, self.freeze, self.restart, self.drain, self.deploy]
            self.random.shuffle(self.deck)
        return self.deck.pop()

    def do(self, action, counter):
        self.done[action.__name__] += 1
        action(counter)
        counter.hurt_until = time.monotonic() + self.random.uniform(*HURT_SECONDS)

    def mend(self, counter):
        if counter.state == "dead":
            counter.start()
        elif counter.state == "drained":
            self.front.manage("enable", counter.address)
            counter.state = "well"
        elif self.random.random() < 0.3:
            self.do(self.kill, counter)
        else:
            counter.thaw()

    def kill(self, counter):
        counter.kill()

    def freeze(self, counter):
        counter.freeze()

    def restart(self, counter):
        counter.kill()
        counter.start()

    def drain(self, counter):
        self.front.manage(self.random.choice(("drain", "disable")), counter.address)
        counter.state = "drained"

    def deploy(self, counter):
        """Deploys after a drain, which may cost no request."""
        self.front.manage("drain", counter.address)
        until(
            f"{counter.address} has nothing in progress",
            lambda: self.front.server(counter.address)["active"] == 0,
            PATIENCE,
        )
        counter.kill(harm="deployed")
        counter.start()
        self.front.manage("enable", counter.address)

    def end(self):
        """Repairs everything; all servers must be back in use soon."""
        for counter in self.counters:
            while counter.state != "well":
                self.mend(counter)
        until(
            "all servers are up again",
            lambda: all(it["state"] == "up" for it in self.front.upstream()["servers"]),
            PATIENCE,
        )


Answer = collections.namedtuple("Answer", "method id status text begun ended")


class Client(threading.Thread):
    """Sends requests on one connection until it is stopped."""

    def __init__(self, number, port, stop):
        super().__init__(daemon=True)
        self.number = number
        self.stop = stop
        self.answers = []
        self._random = random.Random(SEED + number)
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)

    def run(self):
        while not self.stop.is_set():
            method = self._random.choices(("GET", "PUT", "POST"), (5, 2, 4))[0]
            self.answers.append(self.ask(method, f"{self.number}-{len(self.answers)}"))
        self._connection.close()

    def ask(self, method, name):
        body = None if method == "GET" else name
        begun = time.monotonic()
        try:
            self._connection.request(method, f"/{method.lower()}?{name}", body)
            response = self._connection.getresponse()
            status, text = response.status, response.read().decode()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            status, text = 0, repr(error)
        return Answer(method, name, status, text, begun, time.monotonic())


class UnderChaos(RealCase):
    """One run; the tests check its results."""

    @classmethod
    def setUpClass(cls):
        folder = cls.folder()
        cls.counters = []
        for number in range(1, SERVERS + 1):
            cls.counters.append(Counter(number, folder))
            cls.addClassCleanup(lambda counter=cls.counters[-1]: counter.life.kill())
        config = folder / "penstock.toml"
        addresses = [counter.address for counter in cls.counters]
        config.write_text(CONFIG.format(servers=json.dumps(addresses), active_max=ACTIVE_MAX))
        cls.server = cls.enterClassContext(Front(config, app=False))
        stop = threading.Event()
        clients = [Client(number, cls.server.port, stop) for number in range(CLIENTS)]
        cls.chaos = Chaos(cls.counters, cls.server)
        try:
            for client in clients:
                client.start()
            cls.chaos.run(SECONDS)
            cls.chaos.end()
            cls.calm_since = time.monotonic()
            enough = {client: len(client.answers) + CALM_ANSWERS for client in clients}
            until(
                "answers in the calm",
                lambda: all(len(client.answers) >= count for client, count in enough.items()),
                PATIENCE,
            )
        except BaseException:
            cls.server.print_output()
            raise
        finally:
            stop.set()
            for client in clients:
                client.join(PATIENCE)
        cls.answers = [answer for client in clients for answer in client.answers]
        cls.done = collections.Counter(line for it in cls.counters for line in it.done())
        cls.log = {}
        for line in (folder / "access.log").read_text().splitlines():
            entry = json.loads(line)
            cls.log[entry["target"].partition("?")[2]] = entry
        cls.causes = cls.server.causes()
        cls.upstream = cls.server.upstream()
        cls.report()

    @classmethod
    def report(cls):
        statuses = collections.Counter((it.method, it.status) for it in cls.answers)
        failed = [it for it in cls.answers if it.method == "POST" and it.status != 200]
        kept = sum(("POST", it.id) in cls.done for it in failed)
        counters = cls.upstream["counters"]
        print(
            f"chaos: seed {SEED}, {SECONDS:g} s:",
            ", ".join(f"{count} x {name}" for name, count in sorted(cls.chaos.done.items())),
        )
        for (method, status), count in sorted(statuses.items()):
            print(f"chaos: {method} {status}: {count}")
        # Without the address in front.
        causes = (cls.causes.get(it.id, "not in the log").partition(": ")[2] for it in failed)
        for cause, count in collections.Counter(causes).most_common():
            print(f"chaos: {count} x {cause}")
        print(f"chaos: {kept} of {len(failed)} failed POSTs were done")
        print(
            f"chaos: {counters['retries']} retries, {counters['retries_over_budget']} refused, slowest"
            f" answer after {max(it.ended - it.begun for it in cls.answers):.2f} s",
            flush=True,
        )

    def assert_none(self, wrong):
        """Fails if anything is `wrong`, and shows all that is known of it."""
        shown = [f"{it}\n  {self.causes.get(it.id)}\n  {self.log.get(it.id)}" for it in wrong[:10]]
        self.assertEqual(len(wrong), 0, f"PENSTOCK_SEED={SEED}\n" + "\n".join(shown))

    def of(self, *methods):
        return [it for it in self.answers if it.method in methods]

    def test_everything_happened(self):
        self.assertEqual(set(self.chaos.done), {"kill", "freeze", "restart", "drain", "deploy"})
        self.assertGreater(self.upstream["counters"]["retries"], 0)
        for method in ("GET", "PUT", "POST"):
            self.assertGreater(len(self.of(method)), CLIENTS * SECONDS)

    def test_no_idempotent_request_failed(self):
        self.assert_none([it for it in self.of("GET", "PUT") if it.status != 200])

    def test_no_answer_was_anothers(self):
        names = [counter.name for counter in self.counters]
        answered = [it for it in self.answers if it.status == 200]
        self.assert_none(
            [
                it
                for it in answered
                if it.text not in [f"{name} {it.method} {it.id}" for name in names]
            ]
        )

    def test_what_was_answered_was_done(self):
        answered = [it for it in self.answers if it.status == 200]
        self.assert_none([it for it in answered if it.method == "POST" and self.count(it) != 1])
        self.assert_none([it for it in answered if it.method == "PUT" and self.count(it) < 1])

    def test_no_post_was_done_twice(self):
        self.assert_none([it for it in self.of("POST") if self.count(it) > 1])

    def test_nothing_was_done_that_nobody_asked_for(self):
        asked = {(it.method, it.id) for it in self.answers}
        self.assertEqual([line for line in self.done if line not in asked], [])

    def test_a_post_failed_only_with_its_server(self):
        self.assert_none(
            [it for it in self.of("POST") if it.status != 200 and not self.is_explained(it)]
        )

    def test_a_failing_server_costs_few_posts(self):
        """Bounds failed POSTs: by a server's capacity, twice that while a stopped one is still in
        use."""
        for harm, status, most in (("killed", 502, ACTIVE_MAX), ("frozen", 504, 2 * ACTIVE_MAX)):
            times = sum(kind == harm for it in self.counters for kind, _, _ in it.harms)
            failed = [it for it in self.of("POST") if it.status == status]
            self.assertLessEqual(len(failed), most * times, harm)

    def test_nothing_failed_when_all_was_calm_again(self):
        calm = [it for it in self.answers if it.begun > self.calm_since]
        self.assertGreater(len(calm), CLIENTS)
        self.assert_none([it for it in calm if it.status != 200])

    def count(self, answer):
        return self.done[answer.method, answer.id]

    def is_explained(self, answer):
        """Returns whether a 502 fits a kill meanwhile, or a 504 a stop."""
        harm = {502: "killed", 504: "frozen"}.get(answer.status)
        address = self.log.get(answer.id, {}).get("server")
        return harm is not None and any(
            it.address == address and it.was(harm, answer.begun, answer.ended)
            for it in self.counters
        )


if __name__ == "__main__":
    unittest.main()
