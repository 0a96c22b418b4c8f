"""Reads packs of conversations from disk.

<prefix>.bin, .idx   a document is a conversation, as in any shard; conversations of a pack follow each other
<prefix>.mask        uint8 a token, in the order of .bin: 1 where the token is learned, that is predicted from those
                     before it in its conversation
<prefix>.packs       int64, little-endian: first document of each pack, and the number of documents

Positions start anew in each conversation, and attention must not cross from one to another: their boundaries are the
lengths in .idx.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from preprocess.shards import Shard


@dataclass(frozen=True)
class Pack:
    """n tokens of k conversations: ids [n], mask [n], positions int32 [n], boundaries int64 [k + 1] from 0 to n."""

    ids: np.ndarray
    mask: np.ndarray
    positions: np.ndarray
    boundaries: np.ndarray


class Packs:
    """Memory-mapped packs; pack number i is packs[i]."""

    def __init__(self, prefix: str) -> None:
        """Raises ValueError when a file is missing, or is not what the others say."""
        self._shard = Shard(prefix)
        self._mask = _map(f"{prefix}.mask", np.uint8)
        self._bounds = _map(f"{prefix}.packs", np.int64)
        if len(self._mask) != len(self._shard.tokens):
            raise ValueError(f"{prefix}.mask is of {len(self._mask)} tokens, the shard has {len(self._shard.tokens)}")
        ends = (int(self._bounds[0]), int(self._bounds[-1]))
        if ends != (0, len(self._shard)) or (np.diff(self._bounds) < 1).any():
            raise ValueError(f"{prefix}.packs does not divide the shard's {len(self._shard)} documents; make it again")

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def __getitem__(self, number: int) -> Pack:
        if not 0 <= number < len(self):
            raise IndexError(f"pack {number} of {len(self)}")
        starts = self._shard.starts(int(self._bounds[number]), int(self._bounds[number + 1]))
        begin, end = int(starts[0]), int(starts[-1])
        mask = self._mask[begin:end]
        if mask.max(initial=0) > 1:
            raise ValueError(f"pack {number}: its mask holds {mask.max()}, and should hold 0 and 1; make it again")
        positions = np.arange(begin, end) - np.repeat(starts[:-1], np.diff(starts))
        return Pack(self._shard.tokens[begin:end], mask, positions.astype(np.int32), starts - begin)

    def fill(self, pack_length: int) -> float:
        """The share of the places in packs of this many tokens that hold one."""
        return len(self._shard.tokens) / (len(self) * pack_length)


def _map(path: str, dtype: type) -> np.ndarray:
    """Raises ValueError for a file that is not there, empty, or of a broken number."""
    size = Path(path).stat().st_size if Path(path).is_file() else 0
    if not size or size % np.dtype(dtype).itemsize:
        raise ValueError(f"{path} is missing or cut short ({size} bytes); make the shard again with llm-preprocess")
    return np.memmap(path, dtype, "r")
