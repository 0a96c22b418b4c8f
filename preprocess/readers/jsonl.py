"""Lines of JSON. They end at a newline byte only: str.splitlines would also cut at U+2028, U+0085 and others that are
legal inside JSON strings.

orjson reads them; json has the last word on a line that orjson refuses (it knows NaN) and on numbers that orjson makes
inexact (integers above 64 bits).
"""

from __future__ import annotations

import json
from typing import Any, BinaryIO, Dict, Iterator, Tuple, Union

import orjson

from preprocess.document import Dropped
from preprocess.readers import record as records
from preprocess.readers.chunk import Bad, Chunk, Items, Keys, Limits, Part, bad
from preprocess.readers.formats import is_plain
from preprocess.readers.stream import Stream, content

BOM = b"\xef\xbb\xbf"
_EXACT = 2.0**63
_SIMPLE = frozenset((str, int, bool, type(None)))  # as orjson reads them they are right


def chunks(part: Part, limits: Limits) -> Iterator[Chunk]:
    """The bytes themselves only where a worker could not read them again at once."""
    if not is_plain(part.path):
        with Stream(part.path) as stream:
            for offset, data in _cut(stream.bytes, 0, None, limits):
                yield Chunk(part.path, offset, len(data), data, min(stream.consumed, part.end))
        return
    with open(part.path, "rb") as file:
        start = part.start
        if start:
            file.seek(start - 1)
            start += len(file.readline()) - 1  # to the first line that begins in this part
        for offset, data in _cut(file, start, part.end, limits):
            yield Chunk(part.path, offset, len(data), None, min(offset + len(data), part.end) - part.start)


def _cut(file: BinaryIO, offset: int, end: Union[int, None], limits: Limits) -> Iterator[Tuple[int, bytes]]:
    """(offset, whole lines) of all lines that begin before `end`."""
    while end is None or offset < end:
        block = file.read(limits.bytes if end is None else min(limits.bytes, end - offset))
        if not block:
            return
        if not block.endswith(b"\n"):
            block += file.readline()
        for lines in _few(block, limits.records):
            yield offset, lines
            offset += len(lines)


def _few(block: bytes, limit: int) -> Iterator[bytes]:
    """At most `limit` lines at a time: each costs about 1 kB of Python objects, however short it is."""
    start = 0
    while block.count(b"\n", start, len(block) - 1) >= limit:  # the newlines with a line after them
        end = start
        for _ in range(limit):
            end = block.index(b"\n", end) + 1
        yield block[start:end]
        start = end
    if start < len(block):
        yield block[start:] if start else block


def parse(chunk: Chunk, keys: Keys) -> Items:
    """A record without an id is named path@offset."""
    offset, data = chunk.offset, content(chunk)
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    for line, raw in enumerate(lines, start=1):
        found = load(raw.removeprefix(BOM) if offset == 0 else raw)
        if isinstance(found, dict):
            yield records.make(found, keys, chunk.path, line, f"{chunk.path}@{offset}", raw)
        else:
            yield found
        offset += len(raw) + 1


def load(raw: bytes) -> Union[Dict[str, Any], Dropped, Bad]:
    try:
        record = orjson.loads(raw)
        if inexact(record):
            record = json.loads(raw)
    except RecursionError as error:
        return bad(f"not a line of JSON that can be read ({error})", raw)
    except ValueError:
        if not raw.strip():
            return Dropped("blank line")
        try:
            record = json.loads(raw.decode("utf-8"))
            json.dumps(record, ensure_ascii=False).encode()  # half a surrogate pair is no text; Arrow refuses it too
        except UnicodeEncodeError:
            return bad(r"an escape \ud... is half of a surrogate pair", raw)
        except (ValueError, RecursionError) as error:  # bad UTF-8 and bad JSON are both ValueErrors
            return bad(f"not a line of JSON in UTF-8 ({error})", raw)
    return record if isinstance(record, dict) else bad(f"a JSON {type(record).__name__}, not an object", raw)


def inexact(value: Any) -> bool:
    """Whether a number in it may have been an integer above 64 bits."""
    if type(value) is float:
        return not -_EXACT < value < _EXACT
    inside = value.values() if type(value) is dict else value if type(value) is list else ()
    for item in inside:  # noqa: SIM110 - a generator here would cost as much as reading a short line
        if type(item) not in _SIMPLE and inexact(item):
            return True
    return False
