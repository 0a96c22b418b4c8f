"""CSV and TSV with a header line, quoted as RFC 4180 (2005) says; a field may hold line ends.

Where a record ends only a reader of CSV can tell, so the file is read once for the cuts and once more by the workers.
Both read bytes as Latin-1, in which no byte is an error, and each field becomes UTF-8 in the end.
"""

from __future__ import annotations

import csv
import io
from typing import BinaryIO, Iterator, List, NamedTuple

from preprocess.document import Dropped
from preprocess.readers import record as records
from preprocess.readers.chunk import Chunk, Items, Keys, Limits, Part, bad
from preprocess.readers.formats import ending
from preprocess.readers.jsonl import BOM
from preprocess.readers.stream import Stream

_LARGEST_FIELD = 1 << 24  # characters; a quote that is never closed would take in the rest of the file


class _Row(NamedTuple):
    raw: bytes
    fields: List[str]
    error: str


def chunks(part: Part, limits: Limits) -> Iterator[Chunk]:
    """Each with the header. Raises ValueError, naming the file, when that is missing or broken."""
    with Stream(part.path) as stream:
        rows = _rows(stream.bytes, ending(part.path))
        header = _header(rows, part.path)
        first = count = size = 0
        found: List[bytes] = [header.raw]
        for row in rows:
            found.append(row.raw)
            count, size = count + 1, size + len(row.raw)
            if size >= limits.bytes or count >= limits.records:
                yield Chunk(part.path, first, count, b"".join(found), min(stream.consumed, part.end))
                first, count, size, found = first + count, 0, 0, [header.raw]
        if count:
            yield Chunk(part.path, first, count, b"".join(found), part.end)


def _header(rows: Iterator[_Row], path: str) -> _Row:
    header = next(rows, None)
    if header is None or header.error or not any(header.fields):
        why = header.error if header else "no line at all"
        raise ValueError(f"{path} has no header line with the names of its columns ({why or 'it is blank'})")
    names = _decode(header.fields)
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"{path} has {names.count(twice[0])} columns {twice[0]!r}; each needs its own name")
    return header


def parse(chunk: Chunk, keys: Keys) -> Items:
    """A row without an id is named path#number, from 0."""
    assert chunk.data is not None
    rows = _rows(io.BufferedReader(io.BytesIO(chunk.data)), ending(chunk.path))  # type: ignore[arg-type]
    names = _decode(next(rows).fields)
    for line, row in enumerate(rows, start=1):
        if row.error:
            lines = row.raw.count(b"\n")
            yield bad(f"not a row of CSV ({row.error}{f'; it takes in {lines} lines' if lines > 1 else ''})", row.raw)
        elif not row.fields:
            yield Dropped("blank line")
        elif len(row.fields) != len(names):
            yield bad(f"{len(row.fields)} fields, the header has {len(names)}", row.raw)
        else:
            try:
                record = dict(zip(names, _decode(row.fields)))
            except UnicodeDecodeError as error:
                yield bad(f"not UTF-8 ({error})", row.raw)
                continue
            if not record.get(keys.id):
                record.pop(keys.id, None)
            yield records.make(record, keys, chunk.path, line, f"{chunk.path}#{chunk.offset + line - 1}", row.raw)


def _decode(fields: List[str]) -> List[str]:
    return [field if field.isascii() else field.encode("latin-1").decode("utf-8") for field in fields]


def _rows(file: BinaryIO, kind: str) -> Iterator[_Row]:
    """Of each record its bytes and fields; after a broken one the next line is a new record."""
    csv.field_size_limit(_LARGEST_FIELD)
    taken: List[bytes] = []

    def lines() -> Iterator[str]:
        for number, line in enumerate(file):
            line = line.removeprefix(BOM) if number == 0 else line
            taken.append(line)
            yield line.decode("latin-1")

    reader = csv.reader(lines(), delimiter="\t" if kind == ".tsv" else ",", strict=True)
    while True:
        fields, error = [], ""
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as told:
            error = str(told)
        yield _Row(b"".join(taken), fields, error)
        taken.clear()
