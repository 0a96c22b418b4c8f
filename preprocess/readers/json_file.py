"""A .json file: lines of JSON under another name, one array of objects, or one object.

An array is read element by element, so that its size does not matter.
"""

from __future__ import annotations

import codecs
import json
from typing import Any, Iterator, List

from preprocess.readers import jsonl
from preprocess.readers import record as records
from preprocess.readers.chunk import Chunk, Items, Keys, Limits, Part
from preprocess.readers.stream import Stream

_ARRAY = b"\0"  # begins the data of a chunk of an array: no line of JSON does
_READ = 1 << 18  # bytes
_LARGEST = 1 << 26  # characters of an element, and bytes of an object that has the file to itself
_SPACE = " \t\r\n"


def chunks(part: Part, limits: Limits) -> Iterator[Chunk]:
    """Raises ValueError, naming file and element, where an array is broken: what follows cannot be told apart."""
    with Stream(part.path) as stream:
        start = stream.bytes.peek(1).removeprefix(jsonl.BOM).lstrip()[:1]
        if start == b"[":
            yield from _packed(_elements(_Text(stream), part.path), stream, part, limits)
            return
        first = stream.bytes.readline(_LARGEST)
        whole = [] if isinstance(jsonl.load(first.removeprefix(jsonl.BOM)), dict) else _object(first, stream)
    if whole:
        yield from _packed(iter(whole), stream, part, limits)
    else:  # also for what is neither: reading it as lines tells what is wrong
        yield from jsonl.chunks(part, limits)


def _object(first: bytes, stream: Stream) -> List[Any]:
    try:
        return [json.loads((first + stream.bytes.read(_LARGEST)).removeprefix(jsonl.BOM))]
    except (ValueError, RecursionError):
        return []


def _packed(elements: Iterator[Any], stream: Stream, part: Part, limits: Limits) -> Iterator[Chunk]:
    first, size = 0, 0
    found: List[bytes] = []
    for element in elements:
        if size >= limits.bytes or len(found) >= limits.records:
            yield _chunk(part, first, found, min(stream.consumed, part.end))
            first, found, size = first + len(found), [], 0
        found.append(_line(element))
        size += len(found[-1])
    if found:
        yield _chunk(part, first, found, part.end)


def _chunk(part: Part, first: int, found: List[bytes], consumed: int) -> Chunk:
    return Chunk(part.path, first, len(found), _ARRAY + b"\n".join(found), consumed)


def _line(element: Any) -> bytes:
    """With bytes that are no UTF-8 as they were, which the worker finds."""
    try:
        return json.dumps(element, ensure_ascii=False).encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # an escape that is half of a surrogate pair, which the worker finds as well
        return json.dumps(element).encode()


class _Text:
    """What is not used yet of a file, as far as it was read."""

    def __init__(self, stream: Stream) -> None:
        self._read, self._decode = (
            stream.bytes.read,
            codecs.getincrementaldecoder("utf-8-sig")("surrogateescape").decode,
        )
        self._scan = json.JSONDecoder().raw_decode
        self._text, self._at, self._ended = "", 0, False

    def _more(self) -> bool:
        """As much again as there is, so that a long element is looked at a few times only."""
        if self._ended:
            return False
        data = self._read(max(_READ, len(self._text) - self._at))
        self._ended = not data
        self._text, self._at = self._text[self._at :] + self._decode(data, final=not data), 0
        return True

    def next(self) -> str:
        """The next character that is no space, not used yet; "" at the end."""
        while True:
            while self._at < len(self._text):
                if (found := self._text[self._at]) not in _SPACE:
                    return found
                self._at += 1
            if not self._more():
                return ""

    def take(self) -> str:
        found = self.next()
        self._at += 1
        return found

    def element(self) -> Any:
        """The JSON value that comes next. Raises ValueError where there is none."""
        self.next()
        while True:
            try:
                value, end = self._scan(self._text, self._at)
                if end < len(self._text) or self._ended:  # a number might go on in what was not read yet
                    self._at = end
                    return value
            except RecursionError:
                raise ValueError("nested too deeply") from None
            except ValueError:
                if self._ended:
                    raise
            if len(self._text) - self._at > _LARGEST:
                raise ValueError(f"longer than {_LARGEST} characters, or its end is missing")
            self._more()


def _elements(text: _Text, path: str) -> Iterator[Any]:
    """Of the array."""
    text.take()  # the bracket
    number = 0
    try:
        if text.next() != "]":
            yield text.element()
            number = 1
            while text.next() == ",":
                text.take()
                yield text.element()
                number += 1
        if (mark := text.take()) != "]":
            raise ValueError(f"{mark!r} stands where a comma should" if mark else "the array has no end")
        if mark := text.next():
            raise ValueError(f"{mark!r} stands behind the array")
    except ValueError as error:
        raise ValueError(
            f"{path}: the array is broken at its element {number} ({error}); mend it, or write one object a line "
            f"(.jsonl), of which a broken one is dropped alone"
        ) from None


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
