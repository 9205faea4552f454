"""Reports of `penstock bench` as a reader sees them: the page in a browser, and the saved JSON.

The reports are the crate's fixtures, so nothing is measured. A page must show its charts without an
error and without network requests, show the value under the pointer and under the arrow keys, and
saved reports must fit the committed schema.
"""

import base64
import json
import re
import struct
import subprocess
import zlib

import jsonschema

from browser import Browser
from harness import BIN, ROOT, RealCase, until

FIXTURES = ROOT / "crates" / "bench" / "tests" / "fixtures"
SCHEMA = ROOT / "docs" / "bench-report.schema.json"
KINDS = ["run", "mix", "sweep", "compare", "hold"]

# Runs before anything of the page, and records every error on it.
WATCH = """
window.wrongs = [];
addEventListener("error", (event) => wrongs.push(event.message), true);
addEventListener("unhandledrejection", (event) => wrongs.push(String(event.reason)));
document.addEventListener("securitypolicyviolation", (event) => wrongs.push(event.blockedURI));
for (const level of ["warn", "error"]) console[level] = (...words) => wrongs.push(words.join(" "));
"""


def bench(*arguments):
    """Runs `penstock bench`, which must succeed, and returns its output."""
    command = [BIN, "bench", *arguments]
    done = subprocess.run(command, capture_output=True, timeout=60, text=True)
    if done.returncode != 0:
        raise AssertionError(f"exited with {done.returncode}: {done.stderr}")
    return done.stdout


def fixture(kind):
    return FIXTURES / f"report-{kind}.json"


def colours(png):
    """Returns the number of colours in a PNG (8 bits a channel, not interlaced)."""
    assert png.startswith(b"\x89PNG\r\n\x1a\n"), "a PNG"
    place, packed = 8, b""
    while place < len(png):
        length, kind = struct.unpack_from(">I4s", png, place)
        content = png[place + 8 : place + 8 + length]
        if kind == b"IHDR":
            width, height, depth, colour, _, _, interlace = struct.unpack(">IIBBBBB", content)
            assert (depth, interlace) == (8, 0) and colour in (2, 6)
        elif kind == b"IDAT":
            packed += content
        place += length + 12
    size = 3 if colour == 2 else 4
    data, before, seen = zlib.decompress(packed), bytes(width * size), set()
    for start in range(0, height * (width * size + 1), width * size + 1):
        line = bytearray(data[start + 1 : start + 1 + width * size])
        unfilter(data[start], line, before, size)
        seen.update(bytes(line[at : at + size]) for at in range(0, len(line), size))
        before = line
    return len(seen)


def unfilter(kind, line, before, size):
    """Undoes the filter of one line in place (PNG, section 9.2)."""
    for at in range(len(line)) if kind else ():
        left = line[at - size] if at >= size else 0
        above = before[at]
        if kind == 1:
            guess = left
        elif kind == 2:
            guess = above
        elif kind == 3:
            guess = (left + above) // 2
        else:
            corner = before[at - size] if at >= size else 0
            sides = [abs(above - corner), abs(left - corner), abs(left + above - 2 * corner)]
            guess = (left, above, corner)[sides.index(min(sides))]
        line[at] = (line[at] + guess) & 255


class Pages(RealCase):
    @classmethod
    def setUpClass(cls):
        cls.home = cls.folder()
        cls.browser = cls.enterClassContext(Browser())
        watch = {"cmd": "Page.addScriptToEvaluateOnNewDocument", "params": {"source": WATCH}}
        cls.browser.call("POST", "/goog/cdp/execute", watch)

    def open(self, kind):
        page = self.home / f"{kind}.html"
        bench("render", fixture(kind), "--html", page)
        self.browser.go(page.as_uri())
        self.addCleanup(self.nothing_went_wrong)

    def nothing_went_wrong(self):
        self.assertEqual(self.browser.run("return wrongs"), [])
        asked = "return performance.getEntriesByType('resource').map((entry) => entry.name)"
        self.assertEqual(self.browser.run(asked), [])

    def charts(self):
        """Returns name, width and height of each chart as shown."""
        script = """
            return [...document.querySelectorAll("figure")].map((figure) => {
              const box = figure.querySelector("svg").getBoundingClientRect();
              return [figure.id, box.width, box.height];
            });"""
        found = self.browser.run(script)
        for name, width, height in found:
            self.assertGreater(width, 600, name)
            self.assertGreater(height, 100, name)
        return [name for name, _, _ in found]

    def tip(self, chart):
        """Waits for the text beside a value of a chart and returns it."""
        script = f"""
            const tip = document.querySelector("#{chart} .tip");
            const box = tip.getBoundingClientRect(), around = tip.parentNode.getBoundingClientRect();
            const fits = box.left >= around.left && box.right <= around.right;
            return !tip.hidden && box.width > 0 && fits ? tip.textContent : "";"""
        return until(f"a value on {chart}", lambda: self.browser.run(script), 5)

    def hover(self, chart):
        """Moves the pointer to the middle of a chart and returns the text that appears."""
        svg = self.browser.run(
            f"const svg = document.querySelector('#{chart} svg');"
            "svg.scrollIntoView({ block: 'center' }); return svg;"
        )
        move = {"type": "pointerMove", "duration": 0, "x": 10, "y": 5, "origin": svg}
        mouse = {"type": "pointer", "id": "mouse", "actions": [move]}
        self.browser.call("POST", "/actions", {"actions": [mouse]})
        return self.tip(chart)

    def press(self, chart, key):
        self.browser.run(f"document.querySelector('#{chart}').focus()")
        keys = [{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]
        keyboard = {"type": "key", "id": "keyboard", "actions": keys}
        self.browser.call("POST", "/actions", {"actions": [keyboard]})

    def screenshot(self):
        return base64.b64decode(self.browser.call("GET", "/screenshot"))

    def test_a_sweep_shows_its_charts(self):
        self.open("sweep")
        expected = ["throughput", "latency", "errors", "cpu", "cores", "memory"]
        self.assertEqual(self.charts(), expected)
        self.assertGreater(colours(self.screenshot()), 16)
        self.assertRegex(self.hover("throughput"), r"connections\nmeasured: [\d,.]+ requests/s")
        latency = self.hover("latency")
        self.assertEqual(re.findall(r"(p[\d.]+): [\d,.]+ ms", latency)[-1], "p99.9")
        self.browser.wait_text(".warning", "INTERRUPTED")

    def test_a_comparison_shows_its_ranking(self):
        self.open("compare")
        expected = ["ranking", "throughput", "cpu", "p99", "latency", "memory"]
        self.assertEqual(self.charts(), expected)
        self.assertRegex(self.hover("ranking"), r"[\d,]+ to [\d,]+\n.+: [\d,]+ requests/s")
        self.assertGreater(colours(self.screenshot()), 16)
        self.browser.wait_text("h1", "Hello & <friends>")
        self.browser.wait_text("td", 'nginx, "<b>tuned</b>"')
        self.browser.wait_text("pre", "boom: </script> no such gem")

    def test_values_are_reached_by_the_keyboard(self):
        self.open("sweep")
        right, escape = "\ue014", "\ue00c"
        self.press("throughput", right)
        self.assertIn("1 connection\n", self.tip("throughput"))
        self.press("throughput", right)
        self.assertIn("11 connections\n", self.tip("throughput"))
        self.press("throughput", escape)
        hidden = "return document.querySelector('#throughput .tip').hidden"
        until("nothing shown", lambda: self.browser.run(hidden), 5)

    def test_without_a_script_the_values_stand_in_tables(self):
        self.open("sweep")
        script = "return document.querySelectorAll('#throughput details tbody tr').length"
        self.assertEqual(self.browser.run(script), 20)

    def test_runs_and_mixes_are_pages_too(self):
        for kind, charts in [("run", ["latency"]), ("mix", ["latency-1", "latency-2"])]:
            with self.subTest(kind):
                self.open(kind)
                self.assertEqual(self.charts(), charts)
                self.nothing_went_wrong()
        self.browser.wait_text("pre", "Load: random files")


class Saved(RealCase):
    def test_every_kind_of_report_follows_the_schema(self):
        schema = json.loads(SCHEMA.read_text())
        jsonschema.Draft202012Validator.check_schema(schema)
        validator = jsonschema.Draft202012Validator(schema)
        for kind in KINDS:
            with self.subTest(kind):
                again = self.folder() / "again.json"
                bench("render", fixture(kind), "--json", again)
                report = json.loads(again.read_text())
                self.assertEqual(report["kind"], kind)
                validator.validate(report)

    def test_the_schema_is_not_content_with_anything(self):
        validator = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text()))
        report = json.loads(fixture("run").read_text())
        changes = {
            "no figures": {"figures": None},
            "another kind": {"kind": "walk"},
            "a number as text": {"format": "1"},
        }
        for name, change in changes.items():
            with self.subTest(name):
                self.assertFalse(validator.is_valid(report | change))

    def test_the_committed_schema_is_the_programs_own(self):
        self.assertEqual(bench("schema"), SCHEMA.read_text())


if __name__ == "__main__":
    import unittest

    unittest.main()
