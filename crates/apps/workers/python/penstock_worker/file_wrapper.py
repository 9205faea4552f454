"""`wsgi.file_wrapper`, by which an application returns a file as its body.

The application gets `FileWrapper` in its environ and returns one. `wsgi` asks `plain_file` whether
the server can take the descriptor, and otherwise reads the wrapper like any other iterable.
"""

from __future__ import annotations

import io
import tempfile
from typing import Any, Iterator


class FileWrapper:
    """`wsgi.file_wrapper`: read in blocks, unless the server can take the descriptor instead."""

    def __init__(self, filelike: Any, blksize: int = 8192) -> None:
        self.filelike = filelike
        self.blksize = blksize
        if hasattr(filelike, "close"):
            self.close = filelike.close

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        block = self.filelike.read(self.blksize)
        if block:
            return block
        raise StopIteration


def plain_file(filelike: Any) -> Any:
    """The file object if reading it gives the bytes of its descriptor from its position on: not so
    for text files, and for `gzip.GzipFile`, which has a `fileno` all the same."""
    if isinstance(filelike, tempfile._TemporaryFileWrapper):
        filelike = filelike.file
    raw = filelike.raw if type(filelike) in (io.BufferedReader, io.BufferedRandom) else filelike
    return filelike if type(raw) is io.FileIO else None
