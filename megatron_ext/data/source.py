"""What a blend names: a shard, or a set of shards under one manifest, read as one after the other."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Dict, List, Tuple

import numpy as np

from megatron_ext.data.shard import Shard


class Source:
    """Documents 0, 1, ... of all its shards; each is read with its own dtype."""

    def __init__(self, prefix: str) -> None:
        """Raises ValueError when a file is missing, foreign or shorter than it says."""
        self.prefix = prefix
        names = [shard["name"] for shard in manifest(prefix).get("shards", [])] or [Path(prefix).name]
        self._shards = [Shard(str(Path(prefix).with_name(name))) for name in names]
        self._firsts = np.concatenate([[0], np.cumsum([len(shard) for shard in self._shards])])

    def __len__(self) -> int:
        return int(self._firsts[-1])

    @property
    def lengths(self) -> np.ndarray:
        """Of all documents, in tokens; of a set put together anew each time, since no rank needs them but to begin."""
        lengths = [shard.lengths for shard in self._shards]
        return lengths[0] if len(lengths) == 1 else np.concatenate(lengths)

    @property
    def tokens(self) -> int:
        return int(self.lengths.sum(dtype=np.int64))

    def place(self, document: int) -> Tuple[Shard, int]:
        """-> its shard, its number there."""
        number = int(np.searchsorted(self._firsts, document, side="right")) - 1
        return self._shards[number], document - int(self._firsts[number])

    def read(self, document: int, start: int, count: int) -> np.ndarray:
        """Tokens [start, start + count) of a document."""
        shard, number = self.place(document)
        begin = int(shard.starts(number)) + start
        return shard.tokens[begin : begin + count]

    def fingerprint(self) -> str:
        """Of the content: the manifest's; of shards of another program a hash of their indices, and their size."""
        if found := manifest(self.prefix).get("fingerprint"):
            return str(found)
        whole = hashlib.sha256()
        for shard in self._shards:
            with open(f"{shard.prefix}.idx", "rb") as file:
                while data := file.read(1 << 22):
                    whole.update(data)
        return f"idx-{whole.hexdigest()}-{sum(shard.tokens.nbytes for shard in self._shards)}"


def manifest(prefix: str) -> Dict[str, Any]:
    """What llm-preprocess wrote beside the shards; empty for those of another program."""
    try:
        found = json.loads(Path(f"{prefix}.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def changes(before: List[Dict[str, Any]], now: List[Dict[str, Any]]) -> List[str]:
    """Between two lists of what a run's data was, one entry a source."""
    if len(before) != len(now):
        return [f"{len(before)} sources became {len(now)}"]
    return [
        f"source {number} ({new['prefix']}): {name} {old[name]} -> {new[name]}"
        for number, (old, new) in enumerate(zip(before, now))
        for name in old
        if name != "prefix" and old[name] != new.get(name)
    ]
