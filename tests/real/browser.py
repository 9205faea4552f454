"""A headless Chromium, driven over the WebDriver protocol (W3C) by the standard library alone.

It has only what the tests use: go to an address, find by CSS selector, type, click, read, run a
script. Looking for an element waits for a page that is still loading, until a deadline. The browser
stores everything in a new directory, makes no network requests of its own, and ends with its
driver.
"""

import json
import os
import signal
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

from harness import Child, until

PATIENCE_SECONDS = 15
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the key of an element's id, fixed by the standard

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1200,900",
]


class WebDriverError(Exception):
    """WebDriver's error code and its message."""

    def __init__(self, kind, message):
        super().__init__(f"{kind}: {message}")
        self.kind = kind


class Element:
    """An element of the page, valid as long as that page is shown."""

    def __init__(self, browser, key):
        self._browser = browser
        self._path = f"/element/{key}"

    def click(self):
        self._browser.call("POST", f"{self._path}/click", {})

    def type(self, text):
        """Types into a field; for a file field, `text` is the path of the file to send."""
        self._browser.call("POST", f"{self._path}/value", {"text": str(text)})

    @property
    def text(self):
        return self._browser.call("GET", f"{self._path}/text")

    def style(self, name):
        """Returns the computed value of a CSS property."""
        return self._browser.call("GET", f"{self._path}/css/{name}")


class Browser:
    """One browser with one window; a context manager."""

    def __enter__(self):
        self._folder = tempfile.TemporaryDirectory(
            prefix="penstock-browser-", ignore_cleanup_errors=True
        )
        # Chromium's helpers look for a session bus; there is none.
        environment = {"HOME": self._folder.name, "DBUS_SESSION_BUS_ADDRESS": "disabled:"}
        self._driver = Child(["chromedriver", "--port=0"], environment)
        try:
            port = self._driver.wait_for(r"started successfully on port (\d+)", PATIENCE_SECONDS)[1]
            self._base = f"http://127.0.0.1:{port}"
            arguments = [*FLAGS, f"--user-data-dir={self._folder.name}/profile"]
            options = {"browserName": "chrome", "goog:chromeOptions": {"args": arguments}}
            answer = self.call("POST", "/session", {"capabilities": {"alwaysMatch": options}})
            self._base += "/session/" + answer["sessionId"]
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind, error, trace):
        try:
            self.call("DELETE", "")
        finally:
            self._end()

    def _end(self):
        self._driver.kill()
        # The browser has its own process group; its private directory identifies it.
        for command in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if self._folder.name.encode() in command.read_bytes():
                    os.kill(int(command.parent.name), signal.SIGKILL)
            except OSError:
                continue
        self._folder.cleanup()

    def call(self, method, path, body=None):
        """Sends one WebDriver command; returns its value or raises WebDriverError."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._base + path, data, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            value = json.load(error)["value"]
            raise WebDriverError(value["error"], value["message"]) from None

    def go(self, url):
        self.call("POST", "/url", {"url": url})

    def find(self, selector):
        """Waits for the first element that matches and returns it."""
        return until(
            f"`{selector}` on the page", lambda: self.find_all(selector), PATIENCE_SECONDS
        )[0]

    def find_all(self, selector):
        found = self.call("POST", "/elements", {"using": "css selector", "value": selector})
        return [Element(self, one[ELEMENT]) for one in found]

    def wait_text(self, selector, text):
        """Waits until an element that matches `selector` shows `text`."""

        def look():
            try:
                return any(text in element.text for element in self.find_all(selector))
            except WebDriverError as error:
                # The page changed meanwhile; ask the new one.
                if error.kind == "stale element reference":
                    return False
                raise

        until(f"`{text}` in `{selector}`", look, PATIENCE_SECONDS)

    def run(self, script, *arguments):
        """Runs a script and returns its `return` value; a promise is awaited."""
        return self.call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    @property
    def url(self):
        return self.call("GET", "/url")
