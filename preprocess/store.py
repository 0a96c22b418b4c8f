"""Documents between two passes, as Arrow record batches in an Arrow IPC file: one batch a chunk of input.

Readers take one batch at a time, by memory map, so the size of a file costs no memory.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import TracebackType
from typing import Any, List, Optional, Type

import pyarrow as pa

from preprocess.document import Document

SCHEMA = pa.schema(
    [("id", pa.string()), ("text", pa.string()), ("metadata", pa.string()), ("file", pa.string()), ("line", pa.int64())]
)

# One thread: batches are small, and the processors have workers of their own.
_WRITE = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
_READ = pa.ipc.IpcReadOptions(use_threads=False)


def to_batch(documents: List[Document]) -> pa.RecordBatch:
    columns = [
        [document.id for document in documents],
        [document.text for document in documents],
        [to_json(document.metadata) for document in documents],
        [document.file for document in documents],
        [document.line for document in documents],
    ]
    return pa.RecordBatch.from_arrays([pa.array(c, field.type) for c, field in zip(columns, SCHEMA)], schema=SCHEMA)


def from_batch(batch: pa.RecordBatch) -> List[Document]:
    ids, texts, metadata, files, lines = (batch.column(name).to_pylist() for name in SCHEMA.names)
    return [
        Document(text, id, json.loads(fields) if fields else {}, file, line)
        for text, id, fields, file, line in zip(texts, ids, metadata, files, lines)
    ]


def to_json(fields: Any) -> Optional[str]:
    """None for nothing. Values that JSON does not know (dates of a Parquet file) become their text."""
    return json.dumps(fields, ensure_ascii=False, default=str) if fields else None


class Writer:
    """Context manager over an Arrow IPC file; made even when there is no batch, so that readers need not ask."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._sink = pa.OSFile(str(path), "wb")
        self._writer = pa.ipc.new_file(self._sink, schema, options=_WRITE)
        self.rows = 0

    def __enter__(self) -> Writer:
        return self

    def add(self, batch: pa.RecordBatch) -> None:
        self._writer.write_batch(batch)
        self.rows += len(batch)

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self._writer.close()
        self._sink.close()


def open_file(path: Path) -> pa.ipc.RecordBatchFileReader:
    return pa.ipc.open_file(pa.memory_map(str(path)), options=_READ)
