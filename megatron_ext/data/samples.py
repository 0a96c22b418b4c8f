"""Sample number -> tokens and the documents they came from; a pure function of seed, shards and split.

Documents of a split are shuffled anew in each epoch and laid end to end; the stream is cut into sequences, and those
are shuffled in turn. Neither the number of steps nor the layout has a say, so a run may be extended or resumed anywhere
and sees what it would have seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import List, Sequence, Tuple

import numpy as np

from megatron_ext.data.shard import Shard

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Span:
    """Tokens [start, start + count) of a document that are part of a sample."""

    prefix: str
    document: int
    start: int
    count: int


class Samples:
    """Samples of `length` + 1 tokens (inputs and, shifted by one, labels) from one split of one shard."""

    def __init__(self, shard: Shard, split: str, which: str, length: int, seed: int) -> None:
        """Raises ValueError when the split has fewer tokens than one sample."""
        self.shard, self.length, self.seed = shard, length, seed
        self.documents = np.arange(*_range(split, which, len(shard)))
        tokens = int(shard.lengths[self.documents].sum())
        self.per_epoch = (tokens - 1) // length
        if self.per_epoch < 1:
            raise ValueError(
                f"the {which} split of {shard.prefix} has {tokens} tokens in {len(self.documents)} documents, fewer "
                f"than one sequence of {length} + 1; change data.split, use more data, or lower model.seq_length"
            )
        self._epoch = lru_cache(maxsize=2)(self._shuffle)

    def _shuffle(self, epoch: int) -> Tuple[np.ndarray, np.ndarray, np.ndarray]:
        """-> documents in order, where each starts in the stream, samples in order."""
        random = np.random.default_rng([self.seed, epoch])
        order = random.permutation(self.documents)
        starts = np.concatenate([[0], np.cumsum(self.shard.lengths[order])])
        return order, starts, random.permutation(self.per_epoch)

    def spans(self, index: int) -> List[Span]:
        epoch, position = divmod(index, self.per_epoch)
        order, starts, samples = self._epoch(epoch)
        begin = int(samples[position]) * self.length
        end = begin + self.length + 1
        first, last = np.searchsorted(starts, [begin, end - 1], side="right") - 1
        found = []
        for place in range(int(first), int(last) + 1):
            low, high = max(begin, int(starts[place])), min(end, int(starts[place + 1]))
            if low < high:
                found.append(Span(self.shard.prefix, int(order[place]), low - int(starts[place]), high - low))
        return found

    def tokens(self, index: int) -> np.ndarray:
        """int64 [length + 1]."""
        parts = [
            self.shard.tokens[begin : begin + span.count]
            for span in self.spans(index)
            for begin in [int(self.shard.starts[span.document]) + span.start]
        ]
        return np.concatenate(parts).astype(np.int64)


class Blend:
    """Several sources by weight: sample number i of the run is sample number k of one of them.

    The choice is greedy, always the source that is farthest behind its weight (megatron-core's builder), so the first i
    choices do not depend on how many follow.
    """

    def __init__(self, sources: Sequence[Samples], weights: Sequence[float], count: int) -> None:
        self.sources = sources
        if len(sources) > 1:  # one source needs no table: at full scale that would be gigabytes on each rank
            from megatron.core.datasets import helpers_cpp

            self._choice, self._index = np.zeros(count, dtype=np.int16), np.zeros(count, dtype=np.int64)
            share = np.asarray(weights, dtype=np.float64) / np.sum(weights)
            helpers_cpp.build_blending_indices(self._choice, self._index, share, len(sources), count, False)

    def place(self, index: int) -> Tuple[int, int]:
        """Sample of the run -> number of its source, number of the sample there."""
        return (0, index) if len(self.sources) == 1 else (int(self._choice[index]), int(self._index[index]))

    def spans(self, index: int) -> List[Span]:
        source, sample = self.place(index)
        return self.sources[source].spans(sample)

    def tokens(self, index: int) -> np.ndarray:
        source, sample = self.place(index)
        return self.sources[source].tokens(sample)


def _range(split: str, which: str, documents: int) -> Tuple[int, int]:
    """Documents [begin, end) of a split such as "98,2,0"; parts are contiguous, as in Megatron-LM."""
    parts = np.asarray([float(part) for part in split.split(",")])
    ends = np.rint(np.cumsum(parts) / parts.sum() * documents).astype(int)
    place = SPLITS.index(which)
    return int(ends[place - 1]) if place else 0, int(ends[place])
