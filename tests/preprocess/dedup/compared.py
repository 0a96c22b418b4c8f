"""A comparison carried out by hand: documents in parts -> what is left of each part, and what became of the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any, List, Tuple

import numpy as np

from preprocess import store
from preprocess.dedup import Round, read_removed
from preprocess.document import Document
from preprocess.pipeline import Tally


def documents(texts: List[str], first: int = 0) -> List[Document]:
    return [Document(text, f"d{first + n}", {}, "f", n + 1) for n, text in enumerate(texts)]


def write_round(
    folder: Path, comparison: Any, parts: List[List[Document]], memory: int = 1 << 20, output: str = "out"
) -> Round:
    folder.mkdir(parents=True, exist_ok=True)
    sketch = comparison.open()
    for part, own in enumerate(parts):
        found = sketch(own)
        stem = folder / f"part-{part:05}"
        found.owners.astype("<u4").tofile(f"{stem}.owners")
        np.ascontiguousarray(found.values).astype("<u8").tofile(f"{stem}.values")
        with store.Writer(Path(f"{stem}.documents"), store.SCHEMA) as writer:
            for begin in range(0, len(own), 3):
                writer.add(store.to_batch(own[begin : begin + 3]))
    return Round(folder, len(parts), memory, output)


def compare(
    folder: Path, comparison: Any, parts: List[List[Document]], memory: int = 1 << 20, output: str = "out"
) -> Tuple[List[Document], Tally]:
    """-> what is left, in order, and the tally, its `aside` holding what was dropped."""
    round = write_round(folder, comparison, parts, memory, output)
    for task in range(comparison.searches):
        comparison.search(task, round)
    tally = comparison.decide(round)
    tally.keep_dropped = True
    kept: List[Document] = []
    for part, own in enumerate(parts):
        table = read_removed(round.removed(part))
        for begin in range(0, len(own), 2):  # other batches than they were written in
            some = own[begin : begin + 2]
            kept += comparison.apply(some, table.slice(begin, len(some)), tally)
    return kept, tally


def cut(items: List[Any], places: List[int]) -> List[List[Any]]:
    """Into parts, some perhaps empty."""
    bounds = [0, *sorted(min(place, len(items)) for place in places), len(items)]
    return [items[begin:end] for begin, end in zip(bounds, bounds[1:])]
