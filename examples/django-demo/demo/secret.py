"""The key that signs sessions: made on first use, in a file that only its owner may read.

settings.py reads it. Every process must get the same key, also when several start at once on an
empty directory. So the file appears whole or not at all, and the first process to write it wins.
"""

import os
import secrets
import tempfile


def key(path):
    """Returns the key stored at `path`, and makes it if there is none."""
    try:
        return path.read_text()
    except FileNotFoundError:
        pass
    path.parent.mkdir(parents=True, exist_ok=True)
    # A temporary file is readable by its owner only.
    with tempfile.NamedTemporaryFile("w", dir=path.parent) as draft:
        draft.write(secrets.token_urlsafe(50))
        draft.flush()
        try:
            os.link(draft.name, path)
        except FileExistsError:
            pass
    return path.read_text()
