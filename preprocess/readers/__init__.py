"""Input files -> batches of raw records -> documents.

One process reads records without looking inside; workers parse them. Files come in the order of data.source.inputs
(those of one glob sorted by name), records in the order of the file, so the order of documents is fixed.
"""

from __future__ import annotations

import glob
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Sequence, Union

from preprocess.document import Document, Dropped
from preprocess.readers import jsonl, text
from preprocess.readers.stream import COMPRESSED, Stream

BATCH_BYTES = 1 << 20  # of raw input: bounds memory by text, not by the number of documents
BATCH_RECORDS = 4096  # a record costs about 1 kB of Python objects, however short it is


@dataclass(frozen=True)
class Keys:
    """The names of the fields of a JSON record."""

    text: str
    id: str


@dataclass(frozen=True)
class Record:
    """One record as it stands in the file; line counts from 1."""

    file: str
    line: int
    raw: bytes


@dataclass(frozen=True)
class Batch:
    """Consecutive records; `consumed` bytes of all input files (as stored, compressed or not) were read so far."""

    records: List[Record]
    consumed: int


Parser = Callable[[bytes, str, int, Keys], Union[Document, Dropped]]

_SPLITTERS: Dict[str, Callable[[Stream], Iterator[bytes]]] = {".jsonl": Stream.lines, ".txt": Stream.whole}
_PARSERS: Dict[str, Parser] = {
    ".jsonl": lambda raw, file, line, keys: jsonl.parse(raw, file, line, keys.text, keys.id),
    ".txt": lambda raw, file, line, keys: text.parse(raw, file),
}


def resolve(inputs: Sequence[str]) -> List[str]:
    """Files and globs -> files. Raises ValueError for what is missing, matches nothing or is named twice."""
    if not inputs:
        raise ValueError("data.source.inputs is empty; name .jsonl or .txt files (also .gz, .zst) or globs of them")
    files: List[str] = []
    for pattern in inputs:
        found = [pattern] if os.path.exists(pattern) else sorted(glob.glob(pattern, recursive=True))
        if not found:
            raise ValueError(f"data.source.inputs: no file matches {pattern!r} (relative to {os.getcwd()})")
        files += found
    for file in files:
        if os.path.isdir(file):
            raise ValueError(f"data.source.inputs: {file} is a folder; name its files with a glob, as {file}/*.jsonl")
        if _format(file) not in _PARSERS:
            endings = ", ".join(_PARSERS)
            raise ValueError(
                f"data.source.inputs: cannot tell the format of {file}; its name must end in one of {endings}, "
                f"then perhaps in one of {', '.join(COMPRESSED)}"
            )
    if twice := sorted({file for file in files if files.count(file) > 1}):
        raise ValueError(f"data.source.inputs names {', '.join(twice)} more than once; correct the globs")
    return files


def read(files: Sequence[str]) -> Iterator[Batch]:
    """Raises ValueError, naming the file, when compressed data is damaged or cut short."""
    records: List[Record] = []
    size = done = 0
    for file in files:
        with Stream(file) as stream:
            for line, raw in enumerate(_SPLITTERS[_format(file)](stream), start=1):
                records.append(Record(file, line, raw))
                size += len(raw)
                if size >= BATCH_BYTES or len(records) >= BATCH_RECORDS:
                    yield Batch(records, done + stream.consumed)
                    records, size = [], 0
            done += stream.consumed
    if records:
        yield Batch(records, done)


def parse(record: Record, keys: Keys) -> Union[Document, Dropped]:
    """Raises ValueError, naming file and line, for a record that cannot be read."""
    return _PARSERS[_format(record.file)](record.raw, record.file, record.line, keys)


def _format(file: str) -> str:
    """'.jsonl' of a/b.jsonl.zst"""
    path = Path(file)
    return (Path(path.stem) if path.suffix in COMPRESSED else path).suffix
