"""An application with the failures that docs/troubleshooting.md describes, each at a path."""

import os
import time

slow = []
kept = []


def application(environ, start_response):
    path = environ["PATH_INFO"]
    if path == "/slow":
        time.sleep(20)
    if path == "/first" and not slow:
        slow.append(time.sleep(0.6))
    if path == "/die":
        os._exit(3)
    if path == "/raise":
        raise ValueError("no such product")
    if path == "/grow":
        kept.append(b"x" * (120 << 20))
    if environ["wsgi.url_scheme"] == "http" and path == "/login":
        start_response("302 Found", [("Location", f"https://{environ['HTTP_HOST']}/login")])
        return []
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [environ["REMOTE_ADDR"].encode()]
