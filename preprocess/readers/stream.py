"""A file as bytes, plain or compressed, and how much of it was read.

Lines end at b"\n" only: str.splitlines would also cut at U+2028, U+0085 and others that are legal inside JSON strings.
"""

from __future__ import annotations

import gzip
import io
import os
import zlib
from types import TracebackType
from typing import Any, BinaryIO, Iterator, Optional, Type

import zstandard

COMPRESSED = (".gz", ".zst")
_CHUNK = 1 << 16  # compressed bytes; what comes out of a chunk is held in memory
_BUFFER = 1 << 20
_LARGEST_WINDOW = 1 << 31  # zstd --long=31, the format's largest


class Stream:
    """Context manager; raises ValueError, naming the file, where compressed data is damaged or cut short."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._file: BinaryIO = open(path, "rb", buffering=0)  # noqa: SIM115 - closed on leaving the block
        opened: Any = self._file
        if path.endswith(".gz"):
            opened = gzip.GzipFile(fileobj=self._file)
        elif path.endswith(".zst"):
            opened = _Zstd(self._file)
        self._bytes = io.BufferedReader(opened, _BUFFER)

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self._file.close()

    @property
    def consumed(self) -> int:
        """Bytes of the file as stored that were read so far."""
        return self._file.tell()

    def lines(self) -> Iterator[bytes]:
        return self._checked(iter(self._bytes))

    def whole(self) -> Iterator[bytes]:
        """The file as one record."""
        return self._checked(self._bytes.read() for _ in range(1))  # read inside the check

    def _checked(self, parts: Iterator[bytes]) -> Iterator[bytes]:
        try:
            if self.path.endswith(COMPRESSED) and os.fstat(self._file.fileno()).st_size == 0:
                raise EOFError("no bytes at all")  # gzip takes that for an empty file
            yield from parts
        except (EOFError, zlib.error, gzip.BadGzipFile, zstandard.ZstdError) as error:
            raise ValueError(
                f"{self.path} is damaged or cut short ({error}); get it again, nothing of it was used"
            ) from None


class _Zstd(io.RawIOBase):
    """All frames of a zstd file. The library's own reader takes a frame without an end for a whole one."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._frame: Any = None
        self._rest = b""
        self._out = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._out:
            if not (chunk := self._rest or self._file.read(_CHUNK)):
                if self._frame is not None:
                    raise EOFError("the last zstd frame has no end")
                return 0
            if self._frame is None:
                self._frame = zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW).decompressobj()
            self._out, self._rest = memoryview(self._frame.decompress(chunk)), b""
            if self._frame.eof:
                self._rest, self._frame = self._frame.unused_data, None
        count = min(len(buffer), len(self._out))
        buffer[:count] = self._out[:count]
        self._out = self._out[count:]
        return count
