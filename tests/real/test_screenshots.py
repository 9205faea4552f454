"""Pictures for the site: the status page of a server with traffic, and an error page of `--dev`.

They go to TARGET/screenshots, where scripts/site finds them. The pages are looked at first, so that
no picture shows a page that is still empty or broken.
"""

import base64
import http.client
import os
import threading

from browser import Browser
from harness import BIN, READY_SECONDS, ROOT, STOP_SECONDS, Child, RealCase, until

TARGET = ROOT / os.environ.get("CARGO_TARGET_DIR", "target")
FOLDER = TARGET / "screenshots"
# Whether a line of a chart has more than a few points.
HAS_LINES = """
    const lines = [...document.querySelectorAll("svg path, svg polyline")];
    return lines.some(it => (it.getAttribute("d") || it.getAttribute("points") || "").length > 60);
"""
CONFIGURATION = """\
[server]
listen = ["127.0.0.1:0"]
admin = "127.0.0.1:0"

[apps.shop]
dir = "shop"
processes = 2

[caches.pages]
max_size = "16MiB"

[[sites]]
[[sites.routes]]
app = "shop"
cache = ["pages"]
"""
SHOP = """\
import time

PRICES = {"coffee": 4, "tea": 3}


def total(items):
    return sum(PRICES[item] for item in items)


def application(environ, start_response):
    if environ["PATH_INFO"] == "/checkout":
        total(["coffee", "cocoa"])
    time.sleep(0.01)
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"shop"]
"""


class Screenshots(RealCase):
    @classmethod
    def setUpClass(cls):
        cls.home = cls.folder()
        (cls.home / "shop").mkdir()
        (cls.home / "shop" / "app.py").write_text(SHOP)
        (cls.home / "penstock.toml").write_text(CONFIGURATION)
        FOLDER.mkdir(parents=True, exist_ok=True)

    def start(self, *arguments):
        child = Child([BIN, "serve", *arguments], cwd=self.home)
        self.addCleanup(child.kill)
        port = child.wait_for(r"^listening http://127\.0\.0\.1:(\d+)", READY_SECONDS)[1]
        admin = child.wait_for(r"^status http://127\.0\.0\.1:(\d+)", READY_SECONDS)[1]
        child.wait_for(r"^app shop: .*ready in", READY_SECONDS)
        return child, int(port), int(admin)

    def take(self, browser, name):
        picture = base64.b64decode(browser.call("GET", "/screenshot"))
        width, height = (int.from_bytes(picture[at : at + 4]) for at in (16, 20))
        self.assertTrue(picture.startswith(b"\x89PNG"))
        self.assertGreater(width * height, 500_000)
        # A page of one colour is a few kilobytes.
        self.assertGreater(len(picture), 20_000)
        (FOLDER / name).write_bytes(picture)

    def test_the_status_page(self):
        child, port, admin = self.start("-c", "penstock.toml")
        stop = threading.Event()

        def visit():
            number = 0
            while not stop.is_set():
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
                connection.request("GET", f"/item/{number % 7}")
                connection.getresponse().read()
                connection.close()
                number += 1

        visitors = [threading.Thread(target=visit, daemon=True) for _ in range(3)]
        for visitor in visitors:
            visitor.start()
        try:
            with Browser() as browser:
                browser.go(f"http://127.0.0.1:{admin}/")
                browser.wait_text("body", "shop")
                until("the charts have lines", lambda: browser.run(HAS_LINES), READY_SECONDS)
                self.take(browser, "status.png")
        finally:
            stop.set()
            for visitor in visitors:
                visitor.join(30)
        self.assertEqual(child.terminate(STOP_SECONDS), 0)

    def test_the_error_page(self):
        child, port, _ = self.start("shop", "--dev", "-l", "127.0.0.1:0", "--admin", "127.0.0.1:0")
        with Browser() as browser:
            browser.go(f"http://127.0.0.1:{port}/checkout")
            browser.wait_text("body", "KeyError")
            self.assertIn("cocoa", browser.find("body").text)
            self.take(browser, "error.png")
        self.assertEqual(child.terminate(STOP_SECONDS), 0)
