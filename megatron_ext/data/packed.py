"""Packs of conversations, as llm-preprocess makes them of chat data -> samples of one sequence length.

Beside the shard's .bin and .idx, whose documents are conversations: `.mask`, uint8 a token, 1 where the token is to be
predicted from those before it in its conversation; `.packs`, int64, the first document of each pack, and the number of
documents.
"""

from __future__ import annotations

from pathlib import Path
from typing import List, Tuple

import numpy as np

from megatron_ext.data.permutation import Permutation
from megatron_ext.data.samples import Sample, Span, part_of
from megatron_ext.data.source import Source

_AGAIN = "make the shard again with llm-preprocess"


def has_packs(prefix: str) -> bool:
    return Path(f"{prefix}.packs").is_file() or Path(f"{prefix}.mask").is_file()


class Packs:
    """As Samples, but a sample is a pack. Memory-mapped; each epoch has every pack of the split once, shuffled."""

    def __init__(self, source: Source, split: str, which: str, length: int, seed: int) -> None:
        """length: tokens of a sample. Raises ValueError for files that do not belong together, for packs longer than
        a sample, and when the split has none."""
        self.source, self.length, self._seed = source, length, seed
        prefix, lengths = source.prefix, source.lengths
        self._mask, self._bounds = _map(f"{prefix}.mask", np.uint8), _map(f"{prefix}.packs", np.int64)
        if len(self._mask) != source.tokens:
            raise ValueError(f"{prefix}.mask is of {len(self._mask)} tokens, not {source.tokens}; {_AGAIN}")
        ends = (int(self._bounds[0]), int(self._bounds[-1]))
        if ends != (0, len(source)) or (np.diff(self._bounds) < 1).any():
            raise ValueError(f"{prefix}.packs does not divide the shard's {len(source)} documents; {_AGAIN}")
        longest = int(np.add.reduceat(lengths, self._bounds[:-1], dtype=np.int64).max())
        if longest > length:
            raise ValueError(
                f"{prefix} has a pack of {longest} tokens, a sequence has {length}; make it with "
                f"data.source.label.pack_length={length}, or raise model.seq_length"
            )
        self._first, end = part_of(split, which, len(self._bounds) - 1)
        self.per_epoch = end - self._first
        if not self.per_epoch:
            raise ValueError(
                f"the {which} split of {prefix} ({split!r}) has none of its {len(self._bounds) - 1} packs; change "
                f"data.split, or use more data"
            )

    @property
    def tokens_per_epoch(self) -> int:
        """Padding included: what is computed."""
        return self.per_epoch * self.length

    def prepare(self, begin: int, end: int) -> None:
        """Nothing: packs need no file of their own."""

    def spans(self, index: int) -> List[Span]:
        first, lengths, _ = self._conversations(index)
        places = [self.source.place(first + number) for number in range(len(lengths))]
        return [Span(shard.prefix, number, 0, int(count)) for (shard, number), count in zip(places, lengths)]

    def sample(self, index: int) -> Sample:
        """Padding is token 0, a sequence of its own at the end, without loss."""
        first, lengths, begin = self._conversations(index)
        tokens, learned = np.zeros(self.length + 1, np.int64), np.zeros(self.length + 1, bool)
        size = int(lengths.sum())
        tokens[:size] = np.concatenate([self.source.read(first + i, 0, int(n)) for i, n in enumerate(lengths)])
        learned[:size] = self._mask[begin : begin + size]
        if size < self.length:
            lengths = np.append(lengths, self.length - size)
        learned[np.cumsum(lengths[:-1])] = False  # a first token is not predicted from another conversation's last
        return Sample(tokens, learned[1:], lengths)

    def _conversations(self, index: int) -> Tuple[int, np.ndarray, int]:
        """Of the pack: its first document, the lengths of all, its first token in the shard."""
        epoch, place = divmod(index, self.per_epoch)
        pack = self._first + Permutation(self.per_epoch, [self._seed, epoch, 1])(place)
        first, end = int(self._bounds[pack]), int(self._bounds[pack + 1])
        shard, number = self.source.place(first)
        return first, np.asarray(self.source.lengths[first:end], np.int64), int(shard.starts(number))


def _map(path: str, dtype: type) -> np.ndarray:
    size = Path(path).stat().st_size if Path(path).is_file() else 0
    if not size or size % np.dtype(dtype).itemsize:
        raise ValueError(f"{path} is missing or cut short ({size} bytes); {_AGAIN} and data.source.label.template")
    return np.memmap(path, dtype, "r")
