"""The record that flows through preprocessing, and what takes its place when it is dropped."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Dict


@dataclass(frozen=True)
class Document:
    """A text with what is known about it. `file` and `line` (from 1) say where it was read, whatever happens later.

    Steps add to `metadata` by making a new dictionary. Names with a meaning: "scores" {name: number}, "language",
    "licence", "source", "url", "time", "parent" (the id of the document that this one was made from).
    """

    text: str
    id: str
    metadata: Dict[str, Any]
    file: str
    line: int


def with_score(document: Document, name: str, value: float, **fields: Any) -> Document:
    """With one more score and other fields. What an input calls "scores" and is no dictionary is kept as one."""
    given = document.metadata.get("scores", {})
    scores = {**(given if isinstance(given, dict) else {"given": given}), name: value}
    return dataclasses.replace(document, metadata={**document.metadata, **fields, "scores": scores})


@dataclass(frozen=True)
class Dropped:
    """A record that does not reach the shard. `reason` is counted, so it is one of few; `detail` may say more."""

    reason: str
    detail: str = ""
