"""Sample number -> tokens and the documents they came from; a pure function of seed, shards and split.

Of plain text here, of conversations in packed.py.

Documents of a split are shuffled anew in each epoch and laid end to end; the stream is cut into sequences, and those
are shuffled in turn. Neither the number of steps nor the layout has a say, so a run may be extended or resumed anywhere
and sees what it would have seen. All arithmetic is of Python's or 64-bit integers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import List, Optional, Protocol, Sequence, Tuple

import numpy as np

from megatron_ext.data import order
from megatron_ext.data.mixture import Mixture
from megatron_ext.data.permutation import Permutation
from megatron_ext.data.source import Source

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Span:
    """Tokens [start, start + count) of a document that are part of a sample."""

    prefix: str
    document: int
    start: int
    count: int


@dataclass(frozen=True)
class Sample:
    """tokens int64 [length + 1]: inputs and, shifted by one, labels. The rest is of packs only.

    learned: bool [length], the labels that count. lengths: int64, of the sequences that the inputs consist of, none of
    which may see another; their sum is `length`.
    """

    tokens: np.ndarray
    learned: Optional[np.ndarray] = None
    lengths: Optional[np.ndarray] = None


class Sampler(Protocol):
    """One split of one source, epoch after epoch."""

    source: Source
    per_epoch: int  # samples

    @property
    def tokens_per_epoch(self) -> int: ...

    def prepare(self, begin: int, end: int) -> None:
        """Write what its samples [begin, end) need of files, unless they are there."""

    def spans(self, index: int) -> List[Span]: ...

    def sample(self, index: int) -> Sample: ...


class Samples:
    """Samples of `length` + 1 tokens (inputs and, shifted by one, labels) from one split of one source.

    Each epoch has every sample once: number i is sample i modulo per_epoch of its epoch's shuffle.
    """

    def __init__(self, source: Source, split: str, which: str, length: int, seed: int, cache: Path) -> None:
        """cache: folder for the orders of large sources. Raises ValueError when the split is shorter than a sample."""
        self.source, self.length, self._seed, self._cache = source, length, seed, cache
        self.documents = part_of(split, which, len(source))
        self.tokens_per_epoch = int(source.lengths[slice(*self.documents)].sum(dtype=np.int64))
        self.per_epoch = (self.tokens_per_epoch - 1) // length
        if self.per_epoch < 1:
            number = self.documents[1] - self.documents[0]
            raise ValueError(
                f"the {which} split of {source.prefix} ({split!r}) has {self.tokens_per_epoch} tokens in {number} "
                f"documents, fewer than one sequence of {length} + 1; change data.split, use more data, or lower "
                f"model.seq_length"
            )
        self.epoch = lru_cache(maxsize=2)(self._epoch)

    def prepare(self, begin: int, end: int) -> None:
        if self.documents[1] - self.documents[0] > order.IN_MEMORY:
            for epoch in range(begin // self.per_epoch, -(-end // self.per_epoch)):
                self._epoch(epoch)

    def _epoch(self, epoch: int) -> Tuple[order.Order, Permutation]:
        """The order of its documents, and of its samples."""
        documents = order.order(self.source.lengths, self.documents, self._seed, epoch, self._cache)
        return documents, Permutation(self.per_epoch, [self._seed, epoch, 1])

    def spans(self, index: int) -> List[Span]:
        found = []
        for document, start, count in self._pieces(index):
            shard, number = self.source.place(document)
            found.append(Span(shard.prefix, number, start, count))
        return found

    def tokens(self, index: int) -> np.ndarray:
        """int64 [length + 1]."""
        return np.concatenate([self.source.read(*piece) for piece in self._pieces(index)]).astype(np.int64)

    def sample(self, index: int) -> Sample:
        return Sample(self.tokens(index))

    def _pieces(self, index: int) -> List[Tuple[int, int, int]]:
        """(document, first token in it, number of tokens)."""
        epoch, position = divmod(index, self.per_epoch)
        documents, permutation = self.epoch(epoch)
        begin = permutation(position) * self.length
        end = begin + self.length + 1
        first, last = np.searchsorted(documents.starts, [begin, end - 1], side="right") - 1
        found = []
        for place in range(int(first), int(last) + 1):
            start, stop = int(documents.starts[place]), int(documents.starts[place + 1])
            low, high = max(begin, start), min(end, stop)
            if low < high:
                found.append((int(documents.documents[place]), low - start, high - low))
        return found


class Blend:
    """Several sources by weight: sample number i of the run is sample number k of one of them."""

    def __init__(self, sources: Sequence[Sampler], weights: Sequence[float]) -> None:
        self.sources, self.mixture = sources, Mixture(weights)

    def place(self, index: int) -> Tuple[int, int]:
        """Sample of the run -> number of its source, number of the sample there."""
        return self.mixture.place(index)

    def spans(self, index: int) -> List[Span]:
        source, sample = self.place(index)
        return self.sources[source].spans(sample)

    def prepare(self, begin: int, end: int) -> None:
        """Write what samples [begin, end) of the run need of files, unless they are there."""
        for source, first, last in zip(self.sources, self.mixture.counts(begin), self.mixture.counts(end)):
            source.prepare(first, last)

    def without(self, number: int) -> List[str]:
        """Sources of which none of the first `number` samples of the run is."""
        return [one.source.prefix for one, count in zip(self.sources, self.mixture.counts(number)) if not count]

    def sample(self, index: int) -> Sample:
        source, number = self.place(index)
        return self.sources[source].sample(number)


def part_of(split: str, which: str, documents: int) -> Tuple[int, int]:
    """Documents [begin, end) of a split such as "98,2,0"; parts are contiguous, as in Megatron-LM."""
    parts = np.asarray([float(part) for part in split.split(",")])
    ends = np.rint(np.cumsum(parts) / parts.sum() * documents).astype(int)
    place = SPLITS.index(which)
    return int(ends[place - 1]) if place else 0, int(ends[place])
