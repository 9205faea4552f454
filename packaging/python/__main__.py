"""`python -m penstock`: becomes the binary."""

import os
import sys

from penstock import find_penstock


def main():
    path = find_penstock()
    os.execv(path, [path, *sys.argv[1:]])


if __name__ == "__main__":
    main()
