"""The table beside a shard: row n of <prefix>.parquet describes document n of <prefix>.idx.

Fields that most corpora have, whatever they call them, get a column each; all others stay together as JSON.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any, Dict, List, Optional, Tuple, Type

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from preprocess.document import Document
from preprocess.store import to_json

_NAMES = {  # column: fields it is taken from, the first that a record has
    "source": ("source",),
    "licence": ("licence", "license"),
    "url": ("url",),
    "time": ("time", "timestamp", "date"),
    "language": ("language", "lang"),
    "parent": ("parent",),
}
_NO_NAMES = [None] * len(_NAMES)
_TEXTS = ["id", *_NAMES, "scores", "file", "text_hash", "metadata"]
DESCRIPTION = pa.schema([*((name, pa.string()) for name in _TEXTS), ("line", pa.int64())])
SCHEMA = pa.schema(
    [("document", pa.int64()), ("token_start", pa.int64()), ("token_count", pa.int64())]
    + [DESCRIPTION.field(name) for name in ("id", *_NAMES, "scores", "file", "line", "text_hash", "metadata")]
)

_GROUP_ROWS = 16384  # rows of a Parquet row group: held in memory until it is full
_GROUP_BYTES = 16 << 20  # or this much of them


def describe(documents: List[Document], texts: List[bytes]) -> pa.RecordBatch:
    """A row of DESCRIPTION for each document. texts: theirs, in UTF-8."""
    rows = [_row(document, text) for document, text in zip(documents, texts)]
    columns = [list(column) for column in zip(*rows)] or [[] for _ in DESCRIPTION]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, DESCRIPTION)]
    return pa.RecordBatch.from_arrays(arrays, schema=DESCRIPTION)


def text_hash(text: str) -> str:
    """XXH3 with 128 bits, of the UTF-8 bytes."""
    return xxhash.xxh3_128_hexdigest(text.encode("utf-8"))


def _row(document: Document, text: bytes) -> Tuple[Any, ...]:
    rest = dict(document.metadata)
    named = [_take(rest, names) for names in _NAMES.values()] if rest else _NO_NAMES
    scores = to_json(rest.pop("scores", None))
    digest = xxhash.xxh3_128_hexdigest(text)
    return (document.id, *named, scores, document.file, digest, to_json(rest), document.line)


def _take(fields: Dict[str, Any], names: Tuple[str, ...]) -> Optional[str]:
    """The value of the first field that is there, removed from `fields`, as text."""
    for name in names:
        if fields.get(name) is not None:
            value = fields.pop(name)
            return value if isinstance(value, str) else to_json(value)
    return None


class TableWriter:
    """Writes one row a document, in order. Memory: one row group."""

    def __init__(self, path: Path) -> None:
        self._file = pq.ParquetWriter(path, SCHEMA, compression="zstd")
        self._waiting: List[pa.RecordBatch] = []
        self._rows = self._size = self._documents = self._tokens = 0

    def __enter__(self) -> TableWriter:
        return self

    def add(self, described: pa.RecordBatch, lengths: np.ndarray, lines_before: int) -> None:
        """Rows of consecutive documents, the number of tokens of each; lines of the file before `line` counts."""
        assert len(described) == len(lengths), f"{len(described)} rows for {len(lengths)} documents"
        ends = np.cumsum(lengths, dtype=np.int64) + self._tokens
        columns = {name: described.column(name) for name in DESCRIPTION.names}
        columns["line"] = pa.array(np.asarray(columns["line"]) + lines_before, pa.int64())
        columns["document"] = pa.array(np.arange(len(lengths), dtype=np.int64) + self._documents)
        columns["token_start"] = pa.array(ends - lengths)
        columns["token_count"] = pa.array(lengths.astype(np.int64))
        batch = pa.RecordBatch.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)
        self._waiting.append(batch)
        self._rows, self._size = self._rows + len(batch), self._size + batch.nbytes
        self._documents, self._tokens = self._documents + len(batch), int(ends[-1]) if len(ends) else self._tokens
        if self._rows >= _GROUP_ROWS or self._size >= _GROUP_BYTES:
            self._flush()

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        if kind is None:
            self._flush()
        self._file.close()

    def _flush(self) -> None:
        if self._rows:
            self._file.write_table(pa.Table.from_batches(self._waiting), row_group_size=_GROUP_ROWS)
            self._waiting, self._rows, self._size = [], 0, 0
