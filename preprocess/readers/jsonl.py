"""A line of JSON -> a document."""

from __future__ import annotations

import json
from typing import Any, Dict, Union

from preprocess.document import Document, Dropped

_BOM = b"\xef\xbb\xbf"


def parse(raw: bytes, file: str, line: int, text_key: str, id_key: str) -> Union[Document, Dropped]:
    """Every other field becomes metadata; a record without an id is named file:line. A line without JSON is dropped.

    Raises ValueError, naming file and line, for bad JSON or UTF-8 and for a missing or non-string text.
    """
    if line == 1:
        raw = raw.removeprefix(_BOM)
    if not raw.strip():
        return Dropped("blank line")
    record = _load(raw, f"{file}:{line}")
    text = record.pop(text_key, _MISSING)
    if text is _MISSING:
        keys = ", ".join(map(repr, record)) or "no field at all"
        raise ValueError(f"{file}:{line}: no field {text_key!r} (it has {keys}); set data.source.text_key")
    if not isinstance(text, str):
        raise ValueError(
            f"{file}:{line}: field {text_key!r} is {type(text).__name__}, not a string; correct the record, "
            f"or set data.source.text_key"
        )
    name = record.pop(id_key, None)
    if not isinstance(name, str):
        name = f"{file}:{line}" if name is None else json.dumps(name)
    return Document(text, name, record, file, line)


_MISSING = object()


def _load(raw: bytes, place: str) -> Dict[str, Any]:
    try:
        record = json.loads(raw.decode("utf-8"))
        if b"\\ud" in raw or b"\\uD" in raw:
            json.dumps(record, ensure_ascii=False).encode()  # half a surrogate pair is no text; Arrow refuses it too
    except UnicodeEncodeError:
        raise ValueError(
            f"{place}: an escape \\ud... is half of a surrogate pair; correct or remove the line"
        ) from None
    except (ValueError, RecursionError) as error:  # bad UTF-8 and bad JSON are both ValueErrors
        raise ValueError(f"{place}: not a line of JSON in UTF-8 ({error}); correct or remove the line") from None
    if not isinstance(record, dict):
        raise ValueError(f"{place}: a JSON {type(record).__name__}, not an object; correct or remove the line")
    return record
