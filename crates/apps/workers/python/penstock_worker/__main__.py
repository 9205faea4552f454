"""Runs a worker by hand: `python3 -m penstock_worker --control-fd 3 --slot-fds 4 --entry a:app`."""

import sys

from penstock_worker.boot import main

sys.exit(main(sys.argv[1:]))
