"""A .json file: lines of JSON under another name, or one array of objects (or one object), which is read whole."""

from __future__ import annotations

import json
from typing import Any, Iterator, List, Optional

from preprocess.readers import jsonl
from preprocess.readers import record as records
from preprocess.readers.chunk import Chunk, Items, Keys, Limits, Part
from preprocess.readers.stream import Stream

_ARRAY = b"\0"  # begins the data of a chunk of an array: no line of JSON does


def chunks(part: Part, limits: Limits) -> Iterator[Chunk]:
    array = _array(part.path)
    if array is None:
        yield from jsonl.chunks(part, limits)
        return
    first, found, size = 0, [], 0
    for row, record in enumerate(array, start=1):
        found.append(json.dumps(record).encode())
        size += len(found[-1])
        if size >= limits.bytes or len(found) >= limits.records or row == len(array):
            data = _ARRAY + b"\n".join(found)
            yield Chunk(part.path, first, len(found), data, part.end * row // len(array))
            first, found, size = row, [], 0


def _array(path: str) -> Optional[List[Any]]:
    """None for lines, also for what is neither: reading it as lines tells what is wrong."""
    with Stream(path) as stream:
        first = stream.bytes.readline().removeprefix(jsonl.BOM)
        if isinstance(jsonl.load(first), dict) and stream.bytes.peek(1):
            return None
        try:
            whole = json.loads(first + stream.bytes.read())
        except (ValueError, RecursionError):
            return None
    return whole if isinstance(whole, list) else [whole]


def parse(chunk: Chunk, keys: Keys) -> Items:
    """An element without an id is named path#number, from 0."""
    if chunk.data is None or not chunk.data.startswith(_ARRAY):
        yield from jsonl.parse(chunk, keys)
        return
    for line, raw in enumerate(chunk.data[1:].split(b"\n"), start=1):
        found = jsonl.load(raw)
        if isinstance(found, dict):
            yield records.make(found, keys, chunk.path, line, f"{chunk.path}#{chunk.offset + line - 1}", raw)
        else:
            yield found
