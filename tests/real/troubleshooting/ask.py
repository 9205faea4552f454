"""One client: `ask.py PORT` prints the status of /slow."""

import http.client
import sys

connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=20)
connection.request("GET", "/slow", headers={"Host": "localhost"})
print(connection.getresponse().status, flush=True)
