"""Restarts of the application, reloads of the configuration and upgrades of the binary, under load.

64 connections send requests without a pause (`penstock bench run`), while one replacement follows
the other. No request may fail and no connection be reset. `PENSTOCK_RESTARTS`, `PENSTOCK_RELOADS`
and `PENSTOCK_UPGRADES` are the numbers of replacements (5, 5, 2), `PENSTOCK_PAUSE` the seconds
between two of them (0).

Request times are printed and never fail a test. They stand beside calm times before and after
(`PENSTOCK_CALM` seconds each, 3), of which the mean is shown.
"""

import http.client
import json
import os
import subprocess
import time

from harness import BIN, EXAMPLES, READY_SECONDS, Child, RealCase, until

RESTARTS = int(os.environ.get("PENSTOCK_RESTARTS", "5"))
RELOADS = int(os.environ.get("PENSTOCK_RELOADS", "5"))
UPGRADES = int(os.environ.get("PENSTOCK_UPGRADES", "2"))
PAUSE = float(os.environ.get("PENSTOCK_PAUSE", "0"))
CONNECTIONS = 64
CALM_SECONDS = float(os.environ.get("PENSTOCK_CALM", "3"))
# Seconds that one replacement may take.
PATIENCE = 60

CONFIG = """\
[server]
listen = ["127.0.0.1:0"]
admin = "127.0.0.1:0"
threads = 2
access_log = "off"

[apps.hello]
dir = {folder}
kind = "{kind}"
entry = "{entry}"
processes = 2
env = {{ TURN = "{turn}" }}

[[sites]]
[[sites.routes]]
app = "hello"
"""

KINDS = {
    "wsgi": ("wsgi-hello", "app:application"),
    "asgi": ("asgi-hello", "main:application"),
    "rack": ("rack-hello", "config.ru"),
}


class Replaced(RealCase):
    def test_wsgi_is_replaced_without_a_gap(self):
        self.check("wsgi")

    def test_asgi_is_replaced_without_a_gap(self):
        self.check("asgi")

    def test_rack_is_replaced_without_a_gap(self):
        self.check("rack")

    def check(self, kind):
        self.kind, self.turn = kind, 0
        self.settings = self.folder() / "penstock.toml"
        self.write()
        child = Child([BIN, "serve", "-c", self.settings])
        self.addCleanup(child.kill)
        try:
            listening = child.wait_for(r"^listening http://127\.0\.0\.1:(\d+)", READY_SECONDS)
            status = child.wait_for(r"^status http://127\.0\.0\.1:(\d+)", READY_SECONDS)
            child.wait_for(r"^app \S+: .*ready in ", READY_SECONDS)
            self.url, self.admin = f"http://127.0.0.1:{listening[1]}/", f"127.0.0.1:{status[1]}"
            self.addCleanup(self.stop)
            calm = self.load("calm", lambda: time.sleep(CALM_SECONDS))
            disturbed = {
                "restarted": self.load("restarted", self.restart_all),
                "reloaded": self.load("reloaded", self.reload_all),
                "upgraded": self.load("upgraded", self.upgrade_all),
            }
            # Where load and server share processors, each successor process is another neighbour.
            again = self.load("calm again", lambda: time.sleep(CALM_SECONDS))
            undisturbed = (calm + again) / 2
            for name, p99 in disturbed.items():
                print(f"{kind}, {name}: p99 {p99 / undisturbed:.2f} x undisturbed", flush=True)
        except BaseException:
            print("\n".join(child.lines[-100:]))
            raise

    def write(self):
        folder, entry = KINDS[self.kind]
        folder = json.dumps(str(EXAMPLES / folder))
        self.settings.write_text(
            CONFIG.format(folder=folder, kind=self.kind, entry=entry, turn=self.turn)
        )

    def load(self, name, while_it_runs):
        """Runs 64 connections during `while_it_runs`; returns the 99th percentile in ms."""
        command = [BIN, "bench", "run", "-c", CONNECTIONS, "-d", "3600s", "--json", "-", self.url]
        load = subprocess.Popen(
            [str(word) for word in command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            while_it_runs()
        finally:
            # Ctrl-C: the report so far.
            load.send_signal(2)
            out, err = load.communicate(timeout=PATIENCE)
        figures = json.loads(out[out.index("{") :])["figures"]
        self.assertGreater(figures["requests"], 100, err)
        self.assertEqual(figures["statuses"]["success"], figures["requests"], out)
        self.assertEqual(set(figures["errors"].values()), {0}, out)
        # Closed before a response, and sent again: allowed, but a server that drains can do better.
        self.assertEqual(figures["retried"], 0, out)
        took = {name: figures["total"][name] / 1000 for name in ("p99", "max")}
        print(f"{self.kind}, {name}: {figures['requests']} requests, {took} ms", flush=True)
        return took["p99"]

    def restart_all(self):
        for _ in range(RESTARTS):
            self.ask("restart", "hello")

    def reload_all(self):
        for _ in range(RELOADS):
            # Changed settings of the application: it is restarted, and the old one drained.
            self.turn += 1
            self.write()
            self.ask("reload")

    def upgrade_all(self):
        for _ in range(UPGRADES):
            before = self.pid()
            self.ask("upgrade")
            self.assertNotEqual(self.pid(), before)

    def ask(self, *verb):
        command = [str(BIN), *verb, "--admin", self.admin]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        time.sleep(PAUSE)

    def pid(self):
        host, _, port = self.admin.partition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE)
        connection.request("GET", "/status.json")
        pid = json.loads(connection.getresponse().read())["pid"]
        connection.close()
        return pid

    def stop(self):
        pid = self.pid()
        self.ask("stop")
        until("the server has ended", lambda: not os.path.exists(f"/proc/{pid}"), PATIENCE)
