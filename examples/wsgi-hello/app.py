"""The smallest WSGI application: one line of text, no framework.

The benchmarks run it, since an application that costs next to nothing shows the cost of the server.
The documents use it to show `penstock serve app:application`. The response must stay the same as
that of examples/rack-hello: the two are compared.
"""

BODY = b"Hello, world!\n"
HEADERS = [("Content-Type", "text/plain"), ("Content-Length", str(len(BODY)))]


def application(environ, start_response):
    start_response("200 OK", HEADERS[:])
    return [BODY]
