"""A file as bytes: local or remote, plain or compressed, and how much of it was read.

Every frame of a compressed file is read, and the last must be whole: the readers of Python's own modules and of
zstandard pass over what follows a frame and is none, or take a frame without an end for a whole one.
"""

from __future__ import annotations

import bz2
import io
import lzma
import zlib
from types import TracebackType
from typing import Any, BinaryIO, Callable, Dict, Optional, Type

import zstandard

from preprocess.readers import remote
from preprocess.readers.chunk import Chunk
from preprocess.readers.formats import compression, is_remote

_CHUNK = 1 << 16  # compressed bytes; what comes out of a chunk is held in memory
_BUFFER = 1 << 20
_LARGEST_WINDOW = 1 << 31  # zstd --long=31, the format's largest
_GZIP = 16 + zlib.MAX_WBITS  # with its header, length and checksum

_FRAMES: Dict[str, Callable[[], Any]] = {
    ".gz": lambda: zlib.decompressobj(_GZIP),
    ".zst": lambda: zstandard.ZstdDecompressor(max_window_size=_LARGEST_WINDOW).decompressobj(),
    ".xz": lzma.LZMADecompressor,
    ".bz2": bz2.BZ2Decompressor,
}
_PADDED = (".gz", ".xz")  # zeros between and after frames are allowed


class Stream:
    """Context manager; reading `bytes` raises ValueError, naming the file, where it is damaged or cut short."""

    def __init__(self, path: str) -> None:
        self._file: BinaryIO
        if is_remote(path):
            self._file = remote.open_file(path)
        else:
            self._file = open(path, "rb", buffering=0)  # noqa: SIM115 - closed on leaving the block
        opened: Any = _Frames(self._file, path, suffix) if (suffix := compression(path)) else self._file
        self.bytes = io.BufferedReader(opened, _BUFFER)

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


def content(chunk: Chunk) -> bytes:
    """The bytes of a chunk of lines. Raises ValueError when the file became shorter."""
    if chunk.data is not None:
        return chunk.data
    with open(chunk.path, "rb") as file:
        file.seek(chunk.offset)
        data = file.read(chunk.size)
    if len(data) < chunk.size:
        raise ValueError(f"{chunk.path} became shorter while it was read; run again when it is complete")
    return data


class _Frames(io.RawIOBase):
    """What all frames (members, streams) of a compressed file hold."""

    def __init__(self, file: BinaryIO, path: str, suffix: str) -> None:
        self._file, self._path = file, path
        self._new, self._padding = _FRAMES[suffix], b"\0" if suffix in _PADDED else b""
        self._frame: Any = None
        self._any = False
        self._rest = b""
        self._out = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._out:
            if not (data := self._rest or self._file.read(_CHUNK)):
                if self._frame is not None or not self._any:
                    raise self._damaged("its last frame has no end" if self._any else "no bytes at all")
                return 0
            self._rest = b""
            self._decompress(data)
        count = min(len(buffer), len(self._out))
        buffer[:count] = self._out[:count]
        self._out = self._out[count:]
        return count

    def _decompress(self, data: bytes) -> None:
        if self._frame is None:
            if self._any and self._padding and not (data := data.lstrip(self._padding)):
                return
            self._frame, self._any = self._new(), True
        try:
            self._out = memoryview(self._frame.decompress(data))
        except (zlib.error, lzma.LZMAError, zstandard.ZstdError, OSError, ValueError) as error:  # bz2: the last two
            raise self._damaged(str(error)) from None
        if self._frame.eof:
            self._rest, self._frame = self._frame.unused_data, None

    def _damaged(self, why: str) -> ValueError:
        return ValueError(f"{self._path} is damaged or cut short ({why}); get it again, nothing of it was used")
