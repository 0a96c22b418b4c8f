"""The record that flows through preprocessing, and what takes its place when it is dropped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict


@dataclass(frozen=True)
class Document:
    """A text with what is known about it. `file` and `line` (from 1) say where it was read, whatever happens later."""

    text: str
    id: str
    metadata: Dict[str, Any]
    file: str
    line: int


@dataclass(frozen=True)
class Dropped:
    """A record that does not reach the shard; reasons are counted in the shard's sidecar."""

    reason: str
