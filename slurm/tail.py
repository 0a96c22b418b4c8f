"""What has been added to a file since the last look, while others still write it."""

from __future__ import annotations

import codecs
from pathlib import Path


class Tail:
    """Starts at the file's present end; a file that is not there yet is empty."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a read may end inside a character
        self._position = path.stat().st_size if path.exists() else 0

    def read(self) -> str:
        try:
            with open(self.path, "rb") as file:
                file.seek(self._position)
                data = file.read()
        except FileNotFoundError:
            return ""
        self._position += len(data)
        return self._decoder.decode(data)
