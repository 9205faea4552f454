"""The built site (scripts/site): no link is broken, nothing comes from another host, and search works.

It needs the tool that `make site` installs; without it there is nothing to try.
"""

import os
import re
import subprocess
import unittest
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

from browser import ELEMENT, Browser, Element
from harness import ROOT, RealCase, Server, until

TARGET = ROOT / os.environ.get("CARGO_TARGET_DIR", "target")
SITE = TARGET / "site"
TOOL = ROOT / "docs" / "site" / ".venv" / "bin" / "zensical"
# What search shows is in a tree of its own.
RESULTS = """
    const host = [...document.querySelectorAll("div")].find(it => it.shadowRoot);
    return [...(host?.shadowRoot.querySelectorAll("a") ?? [])].map(it => it.href);
"""
FIELD = "return document.activeElement?.shadowRoot?.activeElement?.tagName ?? ''"


def code(path):
    """Returns the lines of a page's blocks of code, without their indent."""
    found, is_fenced, is_code, was_blank = [], False, False, True
    for line in path.read_text().splitlines():
        if line.startswith("```"):
            is_fenced = not is_fenced
        elif is_fenced:
            found.append(line.strip())
        elif line.strip():
            is_code = line.startswith("    ") and (is_code or was_blank)
            found += [line.strip()] if is_code else []
        was_blank = not line.strip()
    return [line for line in found if line]


class PageReader(HTMLParser):
    """Collects the links, the anchors and the code of a page."""

    def __init__(self, path):
        super().__init__()
        self.links, self.anchors, self.loads = [], set(), []
        self.code, self._is_code = "", False
        self.feed(path.read_text())

    def handle_data(self, data):
        self.code += data if self._is_code else ""

    def handle_endtag(self, tag):
        if tag == "pre":
            self.code, self._is_code = self.code + "\n", False

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self._is_code = self._is_code or tag == "pre"
        self.anchors |= {attributes.get("id"), attributes.get("name")}
        for name in ("href", "src"):
            if link := attributes.get(name):
                (self.links if tag == "a" else self.loads).append(link)


@unittest.skipUnless(TOOL.exists(), "the tool is missing: make site")
class BuiltSite(RealCase):
    @classmethod
    def setUpClass(cls):
        command = [ROOT / "scripts" / "site"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if done.returncode != 0:
            raise AssertionError(done.stderr)
        pages = [path for path in SITE.rglob("*.html") if path.name != "404.html"]
        cls.pages = {path: PageReader(path) for path in pages}

    def test_no_link_is_broken(self):
        broken, count = [], 0
        for path, page in self.pages.items():
            for link in page.links + page.loads:
                if re.match(r"\w+:", link):
                    continue
                count += 1
                target, _, anchor = link.partition("#")
                there = Path(os.path.normpath(path.parent / unquote(target))) if target else path
                there = there / "index.html" if there.is_dir() else there
                page_there = self.pages.get(there)
                is_there = there.is_file() and SITE in there.parents
                # The theme closes its drawers by links that lead nowhere.
                if anchor and page_there and not anchor.startswith("__"):
                    is_there = unquote(anchor) in page_there.anchors
                if not is_there:
                    broken.append(f"{path.relative_to(SITE)}: {link}")
        self.assertGreater(count, 5000)
        self.assertEqual(broken, [])

    def test_code_is_shown_as_code(self):
        """The tool and other renderers see code in lists differently."""
        lost, count = [], 0
        for source in (ROOT / "docs").rglob("*.md"):
            name = source.relative_to(ROOT / "docs").with_suffix(".html")
            page = self.pages.get(SITE / str(name).replace("README", "index"))
            for line in code(source) if page else ():
                count += 1
                if line not in page.code:
                    lost.append(f"{name}: {line}")
        self.assertGreater(count, 1000)
        self.assertEqual(lost, [])

    def test_nothing_comes_from_another_host(self):
        foreign = {
            link
            for page in self.pages.values()
            for link in page.loads
            if re.match(r"\w+:|//", link)
        }
        self.assertEqual({link for link in foreign if not link.startswith("data:")}, set())

    def test_pictures_are_shown_if_they_are_taken(self):
        taken = {path.name for path in (TARGET / "screenshots").glob("*.png")}
        shown = {
            Path(link).name
            for page in self.pages.values()
            for link in page.loads
            if "images/" in link and link.endswith(".png")
        }
        self.assertEqual(shown - {"favicon.png"}, taken)

    def test_search_finds_a_word_and_its_page(self):
        with Server("--files", SITE, app=False) as server, Browser() as browser:
            browser.go(f"{server.url}/index.html")
            browser.find(".md-search__button").click()

            def has_field():
                return browser.run(FIELD) == "INPUT"

            until("the field of search is open", has_field, 20)
            Element(browser, browser.call("GET", "/element/active")[ELEMENT]).type("watchdog")

            def found():
                return any("/deployment.html" in link for link in browser.run(RESULTS))

            until("search finds the page about systemd", found, 20)


if __name__ == "__main__":
    unittest.main()
