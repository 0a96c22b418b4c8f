"""Sorted rows of (key..., number) -> pairs of each number with the first of the same key.

A star, not all pairs: a key that a million documents share costs a million pairs.
"""

from __future__ import annotations

from typing import Iterable, Iterator, List, Optional

import numpy as np


def stars(blocks: Iterable[np.ndarray], keys: int, chain: bool = False) -> Iterator[np.ndarray]:
    """blocks: sorted uint64 [rows, keys + 1] -> pairs uint64 [n, 2], the first of the group before the other.

    chain: also each with the one before it, for those that are alike but not like the first.
    """
    carry: Optional[np.ndarray] = None  # the group that may go on in the next block: its first and its last row
    for block in blocks:
        if not len(block):
            continue
        rows = block if carry is None else np.concatenate([carry, block])
        first = _first_of_group(rows, keys)
        numbers = rows[:, keys]
        is_other = first != np.arange(len(rows))
        if carry is not None:
            is_other[: len(carry)] = False  # told before
        pairs = [np.stack([numbers[first[is_other]], numbers[is_other]], axis=1)]
        if chain:
            places = np.flatnonzero(is_other)
            pairs.append(np.stack([numbers[places - 1], numbers[places]], axis=1))
        together = np.concatenate(pairs)
        together = together[together[:, 0] != together[:, 1]]
        if len(together):
            yield together
        carry = rows[np.unique([first[-1], len(rows) - 1])]


def _first_of_group(rows: np.ndarray, keys: int) -> np.ndarray:
    """For each row the place of the first row with the same key."""
    new = np.ones(len(rows), bool)
    new[1:] = (rows[1:, :keys] != rows[:-1, :keys]).any(axis=1)
    starts = np.flatnonzero(new)
    return np.repeat(starts, np.diff(np.append(starts, len(rows))))


def unique(pairs: Iterable[np.ndarray]) -> np.ndarray:
    """All of them once, ascending: uint64 [n, 2]."""
    found: List[np.ndarray] = list(pairs)
    if not found:
        return np.zeros((0, 2), np.uint64)
    rows = np.concatenate(found)
    rows = rows[np.lexsort((rows[:, 1], rows[:, 0]))]
    new = np.ones(len(rows), bool)
    new[1:] = (rows[1:] != rows[:-1]).any(axis=1)
    return rows[new]
