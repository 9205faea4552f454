"""The smallest WSGI application: one line of text, no framework.

What is left when the application costs next to nothing is the server, so the benchmarks run it,
and the documents use it to show `penstock serve app:application`.
The answer must stay the same as that of examples/rack-hello: the two are compared.
"""

BODY = b"Hello, world!\n"
HEADERS = [("Content-Type", "text/plain"), ("Content-Length", str(len(BODY)))]


def application(environ, start_response):
    start_response("200 OK", HEADERS[:])
    return [BODY]
