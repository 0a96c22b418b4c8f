"""A plain text file, or an HTML page, is one document; its id is its path."""

from __future__ import annotations

from typing import Iterator

from preprocess.document import Document
from preprocess.readers import page
from preprocess.readers.chunk import Chunk, Items, Keys, Limits, Part, bad
from preprocess.readers.formats import ending, is_plain
from preprocess.readers.jsonl import BOM
from preprocess.readers.stream import Stream, content


def chunks(part: Part, limits: Limits) -> Iterator[Chunk]:
    if is_plain(part.path):
        yield Chunk(part.path, 0, part.end, None, part.end)
        return
    with Stream(part.path) as stream:
        data = stream.bytes.read()
    yield Chunk(part.path, 0, len(data), data, part.end)


def parse(chunk: Chunk, keys: Keys) -> Items:
    data = content(chunk).removeprefix(BOM)
    if ending(chunk.path) != ".txt":
        text = page.main_text(data, "")
        yield Document(text, chunk.path, {}, chunk.path, 1) if isinstance(text, str) else text
        return
    try:
        yield Document(data.decode("utf-8"), chunk.path, {}, chunk.path, 1)
    except UnicodeDecodeError as error:
        yield bad(f"not UTF-8 ({error}); convert it, as with iconv", data)
