"""The application that the pages of docs/migrate/from move, in Python."""

import os


def application(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [f"{environ['PATH_INFO']} {os.environ.get('SHOP_MODE')}\n".encode()]
