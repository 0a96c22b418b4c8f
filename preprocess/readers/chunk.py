"""What passes between those who look for input, those who cut it and those who parse it: all plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterator, NamedTuple, Optional, Union

from preprocess.document import Document, Dropped

_RAW = 200  # characters of a bad record that are kept


@dataclass(frozen=True)
class Keys:
    """Names of a record's fields. Without a name for the text, the text is empty and every field becomes metadata."""

    text: str
    id: str


@dataclass(frozen=True)
class Input:
    """A file; `bytes` as stored. `stamp` is another when the content may be another."""

    path: str
    bytes: int
    stamp: str


@dataclass(frozen=True)
class Part:
    """Stored bytes [start, end) of a file: what is read, and resumed, by itself. A line belongs where it begins."""

    path: str
    start: int
    end: int


@dataclass(frozen=True)
class Chunk:
    """Some whole records of a part, for one worker. Without `data` the worker reads them from the file.

    offset, size: bytes of the decompressed file, or records where a file is no lines (tables, archives).
    consumed: stored bytes of the part that were read so far.
    """

    path: str
    offset: int
    size: int
    data: Optional[bytes]
    consumed: int


class Limits(NamedTuple):
    """Where a chunk ends, whichever comes first; one record more than fits is never cut."""

    bytes: int
    records: int


@dataclass(frozen=True)
class Bad:
    """A record that cannot be read. `raw`: its beginning."""

    why: str
    raw: str


Item = Union[Document, Dropped, Bad]
Items = Iterator[Item]


def bad(why: str, raw: Union[bytes, str]) -> Bad:
    if isinstance(raw, bytes):
        raw = raw[: 4 * _RAW].decode("utf-8", "replace")
    return Bad(why, raw[:_RAW].encode("utf-8", "replace").decode("utf-8"))
