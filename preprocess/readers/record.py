"""The fields of a record -> a document: the same rules and the same refusals for JSON lines and for rows of tables."""

from __future__ import annotations

import json
from typing import Any, Dict, Union

from preprocess.document import Document
from preprocess.readers.chunk import Bad, Keys, bad

_MISSING = object()


def make(
    record: Dict[str, Any], keys: Keys, path: str, line: int, default_id: str, raw: Union[bytes, str] = ""
) -> Union[Document, Bad]:
    """Every other field becomes metadata (the dictionary itself: it is no longer the caller's)."""
    text = record.pop(keys.text, _MISSING) if keys.text else ""
    if not isinstance(text, str):
        raw = raw or json.dumps(record, ensure_ascii=False, default=str)[:1000]
        if text is _MISSING:
            there = ", ".join(map(repr, record)) or "no field at all"
            return bad(f"no field {keys.text!r} (it has {there}); set data.source.text_key", raw)
        return bad(f"field {keys.text!r} is {type(text).__name__}, not a string; set data.source.text_key", raw)
    name = record.pop(keys.id, None)
    if not isinstance(name, str):
        name = default_id if name is None else json.dumps(name)
    return Document(text, name, record, path, line)
