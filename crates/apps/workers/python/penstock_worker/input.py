"""`wsgi.input`: the request body, complete before the application sees it.

`wsgi` calls `open_input` once a request. A body in memory becomes a `BytesIO` of its own; a larger
one is an unlinked temporary file that the server passes as a descriptor. Both end by themselves, so
that `read()` is always safe (`wsgi.input_terminated`).
"""

from __future__ import annotations

from io import BytesIO
from typing import BinaryIO, Optional

from .wire import Slot


def open_input(slot: Slot, body: Optional[bytes]) -> BinaryIO:
    """The stream for a body as `Slot.receive` gave it; the caller closes what is a file."""
    if body is not None:
        return BytesIO(body)
    return open(slot.receive_fd(), "rb")
