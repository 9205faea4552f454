"""Many streams at once: the status page beside them, restarts and reloads under them, and
`examples/million`.

`penstock bench hold` opens and reads them; it reports each lost stream and each missed message.
`PENSTOCK_STATUS_CLIENTS` is the number of clients beside the status page (300), `PENSTOCK_HELD` the
number of streams held while everything else is exchanged (1000).
"""

import contextlib
import json
import os
import re
import resource
import secrets
import signal
import subprocess
import sys

from browser import Browser
from harness import BIN, EXAMPLES, Child, RealCase, until
from listening import PATIENCE, Front

CLIENTS = int(os.environ.get("PENSTOCK_STATUS_CLIENTS", "300"))
HELD = int(os.environ.get("PENSTOCK_HELD", "1000"))
# Streams opened a second.
RATE = 2000
# Seconds until all are open, at a pace that even a busy machine reaches.
OPEN_SECONDS = PATIENCE + max(CLIENTS, HELD) / 500
PUBLISHED_PER_SECOND = 20

CONFIG = """\
[server]
threads = {threads}
keep_alive_drain = "100ms"
admin_token = {{ file = "token" }}

[limits]
connections = {connections}

[hub]
max_streams = {connections}
drain_timeout = "1s"
{hub}

[apps.million]
dir = {folder}
kind = "wsgi"
entry = "app:application"
processes = 1
grip = true
env = {{ BEAT = "{beat}" }}

[[sites]]
[[sites.routes]]
app = "million"
"""

# Runs before anything of the page, and records every error on it.
WATCH = """
window.wrongs = [];
addEventListener("error", (event) => wrongs.push(event.message ?? String(event.target?.src)), true);
addEventListener("unhandledrejection", (event) => wrongs.push(String(event.reason)));
document.addEventListener("securitypolicyviolation", (event) => wrongs.push(event.blockedURI));
for (const level of ["warn", "error"]) console[level] = (...words) => wrongs.push(words.join(" "));
"""

# The page's figures: name, value and note of each; and the points of each chart.
SHOWN = """
const shown = {};
for (const box of document.querySelectorAll(`${arguments[0]} > div`)) {
  const text = (part) => box.querySelector(part)?.innerText ?? "";
  const paths = [...box.querySelectorAll("path:not(.ground)")].map((path) => path.getAttribute("d"));
  const points = (paths[0] ?? "").match(/[ML]/g)?.length ?? 0;
  shown[text(".name")] = { value: text(".value"), note: text(".note"), points };
}
return shown;
"""


class Hold(Child):
    """`penstock bench hold`, until it is stopped."""

    def __init__(self, url, streams, folder, *more):
        self.report_file = folder / "hold.json"
        command = [BIN, "bench", "hold", url, "-n", streams, "--rate", RATE, "--for", "1h", "-q"]
        super().__init__([*command, "--json", self.report_file, *more])

    def report(self):
        """Ends it and returns its report. The first signal ends the holding, not the program."""
        self._process.send_signal(signal.SIGINT)
        self._process.wait(PATIENCE)
        return json.loads(self.report_file.read_text())


class Many(RealCase):
    def setUp(self):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        self.home = self.folder()
        self.settings = self.home / "penstock.toml"
        self.token = secrets.token_urlsafe(32)
        (self.home / "token").touch(0o600)
        (self.home / "token").write_text(self.token)

    def configure(self, streams, threads=2, beat=2, hub=""):
        folder = json.dumps(str(EXAMPLES / "million"))
        text = CONFIG.format(
            folder=folder, connections=streams + 500, threads=threads, beat=beat, hub=hub
        )
        self.settings.write_text(text)

    def hold(self, streams, *more):
        holder = Hold(self.server.url + "/", streams, self.home, *more)
        self.addCleanup(holder.kill)
        return holder

    def wait_held(self, count):
        def held():
            return self.server.status()["hub"]["streams"] == count

        until(f"{count} streams are held", held, OPEN_SECONDS)

    def assert_none_lost(self, report, streams):
        counts = report["counts"]
        lost = {cause: number for cause, number in counts["lost"].items() if number}
        self.assertEqual((lost, counts["open"]), ({}, streams))
        self.assertEqual((counts["missed"], counts["repeated"]), (0, 0))


class StatusPage(Many):
    def test_it_follows_what_is_held(self):
        self.configure(CLIENTS)
        self.server = self.enterContext(Front(self.settings))
        with Browser() as browser:
            watch = {"cmd": "Page.addScriptToEvaluateOnNewDocument", "params": {"source": WATCH}}
            browser.call("POST", "/goog/cdp/execute", watch)
            browser.go(self.server.admin)
            browser.wait_text("#age", "live")
            holder = self.hold(CLIENTS)
            self.wait_held(CLIENTS)

            def shows(card, **expected):
                def look():
                    shown = browser.run(SHOWN, card)
                    return all(fits(shown[name]) for name, fits in expected.items()) and shown

                return until(f"{', '.join(expected)} in {card}", look, 2 * PATIENCE)

            number = f"{CLIENTS:,}"
            hub = shows(
                "#hub-figures",
                Connections=lambda it: it["value"].startswith(f"{number} of "),
                Channels=lambda it: it["value"].startswith("1 of "),
            )
            self.assertIn(f"{number} streams", hub["Connections"]["note"])
            # With few streams the figure means nothing.
            each = hub["Memory per stream"]["value"].strip()
            if CLIENTS >= 1000:
                self.assertLessEqual(int(re.fullmatch(r"(\d+) B", each)[1]), 600)
            else:
                self.assertRegex(each, r"^(\d+ B|–)$")
            # A sample is taken every ten seconds.
            before = shows("#charts", Connections=lambda it: f"of the hub {number}," in it["note"])
            for name, chart in before.items():
                self.assertNotIn("NaN", str(chart), name)
            names = [
                "Connections",
                "Load average",
                "Memory",
                "Queued requests",
                "Requests per second",
                "Response time",
            ]
            self.assertEqual(sorted(before), sorted(names))
            # The page is live: each sample has its point on each chart, and published messages show.
            said = subprocess.run(
                [BIN, "publish", "everybody", "hello", "--admin", self.server.admin_address],
                capture_output=True,
                timeout=PATIENCE,
                text=True,
            )
            self.assertEqual(said.stdout.strip(), "published", said.stderr)
            for name in ("Connections", "Memory", "Load average"):
                points = before[name]["points"]
                shows("#charts", **{name: lambda it, points=points: it["points"] > points})
            delivered = f"{CLIENTS:,} total"
            shows("#hub-figures", **{"Delivered / s": lambda it: delivered in it["note"]})
            self.assert_none_lost(holder.report(), CLIENTS)
            shows("#hub-figures", Connections=lambda it: it["value"].startswith("0 of "))
            shows("#charts", Connections=lambda it: "of the hub 0," in it["note"])
            self.assertEqual(browser.run("return wrongs"), [])
            self.assertEqual(len(browser.find_all("body.lost")), 0)


class Exchanged(Many):
    def test_streams_stay_while_workers_and_configuration_are_exchanged(self):
        self.configure(HELD)
        self.server = self.enterContext(Front(self.settings))
        # Every stream receives numbered messages all the time: missed and repeated ones are
        # counted.
        publish = ["--publish", f"{self.server.admin}/publish/", "--channel", "everybody"]
        publish += ["--publish-header", f"Authorization: Bearer {self.token}"]
        publish += ["--publish-rate", max(1, min(PUBLISHED_PER_SECOND, 200_000 // HELD))]
        holder = self.hold(HELD, "--heartbeat", "5s", *publish)
        self.wait_held(HELD)
        # Messages come once all are open.
        self.wait_published(1)
        worker = self.about()["pid"]
        self.verb("restart", "million")
        until("another worker", lambda: self.about()["pid"] != worker, PATIENCE)
        worker = self.about()["pid"]
        # Other bounds, another heartbeat, other workers.
        self.configure(
            HELD, beat=3, hub='heartbeat_interval = "7s"\nhistory = 7\nmax_backlog = "64KiB"'
        )
        self.verb("reload")
        until("the other worker", lambda: self.about()["pid"] != worker, PATIENCE)
        # A partial configuration changes nothing.
        self.settings.write_text(self.settings.read_text() + "\n[hub.nonsense]\n")
        self.verb("reload", code=1)
        worker = self.about()["pid"]
        os.kill(worker, signal.SIGKILL)
        until("a worker after the killed one", lambda: self.another(worker), PATIENCE)
        published = self.server.status()["hub"]["counters"]["published"]
        self.wait_published(published + 5)
        hub = self.server.status()["hub"]
        self.assertEqual((hub["streams"], hub["counters"]["closed"]), (HELD, 0))
        report = holder.report()
        self.assert_none_lost(report, HELD)
        self.assertGreater(report["published"]["accepted"], 5)
        self.assertEqual((report["published"]["refused"], report["published"]["uncertain"]), (0, 0))

    def wait_published(self, count):
        def look():
            return self.server.status()["hub"]["counters"]["published"] >= count

        until(f"{count} published", look, OPEN_SECONDS)

    def about(self):
        return json.loads(self.server.get("/about").text)

    def another(self, worker):
        with contextlib.suppress(ValueError):
            return self.about()["pid"] != worker

    def verb(self, *words, code=0):
        command = [BIN, *words, "--admin", self.server.admin_address]
        done = subprocess.run(command, capture_output=True, timeout=2 * PATIENCE, text=True)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)


class Million(RealCase):
    """`examples/million/run`, small: the whole experiment in one command."""

    def experiment(self, *more):
        command = [sys.executable, EXAMPLES / "million" / "run", 300, "--rate", 300, "--for", "1s"]
        run = Child([*command, *more], env={"PENSTOCK_BIN": str(BIN)})
        self.addCleanup(run.kill)
        run.wait_for(r"^Lost: +0$", 60)
        run.wait_for(r"^Held: +300 at the end of ", PATIENCE)
        self.assertEqual(run._process.wait(30), 0, run.lines)
        return run.lines

    def test_in_python_with_a_report(self):
        out = self.folder() / "results"
        self.experiment("--publish-rate", "5", "--out", out)
        report = json.loads((out / "million.json").read_text())
        self.assertEqual((report["counts"]["open"], report["counts"]["missed"]), (300, 0))
        self.assertGreater(report["published"]["accepted"], 0)
        self.assertGreater(report["probe"]["requests"], report["probe"]["errors"])
        self.assertTrue(list((out / "million").glob("*.svg")))
        self.assertIn("<svg", (out / "million.html").read_text())

    def test_while_everything_is_exchanged(self):
        lines = self.experiment("--exchange", "--for", "8s", "--publish-rate", "5")
        self.assertTrue(
            any(re.match(r"Received: .*, 0 missed, 0 repeated", line) for line in lines)
        )
        exchanged = next(line for line in lines if line.startswith("Exchanged: "))
        counts = [int(count) for count in re.findall(r"(\d+) x ", exchanged)]
        self.assertTrue(len(counts) == 2 and min(counts) > 0, exchanged)

    def test_in_ruby(self):
        lines = self.experiment("--app", "ruby", "--publish-rate", "5")
        self.assertTrue(
            any(re.match(r"Received: .*, 0 missed, 0 repeated", line) for line in lines)
        )


if __name__ == "__main__":
    import unittest

    unittest.main()
