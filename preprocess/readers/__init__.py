"""Inputs -> files -> parts -> chunks -> documents.

One process looks for the files and cuts them into chunks, hardly looking inside; workers parse those. A large plain
file of JSON lines is many parts, so that every core and every Slurm task can work on it; the cuts depend on nothing but
the file, and so does the order of documents: inputs as they are named, files of a glob or folder by name, records.
"""

from __future__ import annotations

from typing import Iterator, List, Sequence, Union

from preprocess.document import Document, Dropped
from preprocess.readers import find, formats
from preprocess.readers.chunk import Bad, Chunk, Input, Keys, Limits, Part
from preprocess.readers.stream import Stream

BATCH_BYTES = 1 << 20  # of raw input: bounds memory by text, not by the number of documents
BATCH_RECORDS = 4096  # a record costs about 1 kB of Python objects, however short it is


def resolve(inputs: Sequence[str]) -> List[Input]:
    """Files, globs, folders and remote addresses -> files. Raises ValueError for what cannot be meant."""
    return find.resolve(inputs)


def split(inputs: Sequence[Input], part_bytes: int) -> List[Part]:
    """Plain local JSON lines are cut at multiples of `part_bytes`; every other file is one part."""
    parts: List[Part] = []
    for one in inputs:
        can_split = formats.is_plain(one.path) and formats.ending(one.path) in formats.SPLIT
        step = part_bytes if can_split else max(1, one.bytes)
        starts = range(0, max(1, one.bytes), step)
        parts += [Part(one.path, start, min(start + step, one.bytes)) for start in starts]
    return parts


def chunks(part: Part) -> Iterator[Chunk]:
    """Raises ValueError, naming the file, where it is damaged or cut short."""
    found: Iterator[Chunk] = formats.module(part.path).chunks(part, Limits(BATCH_BYTES, BATCH_RECORDS))
    return found


def parse(chunk: Chunk, keys: Keys) -> Iterator[Union[Document, Dropped, Bad]]:
    """One item a record. `Document.line` is the number of the record in the chunk, from 1."""
    found: Iterator[Union[Document, Dropped, Bad]] = formats.module(chunk.path).parse(chunk, keys)
    return found


def place(path: str, offset: int) -> int:
    """Number (from 1) of the first line that begins at or after an offset in the decompressed file; for messages."""
    lines, left = 1, offset - 1  # what begins before the offset ends there or later
    with Stream(path) as stream:
        while left > 0 and (data := stream.bytes.read(min(left, 1 << 20))):
            lines += data.count(b"\n")
            left -= len(data)
    return lines + (offset > 0)
