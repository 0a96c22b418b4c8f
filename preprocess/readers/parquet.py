"""Parquet. A small group of rows is read by the worker; a large one here, batch by batch: memory stays bounded."""

from __future__ import annotations

from typing import Any, Iterator

import pyarrow as pa

from preprocess.readers import remote, rows
from preprocess.readers.chunk import Chunk, Items, Keys, Limits, Part
from preprocess.readers.formats import is_remote

_SMALL = 4  # times the limits of a chunk
_BUFFER = 1 << 20  # of a column that is read piece by piece


def chunks(part: Part, limits: Limits) -> Iterator[Chunk]:
    """Raises ValueError, naming the file, when it is damaged."""
    with _open(part.path) as file:
        first, total = 0, max(1, file.metadata.num_rows)
        for group in range(file.num_row_groups):
            facts = file.metadata.row_group(group)
            size, count = facts.total_byte_size, facts.num_rows
            is_small = size <= _SMALL * limits.bytes and count <= _SMALL * limits.records
            if is_small and not is_remote(part.path):
                if count:
                    yield Chunk(part.path, first, count, None, part.end * (first + count) // total)
                first += count
                continue
            each = max(1, min(limits.records, limits.bytes * max(1, count) // max(1, size)))
            for batch in _batches(file, part.path, group, each):
                consumed = part.end * (first + batch.num_rows) // total
                yield from rows.packed(batch, part.path, first, limits, consumed)
                first += batch.num_rows


def parse(chunk: Chunk, keys: Keys) -> Items:
    if chunk.data is not None:
        yield from rows.documents(rows.unpacked(chunk), chunk, keys)
        return
    with _open(chunk.path) as file:
        first = 0
        for group in range(file.num_row_groups):
            if first == chunk.offset and file.metadata.row_group(group).num_rows == chunk.size:
                yield from rows.documents(_batches(file, chunk.path, group, chunk.size), chunk, keys)
                return
            first += file.metadata.row_group(group).num_rows
    raise ValueError(f"{chunk.path} changed while it was read; run again when it is complete")


def _open(path: str) -> Any:
    import pyarrow.parquet as pq

    try:
        source = remote.open_file(path) if is_remote(path) else path
        return pq.ParquetFile(source, buffer_size=_BUFFER, pre_buffer=False)
    except pa.ArrowInvalid as error:
        raise ValueError(f"{path} is no Parquet file, or damaged or cut short ({error}); get it again") from None


def _batches(file: Any, path: str, group: int, count: int) -> Iterator[pa.RecordBatch]:
    try:
        yield from file.iter_batches(batch_size=count, row_groups=[group])
    except (OSError, pa.ArrowInvalid) as error:
        raise ValueError(f"{path} is damaged in its group of rows {group} ({error}); get it again") from None
