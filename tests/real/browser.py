"""A headless Chromium, driven over the WebDriver protocol (W3C) by the standard library alone.

It has only what the tests use: go to an address, find by CSS selector, type, click, read, run a
script. Looking for an element waits for a page that is still loading, until a deadline. The browser
stores everything in a new directory, makes no network requests of its own, and ends with its
driver.
"""

import json
import os
import signal
import subprocess
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
    """One browser with one window; a context manager.

    `root`, a file in PEM, is trusted as an authority; `flags` are more of the command line.
    """

    def __init__(self, root=None, flags=()):
        self._root, self._flags = root, flags

    def __enter__(self):
        self._folder = tempfile.TemporaryDirectory(
            prefix="penstock-browser-", ignore_cleanup_errors=True
        )
        if self._root:
            self._trust(self._root)
        # Chromium's helpers look for a session bus; there is none.
        environment = {"HOME": self._folder.name, "DBUS_SESSION_BUS_ADDRESS": "disabled:"}
        try:
            port = self._start_driver(environment)
            self._base = f"http://127.0.0.1:{port}"
            arguments = [*FLAGS, *self._flags, f"--user-data-dir={self._folder.name}/profile"]
            options = {"browserName": "chrome", "goog:chromeOptions": {"args": arguments}}
            answer = self.call("POST", "/session", {"capabilities": {"alwaysMatch": options}})
            self._base += "/session/" + answer["sessionId"]
        except BaseException:
            self._end()
            raise
        return self

    def _start_driver(self, environment, attempts=3):
        """Starts the driver; returns its port."""
        self._driver = Child(["chromedriver", "--port=0"], environment)
        try:
            return self._driver.wait_for(r"successfully on port (\d+)", PATIENCE_SECONDS)[1]
        except AssertionError:
            # It ends where the port that it chose is taken for the other family of addresses.
            if attempts == 1:
                raise
            self._driver.kill()
            return self._start_driver(environment, attempts - 1)

    def _trust(self, root):
        store = Path(self._folder.name, ".pki/nssdb")
        store.mkdir(parents=True)
        for arguments in (
            ["-N", "--empty-password"],
            ["-A", "-n", "authority of a test", "-t", "C,,", "-i", str(root)],
        ):
            command = ["certutil", "-d", f"sql:{store}", *arguments]
            subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_SECONDS)

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
