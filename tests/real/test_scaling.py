"""Workers follow a load that doubles and halves, and do not flap.

Requests of 50 ms come at 40 and at 80 a second in turn (open loop, `penstock bench run --rate`):
work for two and for four workers. `PENSTOCK_SCALING` is the length of the run in seconds (24); a
phase between two changes of the load is at least 12 s. The number of workers is printed second by
second.
"""

import http.client
import itertools
import json
import os
import subprocess
import threading
import time

from harness import BIN, READY_SECONDS, STOP_SECONDS, Child, RealCase

SECONDS = int(os.environ.get("PENSTOCK_SCALING", "24"))
PHASE = max(12, min(60, SECONDS // 2))
RATES = (40, 80)
# Workers that each rate keeps busy, at 50 ms a request.
BUSY = {rate: rate // 20 for rate in RATES}
MOST = 8
# The beginning of a phase, in which the number may follow the load: time to grow, and to shrink by
# one every `idle_timeout` of two seconds.
FOLLOW = 8

APP = """\
import time


def application(environ, start_response):
    time.sleep(0.05)
    start_response("200 OK", [("Content-Length", "7")])
    return [b"waited\\n"]
"""

CONFIG = """\
[server]
listen = ["127.0.0.1:0"]
admin = "127.0.0.1:0"
access_log = "off"

[apps.waits]
dir = {folder}
kind = "wsgi"
entry = "app:application"
processes = {{ min = 1, max = {most} }}
scale = {{ idle_timeout = "2s" }}

[[sites]]
[[sites.routes]]
app = "waits"
"""


class Scaled(RealCase):
    def test_workers_follow_the_load_without_flapping(self):
        folder = self.folder()
        (folder / "app.py").write_text(APP)
        settings = folder / "penstock.toml"
        settings.write_text(CONFIG.format(folder=json.dumps(str(folder)), most=MOST))
        child = Child([BIN, "serve", "-c", settings])
        self.addCleanup(child.kill)
        try:
            listening = child.wait_for(r"^listening http://127\.0\.0\.1:(\d+)", READY_SECONDS)
            admin = child.wait_for(r"^status http://127\.0\.0\.1:(\d+)", READY_SECONDS)
            child.wait_for(r"^app \S+: .*ready in ", READY_SECONDS)
            self.url, self.admin = f"http://127.0.0.1:{listening[1]}/", int(admin[1])
            phases = [RATES[number % 2] for number in range(SECONDS // PHASE)]
            seen = [self.phase(rate) for rate in phases]
            for number, (rate, counts) in enumerate(zip(phases, seen, strict=True)):
                with self.subTest(phase=number, rate=rate):
                    self.judge(rate, counts)
        except BaseException:
            print("\n".join(child.lines[-100:]))
            raise
        self.assertEqual(child.terminate(STOP_SECONDS), 0)

    def judge(self, rate, counts):
        """Checks that the number followed and then held: one more or less at most every ten
        seconds."""
        settled = [workers for at, workers in counts if at >= FOLLOW]
        self.assertTrue(settled)
        self.assertGreaterEqual(min(settled), BUSY[rate], counts)
        self.assertLessEqual(max(settled), 2 * BUSY[rate], counts)
        changes = sum(now != then for then, now in itertools.pairwise(settled))
        self.assertLessEqual(changes, 1 + (PHASE - FOLLOW) // 10, counts)

    def phase(self, rate):
        """Runs the load at `rate`; returns pairs of seconds since the start and workers."""
        command = [
            BIN,
            "bench",
            "run",
            "-c",
            "200",
            "-d",
            f"{PHASE}s",
            "--rate",
            rate,
            "--json",
            "-",
            self.url,
        ]
        load = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, text=True)
        self.addCleanup(load.kill)
        said = []
        reader = threading.Thread(target=lambda: said.append(load.communicate()[0]))
        reader.start()
        counts, began = [], time.monotonic()
        while reader.is_alive():
            counts.append((round(time.monotonic() - began, 1), self.workers()))
            time.sleep(0.25)
        reader.join()
        figures = json.loads(said[0][said[0].index("{") :])["figures"]
        self.assertEqual(figures["statuses"]["success"], figures["requests"], figures)
        self.assertEqual(set(figures["errors"].values()), {0}, figures)
        second = [workers for _, workers in counts[::4]]
        p99 = figures["total"]["p99"] / 1000
        print(f"{rate}/s: p99 {p99} ms; workers {' '.join(map(str, second))}", flush=True)
        return counts

    def workers(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.admin, timeout=10)
        connection.request("GET", "/status.json")
        (app,) = json.loads(connection.getresponse().read())["apps"]
        connection.close()
        return app["processes"]["ready"]
