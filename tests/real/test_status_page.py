"""The status page and the pages of `--dev` as a reader sees them, in a headless browser.

The page must name what is wrong in a banner, draw charts with axes from before it was opened, show
jobs, and fit a phone. Pages of errors must explain themselves, hide secrets and reload by
themselves when repaired.
"""

import json
import re
import subprocess
import urllib.request

from browser import Browser, WebDriverError
from harness import BIN, RealCase, Server, until

GOOD = """\
def app(environ, start):
    if environ["PATH_INFO"] == "/boom":
        token = "t0k3n-of-a-test"
        raise LookupError("no such customer")
    start("200 OK", [("Content-Type", "text/html")])
    return [b"<title>page</title><p id=page>VERSION</p>"]
"""

CONFIG = """\
[apps.shop]
entry = "app:app"
processes = 2
env = { DATABASE_URL = "postgres://shop:hunter2@db/shop" }

[apps.broken]
dir = "broken"
entry = "app:app"
processes = 1

[upstreams.backends]
servers = ["127.0.0.1:9"]
health = { path = "/", interval = "1s" }

[jobs.nightly]
app = "shop"
command = ["sh", "-c", "echo no space left; exit 3"]
every = "1s"

[[sites]]
[[sites.routes]]
path = "/broken/*"
app = "broken"
[[sites.routes]]
path = "/backends/*"
upstream = "backends"
[[sites.routes]]
app = "shop"
"""

# The width and height of a phone, in CSS pixels.
PHONE = {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}

# The server takes a sample of its history every ten seconds.
HISTORY_SECONDS = 45


def status(admin, path="/status.json"):
    with urllib.request.urlopen(admin + path, timeout=10) as answer:
        return json.load(answer)


class StatusPage(RealCase):
    @classmethod
    def setUpClass(cls):
        home = cls.folder()
        (home / "penstock.toml").write_text(CONFIG)
        (home / "app.py").write_text(GOOD)
        (home / "broken").mkdir()
        (home / "broken" / "app.py").write_text("import nothing_of_this_name\n")
        cls.home = home
        server = Server("--config", home / "penstock.toml", cwd=home)
        cls.server = cls.enterClassContext(server)
        cls.admin = server._child.wait_for(r"^status (http://\S+)/$", 10)[1]
        cls.browser = cls.enterClassContext(Browser())

    def problem_texts(self):
        return [problem["text"] for problem in status(self.admin)["problems"]]

    def test_a_banner_names_what_is_wrong(self):
        expected = [
            r"^The application broken does not run: ModuleNotFoundError: ",
            r"^No server of the upstream backends is up",
            r"^The last run of the job nightly failed \(exit code 3\): no space left\.$",
        ]

        def all_found():
            texts = self.problem_texts()
            return all(any(re.search(row, text) for text in texts) for row in expected)

        until("the problems are found", all_found, 30)
        self.browser.go(self.admin + "/")
        for words in ("application broken", "upstream backends", "job nightly"):
            self.browser.wait_text("#problems", words)
        count = len(self.problem_texts())
        self.browser.wait_text("#problems strong", f"{count} problems")
        red = self.browser.find("#problems").style("background-color")
        self.assertEqual(red, "rgba(179, 38, 30, 1)")
        title = self.browser.run("return document.title")
        self.assertRegex(title, r"^\(\d+\) Penstock: The ")
        icon = self.browser.run("return document.querySelector('#icon').getAttribute('href')")
        self.assertEqual(icon, "/icon-error.svg")
        self.browser.wait_text("#job-rows", "nightly")
        self.browser.wait_text("#job-rows", "exit code 3")

    def test_charts_have_axes_and_a_history_from_before_the_page(self):
        for _ in range(20):
            self.server.get("/")

        def sampled():
            rates = status(self.admin, "/history.json")["requests_per_second"]
            return len([rate for rate in rates if rate is not None]) >= 2 and any(rates)

        until("two samples with requests", sampled, HISTORY_SECONDS)
        self.browser.go("about:blank")
        self.browser.go(self.admin + "/")
        chart = """
            const chart = document.querySelector(".chart");
            return chart && [
              chart.querySelector(".line").getAttribute("d") ?? "",
              [...chart.querySelectorAll("text")].map((label) => label.textContent),
              chart.getAttribute("aria-label") ?? "",
            ];"""

        # Long before the page could have two samples of its own.
        def drawn():
            found = self.browser.run(chart)
            return found and "L" in found[0] and found

        path, labels, name = until("a line in the chart", drawn, 8)
        self.assertGreaterEqual(len(re.findall("[ML]", path)), 2, path)
        times = [label for label in labels if re.fullmatch(r"\d\d:\d\d", label)]
        numbers = [label for label in labels if re.fullmatch(r"[\d.,]+", label)]
        self.assertGreaterEqual(len(times), 2, labels)
        self.assertGreaterEqual(len(numbers), 2, labels)
        self.assertEqual(numbers[0], "0")
        self.assertIn("Requests per second", name)
        units = self.browser.run(
            "return [...document.querySelectorAll('.chart text')].map((one) => one.textContent)"
        )
        for unit in (r"^[\d.]+ ms$", r"^[\d.]+ MiB$"):
            self.assertTrue(any(re.match(unit, text) for text in units), (unit, units))

    def test_memory_counts_the_workers(self):
        now = status(self.admin)
        workers = sum(
            worker["proportional_bytes"] or worker["resident_bytes"] or 0
            for app in now["apps"]
            for worker in app["workers"] + app["templates"]
        )
        self.assertGreater(now["worker_bytes"], 1 << 20)
        self.assertLess(abs(now["worker_bytes"] - workers), workers / 2)
        self.browser.go(self.admin + "/")
        self.browser.wait_text("#figures", "workers")
        for percentile in ("p50", "p90", "p95", "p99", "p999"):
            self.assertIn(f"{percentile}_seconds", now["traffic"]["total_time"])

    def test_it_fits_a_phone(self):
        metrics = {"cmd": "Emulation.setDeviceMetricsOverride", "params": PHONE}
        self.browser.call("POST", "/goog/cdp/execute", metrics)
        self.addCleanup(
            self.browser.call,
            "POST",
            "/goog/cdp/execute",
            {"cmd": "Emulation.clearDeviceMetricsOverride", "params": {}},
        )
        self.browser.go(self.admin + "/")
        self.browser.wait_text("#apps", "shop")
        self.browser.run("document.querySelectorAll('details').forEach((one) => one.open = true)")
        wide = """
            const width = document.documentElement.clientWidth;
            const parts = [...document.querySelectorAll("body *")].filter((one) =>
              one.getBoundingClientRect().right > width + 0.5 && one.closest("svg") === null);
            return [width, document.documentElement.scrollWidth,
              parts.map((one) => `${one.tagName} ${one.className} ${one.textContent.slice(0, 60)}`)];
        """
        width, scroll_width, parts = self.browser.run(wide)
        self.assertEqual((width, scroll_width, parts), (360, 360, []))
        cell = self.browser.run(
            "const cell = document.querySelector('#apps td + td');"
            "return [getComputedStyle(cell).display, getComputedStyle(cell, '::before').content]"
        )
        self.assertEqual(cell, ["flex", '"state"'])

    def test_the_command_line_prints_problems_first(self):
        until("a problem", self.problem_texts, 30)
        lines = self.command("status").splitlines()
        self.assertTrue(lines[0].startswith("error: "), lines[:5])
        self.assertTrue(any(line.startswith("job nightly: every 1s") for line in lines), lines)
        self.assertIn("JOB", self.command("top", "--once"))

    def command(self, *arguments):
        """Runs a command of the binary for this server; returns what it prints."""
        address = self.admin.removeprefix("http://")
        done = subprocess.run(
            [BIN, *arguments, "--admin", address],
            capture_output=True,
            timeout=60,
            text=True,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout


class DevelopmentPages(RealCase):
    @classmethod
    def setUpClass(cls):
        cls.browser = cls.enterClassContext(Browser())

    def serve(self):
        home = self.folder()
        (home / "app.py").write_text(GOOD.replace("VERSION", "one"))
        toml = CONFIG[: CONFIG.index("[apps.broken]")]
        (home / "penstock.toml").write_text(toml)
        server = Server("--dev", "--config", home / "penstock.toml", cwd=home)
        return home, self.enterContext(server)

    def shows(self, selector, text):
        """Whether an element shows a text now; a page may be changing."""
        try:
            return any(text in one.text for one in self.browser.find_all(selector))
        except WebDriverError as error:
            if error.kind == "stale element reference":
                return False
            raise

    def test_an_error_names_itself_and_goes_away_when_repaired(self):
        home, server = self.serve()
        self.browser.go(server.url + "/boom")
        self.browser.wait_text("h1", "LookupError: no such customer")
        self.assertIn("LookupError", self.browser.run("return document.title"))
        self.browser.wait_text("details[open] summary", "app.py, line 4")
        text = self.browser.run("return document.body.textContent")
        for secret in ("t0k3n-of-a-test", "hunter2"):
            self.assertNotIn(secret, text)
        self.assertIn('token = "(masked)"', text)
        repaired = GOOD.replace("/boom", "/elsewhere").replace("VERSION", "two")
        (home / "app.py").write_text(repaired)
        until("the page reloads", lambda: self.shows("#page", "two"), 20)

    def test_a_bar_is_shown_while_old_code_serves(self):
        home, server = self.serve()
        (home / "app.py").write_text("import nothing_of_this_name\n")
        server._child.wait_for("the new version is given up", 20)
        self.browser.go(server.url + "/")
        self.browser.wait_text("#page", "one")
        self.browser.wait_text("#penstock-stale", "ModuleNotFoundError")
        polled = [line for line in server.lines if line.startswith("POST ")]
        self.assertEqual(polled, [])
        (home / "app.py").write_text(GOOD.replace("VERSION", "two"))
        until("the page reloads", lambda: self.shows("#page", "two"), 20)
        self.assertEqual(self.browser.find_all("#penstock-stale"), [])
