"""The table beside a shard: row n of <prefix>.parquet describes document n of <prefix>.idx.

Fields that most corpora have, whatever they call them, get a column each; all others stay together as JSON.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from types import TracebackType
from typing import Any, Dict, List, Optional, Tuple, Type

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from preprocess.document import Document

Row = Tuple[Any, ...]

_NAMES = {  # column: fields it is taken from, the first that a record has
    "source": ("source",),
    "licence": ("licence", "license"),
    "url": ("url",),
    "time": ("time", "timestamp", "date"),
    "language": ("language", "lang"),
}
_DESCRIPTION = [("id", pa.string()), *((name, pa.string()) for name in _NAMES)]
_ORIGIN = [("file", pa.string()), ("line", pa.int64()), ("text_hash", pa.string()), ("metadata", pa.string())]
_PLACE = [("document", pa.int64()), ("token_start", pa.int64()), ("token_count", pa.int64())]
SCHEMA = pa.schema(_PLACE + _DESCRIPTION + _ORIGIN)

_GROUP_ROWS = 16384  # rows of a Parquet row group: held in memory until it is full
_GROUP_BYTES = 16 << 20  # or this much text in them


def row(document: Document) -> Row:
    """The columns from `id` on."""
    rest = dict(document.metadata)
    described = [_take(rest, names) for names in _NAMES.values()]
    metadata = json.dumps(rest, ensure_ascii=False) if rest else None
    return (document.id, *described, document.file, document.line, text_hash(document.text), metadata)


def text_hash(text: str) -> str:
    """BLAKE2b with 128 bits, of the UTF-8 bytes."""
    return hashlib.blake2b(text.encode("utf-8"), digest_size=16).hexdigest()


class TableWriter:
    """Writes one row a document, in order. Memory: one row group."""

    def __init__(self, path: Path) -> None:
        self._file = pq.ParquetWriter(path, SCHEMA, compression="zstd")
        self._rows: List[Row] = []
        self._size = self._documents = self._tokens = 0

    def __enter__(self) -> TableWriter:
        return self

    def add(self, rows: List[Row], lengths: np.ndarray) -> None:
        """rows of consecutive documents as `row` makes them, and the number of tokens of each."""
        assert len(rows) == len(lengths), f"{len(rows)} rows for {len(lengths)} documents"
        for described, length in zip(rows, lengths.tolist()):
            self._rows.append((self._documents, self._tokens, length, *described))
            self._size += sum(len(value) for value in described if isinstance(value, str))
            self._documents, self._tokens = self._documents + 1, self._tokens + length
            if len(self._rows) >= _GROUP_ROWS or self._size >= _GROUP_BYTES:
                self._flush()

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        if kind is None:
            self._flush()
        self._file.close()

    def _flush(self) -> None:
        if self._rows:
            columns = [pa.array(values, field.type) for values, field in zip(zip(*self._rows), SCHEMA)]
            self._file.write_table(pa.Table.from_arrays(columns, schema=SCHEMA))
            self._rows, self._size = [], 0


def _take(fields: Dict[str, Any], names: Tuple[str, ...]) -> Any:
    """The value of the first field that is there, removed from `fields`, as text."""
    for name in names:
        if fields.get(name) is not None:
            value = fields.pop(name)
            return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return None
