"""Documents of a split in the order of an epoch, and where each starts in the stream of its tokens.

Small sources keep it in memory. Of a large one it is a file, written once (by `python -m megatron_ext.data.index`
ahead of the job, or by the first rank of each node while the others wait) and mapped into all ranks of the node. Its
name is a hash of all that it depends on, so that nothing stale is ever read.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Tuple

import numpy as np

IN_MEMORY = 1 << 20  # documents: 16 MB
_SMALL = 1 << 31  # documents whose numbers fit into 32 bits


@dataclass(frozen=True)
class Order:
    """documents [n]; starts int64 [n + 1]: first token of each in the stream, and the end."""

    documents: np.ndarray
    starts: np.ndarray


def order(lengths: np.ndarray, documents: Tuple[int, int], seed: int, epoch: int, cache: Path) -> Order:
    """Of documents [begin, end), lengths those of all. Written to `cache` if it is large and not there."""
    begin, end = documents
    if end - begin <= IN_MEMORY:
        return _shuffled(lengths, begin, end, seed, epoch)
    name = _name(lengths, begin, end, seed, epoch)
    files = cache / f"{name}.documents.npy", cache / f"{name}.starts.npy"
    if not all(file.exists() for file in files):
        made = _shuffled(lengths, begin, end, seed, epoch)
        cache.mkdir(parents=True, exist_ok=True)
        for file, values in zip(files, (made.documents, made.starts)):
            temporary = file.with_name(f".{file.name}.{os.uname().nodename}.{os.getpid()}")
            with open(temporary, "wb") as out:
                np.save(out, values)
                out.flush()
                os.fsync(out.fileno())
            os.replace(temporary, file)  # a rank of another node may write the same: whichever is last
    return Order(*(np.load(file, mmap_mode="r") for file in files))


def number_type(count: int) -> np.dtype:
    """Of numbers below `count`."""
    return np.dtype(np.int32 if count <= _SMALL else np.int64)


def _shuffled(lengths: np.ndarray, begin: int, end: int, seed: int, epoch: int) -> Order:
    documents = np.arange(begin, end, dtype=number_type(end))
    np.random.default_rng([seed, epoch]).shuffle(documents)
    starts = np.zeros(len(documents) + 1, np.int64)
    np.cumsum(lengths[documents], dtype=np.int64, out=starts[1:])
    return Order(documents, starts)


def _name(lengths: np.ndarray, begin: int, end: int, seed: int, epoch: int) -> str:
    whole = hashlib.sha256(f"1 {begin} {end} {seed} {epoch} {len(lengths)} {lengths.dtype}".encode())
    for start in range(begin, end, 1 << 20):
        whole.update(np.ascontiguousarray(lengths[start : min(end, start + (1 << 20))]).data)
    return whole.hexdigest()[:32]
