"""Rows of Arrow tables -> documents: what the readers of Parquet and Arrow files share.

A batch travels to a worker as a stream of Arrow IPC; nested values become lists and dictionaries, times become text.
"""

from __future__ import annotations

import base64
import datetime
import decimal
from typing import Any, Iterator

import pyarrow as pa

from preprocess.readers import record as records
from preprocess.readers.chunk import Chunk, Items, Keys, Limits


def packed(batch: pa.RecordBatch, path: str, first: int, limits: Limits, consumed: int) -> Iterator[Chunk]:
    """The batch in pieces within the limits; its first row is number `first` of the file."""
    each = max(1, batch.nbytes // max(1, batch.num_rows))
    count = max(1, min(limits.records, limits.bytes // each))
    for start in range(0, batch.num_rows, count):
        piece = batch.slice(start, count)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, piece.schema) as writer:
            writer.write_batch(piece)
        yield Chunk(path, first + start, piece.num_rows, sink.getvalue().to_pybytes(), consumed)


def unpacked(chunk: Chunk) -> Iterator[pa.RecordBatch]:
    assert chunk.data is not None
    with pa.ipc.open_stream(chunk.data) as reader:
        yield from reader


def documents(batches: Iterator[pa.RecordBatch], chunk: Chunk, keys: Keys) -> Items:
    """A row without an id is named path#number, from 0."""
    line = 0
    for batch in batches:
        for record in _texts_of_times(batch).to_pylist():
            for name, value in record.items():
                if isinstance(value, bytes) and name == keys.text:
                    record[name] = _text(value)
                elif not isinstance(value, str):
                    record[name] = _plain(value)
            line += 1
            yield records.make(record, keys, chunk.path, line, f"{chunk.path}#{chunk.offset + line - 1}")


def _texts_of_times(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Python has no nanoseconds; Arrow writes them. Durations, and times inside of lists and the like, keep
    microseconds."""
    columns = [_as_text(column) if pa.types.is_timestamp(column.type) else _shorter(column) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _shorter(column: pa.Array) -> pa.Array:
    return column.cast(_microseconds(column.type), safe=False) if "[ns]" in str(column.type) else column


def _microseconds(kind: pa.DataType) -> pa.DataType:
    """The type with microseconds wherever it has nanoseconds."""
    types = pa.types
    if types.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("us", kind.tz)
    if types.is_duration(kind) and kind.unit == "ns":
        return pa.duration("us")
    if types.is_time64(kind):
        return pa.time64("us")
    if types.is_list(kind) or types.is_large_list(kind):
        return (pa.list_ if types.is_list(kind) else pa.large_list)(_microseconds(kind.value_type))
    if types.is_struct(kind):
        return pa.struct([(field.name, _microseconds(field.type)) for field in kind])
    if types.is_map(kind):
        return pa.map_(kind.key_type, _microseconds(kind.item_type))
    return kind


def _as_text(times: pa.Array) -> pa.Array:
    """Those that know their zone in UTC."""
    import pyarrow.compute as pc

    text = times.cast(pa.timestamp(times.type.unit)).cast(pa.string())
    return text if times.type.tz is None else pc.binary_join_element_wise(text, "Z", "")


def _text(value: bytes) -> Any:
    """Text that was stored as bytes, as older tables have it; bytes that are none stay what they are: refused."""
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value


def _plain(value: Any) -> Any:
    """What JSON can hold. Bytes as base64 (RFC 4648)."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (datetime.date, datetime.time)):  # a datetime is a date
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    return str(value) if isinstance(value, decimal.Decimal) else value
