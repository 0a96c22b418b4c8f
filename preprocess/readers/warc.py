"""Archives of a crawl, WARC 1.0 and 1.1 (ISO 28500:2017): the pages among the responses become documents.

Records are cut by their headers. What is in other records than responses is not sent to workers; each is still counted.
"""

from __future__ import annotations

import pickle
from typing import BinaryIO, Dict, Iterator, List, Tuple, Union

from preprocess.document import Document, Dropped
from preprocess.readers import answer, page
from preprocess.readers.chunk import Chunk, Items, Keys, Limits, Part
from preprocess.readers.stream import Stream

_NOT_A_PAGE = "not a response with HTML"
_LARGEST_HEADER = 1 << 16
_HTML = ("text/html", "application/xhtml+xml")
Raw = Tuple[bytes, bytes]  # header and block; that is empty where it is not wanted


def chunks(part: Part, limits: Limits) -> Iterator[Chunk]:
    """Raises ValueError, naming the file, where no record begins or one is cut short."""
    with Stream(part.path) as stream:
        first = size = 0
        found: List[Raw] = []
        for header, block in _records(stream.bytes, part.path):
            found.append((header, block))
            size += len(header) + len(block)
            if size >= limits.bytes or len(found) >= limits.records:
                yield Chunk(part.path, first, len(found), pickle.dumps(found), min(stream.consumed, part.end))
                first, size, found = first + len(found), 0, []
        if found:
            yield Chunk(part.path, first, len(found), pickle.dumps(found), part.end)


def _records(file: BinaryIO, path: str) -> Iterator[Raw]:
    number = 0
    while line := file.readline(_LARGEST_HEADER):
        if not line.strip():  # two such lines end a record
            continue
        if not line.startswith(b"WARC/"):
            raise ValueError(f"{path}: after {number} records something else begins, {line[:40]!r}; it is damaged")
        header = line
        while line.strip() and len(header) < _LARGEST_HEADER:
            line = file.readline(_LARGEST_HEADER)
            header += line
        length = _fields(header).get("content-length", "")
        if not line or line.strip() or not length.isdecimal():
            raise ValueError(f"{path}: record {number + 1} has no whole header with a Content-Length; it is damaged")
        yield header, _block(file, int(length), _is_wanted(header, int(length)), f"{path}: record {number + 1}")
        number += 1


def _block(file: BinaryIO, length: int, wanted: bool, place: str) -> bytes:
    left, found = length, []
    while left:
        if not (data := file.read(min(left, 1 << 20))):
            raise ValueError(f"{place} is damaged or cut short: {length - left} bytes of {length}; get the file again")
        left -= len(data)
        if wanted:
            found.append(data)
    return b"".join(found)


def _fields(header: bytes) -> Dict[str, str]:
    lines = header.decode("utf-8", "replace").split("\r\n" if b"\r\n" in header else "\n")[1:]
    return {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines) if name}


def _is_wanted(header: bytes, length: int) -> bool:
    return _fields(header).get("warc-type") == "response" and length <= page.LARGEST


def parse(chunk: Chunk, keys: Keys) -> Items:
    """A document's id is its record's."""
    assert chunk.data is not None
    for line, (header, block) in enumerate(pickle.loads(chunk.data), start=1):
        yield _document(header, block, chunk.path, line, f"{chunk.path}#{chunk.offset + line - 1}")


def _document(header: bytes, block: bytes, path: str, line: int, default_id: str) -> Union[Document, Dropped]:
    fields = _fields(header)
    if fields.get("warc-type") != "response":
        return Dropped(_NOT_A_PAGE, fields.get("warc-type", ""))
    if int(fields["content-length"]) > page.LARGEST:
        return Dropped("response too large", f"{fields['content-length']} bytes, at most {page.LARGEST}")
    try:
        status, kind, html = answer.take_apart(header, block, page.LARGEST)
    except Exception as error:  # one broken server is no reason to stop; warcio has no common exception
        return Dropped("answer could not be parsed", f"{type(error).__name__}: {error}")
    kind, _, charset = kind.lower().partition("charset=")
    if status != "200" or kind.partition(";")[0].strip() not in _HTML:
        return Dropped(_NOT_A_PAGE, f"status {status}, {kind}")
    text = page.main_text(html, charset.partition(";")[0].strip(" \"'"))
    if isinstance(text, Dropped):
        return text
    known = {"url": fields.get("warc-target-uri", "").strip("<>"), "time": fields.get("warc-date", "")}
    name = fields.get("warc-record-id", "").strip("<>") or default_id
    return Document(text, name, {key: value for key, value in known.items() if value}, path, line)
