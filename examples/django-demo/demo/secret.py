"""The key that signs sessions: made on first use, kept in a file that only its owner may read.

settings.py asks for it. Every process must get the same key, also when several start at once on an
empty folder, so the file appears whole or not at all and the first one wins.
"""

import os
import secrets
import tempfile


def key(path):
    """The key stored at `path`, made there when there is none."""
    try:
        return path.read_text()
    except FileNotFoundError:
        pass
    path.parent.mkdir(parents=True, exist_ok=True)
    # A temporary file is created readable by its owner only.
    with tempfile.NamedTemporaryFile("w", dir=path.parent) as draft:
        draft.write(secrets.token_urlsafe(50))
        draft.flush()
        try:
            os.link(draft.name, path)
        except FileExistsError:
            pass
    return path.read_text()
