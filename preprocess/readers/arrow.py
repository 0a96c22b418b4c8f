"""Arrow IPC: streams, as Hugging Face datasets are saved, and files with the magic ARROW1."""

from __future__ import annotations

from typing import Any, Iterator

import pyarrow as pa

from preprocess.readers import remote, rows
from preprocess.readers.chunk import Chunk, Items, Keys, Limits, Part
from preprocess.readers.formats import is_remote

_MAGIC = b"ARROW1"
_END = b"\xff\xff\xff\xff\0\0\0\0"  # of a stream


def chunks(part: Part, limits: Limits) -> Iterator[Chunk]:
    """Raises ValueError, naming the file, when it is damaged or cut short, also between two batches."""
    first = 0
    with remote.open_file(part.path) if is_remote(part.path) else pa.memory_map(part.path) as source:
        try:
            for batch in _batches(source, part.end):
                yield from rows.packed(batch, part.path, first, limits, min(source.tell(), part.end))
                first += batch.num_rows
        except (OSError, pa.ArrowInvalid) as error:
            raise ValueError(f"{part.path} is damaged or cut short ({error}); get it again") from None


def _batches(source: Any, size: int) -> Iterator[pa.RecordBatch]:
    is_file = source.read(len(_MAGIC)) == _MAGIC
    if not is_file:
        source.seek(max(0, size - len(_END)))
        if source.read(len(_END)) != _END:
            raise pa.ArrowInvalid("a stream of Arrow without its end")
    source.seek(0)
    if is_file:
        with pa.ipc.open_file(source) as reader:
            yield from (reader.get_batch(number) for number in range(reader.num_record_batches))
        return
    with pa.ipc.open_stream(source) as reader:
        yield from reader


def parse(chunk: Chunk, keys: Keys) -> Items:
    yield from rows.documents(rows.unpacked(chunk), chunk, keys)
