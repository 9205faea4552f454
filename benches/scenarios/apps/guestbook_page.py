"""Prints the guestbook's first page, for the deployments of guestbook.toml that serve it as a file.

Run with the guestbook's directory as the only argument, by the interpreter that has Flask, and with
GUESTBOOK_DB set as for the other deployments: all then send the same bytes.
"""

import sys

sys.path.insert(0, sys.argv[1])

from guestbook import application  # noqa: E402 - found in the folder that was just named

response = application.test_client().get("/")
if response.status_code != 200:
    sys.exit(f"the guestbook answered {response.status}")
sys.stdout.buffer.write(response.data)
