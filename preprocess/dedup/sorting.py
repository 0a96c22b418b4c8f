"""Rows of 64-bit numbers, sorted on disk: more of them than fit into memory.

Runs of bounded size are sorted and written; merging takes a block of each run, and of all blocks what is not above the
least of their last rows: nothing smaller can follow. Everything is numpy; no Python object a row.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Iterable, Iterator, List, Tuple

import numpy as np


def in_order(blocks: Iterable[np.ndarray], width: int, memory: int, folder: Path) -> Iterator[np.ndarray]:
    """blocks: uint64 [rows, width], ascending in the last column as they come -> all rows, in order of all columns.

    memory: bytes held at a time, about. Sorted runs lie in `folder` meanwhile.
    """
    row = 8 * width
    with tempfile.TemporaryDirectory(dir=folder, prefix=".sort-") as place:
        runs = [_write(Path(place) / f"{n}", part) for n, part in enumerate(_runs(blocks, max(1, memory // (4 * row))))]
        if len(runs) == 1:
            only = _open(runs[0], width)
            for begin in range(0, len(only), 1 << 16):
                yield np.asarray(only[begin : begin + (1 << 16)])
        elif runs:
            yield from _merge([_open(run, width) for run in runs], max(1, memory // (4 * row * len(runs))))


def _runs(blocks: Iterable[np.ndarray], limit: int) -> Iterator[np.ndarray]:
    waiting: List[np.ndarray] = []
    count = 0
    for block in blocks:
        for begin in range(0, len(block), limit):
            part = block[begin : begin + limit]
            if count + len(part) > limit and waiting:
                yield _sorted(waiting)
                waiting, count = [], 0
            waiting.append(np.array(part))
            count += len(part)
    if waiting:
        yield _sorted(waiting)


def _sorted(parts: List[np.ndarray]) -> np.ndarray:
    rows = np.concatenate(parts)
    keys = tuple(rows[:, column] for column in range(rows.shape[1] - 2, -1, -1))
    order = np.lexsort(keys) if len(keys) > 1 else np.argsort(keys[0], kind="stable")  # both stable: the last is sorted
    return rows[order]


def _write(path: Path, rows: np.ndarray) -> Path:
    rows.tofile(path)
    return path


def _open(path: Path, width: int) -> np.ndarray:
    return np.memmap(path, np.uint64, "r").reshape(-1, width)


def _merge(runs: List[np.ndarray], block: int) -> Iterator[np.ndarray]:
    at = [0] * len(runs)
    while live := [n for n, run in enumerate(runs) if at[n] < len(run)]:
        heads = {n: runs[n][at[n] : at[n] + block] for n in live}
        least = min(tuple(head[-1].tolist()) for head in heads.values())
        taken = []
        for n, head in heads.items():
            end = _not_above(head, least)
            taken.append(head[:end])
            at[n] += end
        yield _all_columns(np.concatenate(taken))


def _not_above(rows: np.ndarray, least: Tuple[int, ...]) -> int:
    """How many of the sorted rows are not above `least`: those below in a column, then column by column the equal."""
    begin, end = 0, len(rows)
    for column, value in enumerate(least):
        equal = rows[begin:end, column]
        begin, end = (begin + int(np.searchsorted(equal, np.uint64(value), side)) for side in ("left", "right"))
    return end


def _all_columns(rows: np.ndarray) -> np.ndarray:
    return rows[np.lexsort(tuple(rows[:, column] for column in range(rows.shape[1] - 1, -1, -1)))]
