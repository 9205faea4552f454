"""A plain Python web server, with a page that names the process that answered.

Penstock starts it as `python3 server.py PORT`, in as many processes as `penstock.toml` says, each
with its own port. Any other program works as well, for example `thin -p PORT start`.
"""

import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Page(BaseHTTPRequestHandler):
    # With HTTP/1.0, the default, each request would cost a connection.
    protocol_version = "HTTP/1.1"
    # The head and the body are two writes.
    disable_nagle_algorithm = True

    def do_GET(self):
        text = f"Hello from process {os.getpid()}, for {self.headers['X-Forwarded-For']}\n"
        body = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, *_):
        """Logs nothing: Penstock keeps the access log."""


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Page).serve_forever()
