"""Sample number of a run -> source, and number of the sample there: by weight, without an index.

Two sources share by rounding: of the first n samples the left one has round(n w). More sources are a tree of such
pairs, built as Huffman's code (1952): the two lightest are joined, again and again, so that a heavy source is few steps
from the root. Each step is integer arithmetic on the number alone, so that nothing has to be built, stored or shared:
any rank asks for any sample at any time, the first samples do not depend on how many follow, and there is no end.

After any number of samples each source is within 1 of its weight's share for two sources, and within 1.5 for more: an
error of half a sample at each step, scaled by the weights below it.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass
from fractions import Fraction
from typing import List, Sequence, Tuple, Union

import numpy as np

_RESOLUTION = 1 << 30  # weights are whole numbers of this


@dataclass(frozen=True)
class _Pair:
    """`left` of `total` samples go to the first of two, the heavier one."""

    left: int
    total: int
    first: Node
    second: Node

    def taken(self, number: int) -> int:
        """Of the first `number` samples, those of the first."""
        return (2 * number * self.left + self.total) // (2 * self.total)


Node = Union[int, _Pair]


class Mixture:
    """Weights of any scale, each above 0, for sources 0, 1, ..."""

    def __init__(self, weights: Sequence[float]) -> None:
        """Raises ValueError for a weight that is not above 0 and finite."""
        if not weights or not all(weight > 0 and np.isfinite(weight) for weight in weights):
            raise ValueError(f"weights {list(weights)}: each must be above 0 and finite")
        self.shares = [float(weight / sum(weights)) for weight in weights]
        self._root = _tree([Fraction(weight) / Fraction(sum(map(Fraction, weights))) for weight in weights])

    def place(self, number: int) -> Tuple[int, int]:
        """Of a sample of the run: its source, and how many samples of that source come before it."""
        node = self._root
        while isinstance(node, _Pair):
            before = node.taken(number)
            node, number = (node.first, before) if node.taken(number + 1) > before else (node.second, number - before)
        return node, number

    def counts(self, number: int) -> List[int]:
        """Samples of each source among the first `number` of the run."""
        found = [0] * len(self.shares)
        waiting: List[Tuple[Node, int]] = [(self._root, number)]
        while waiting:
            node, total = waiting.pop()
            if isinstance(node, _Pair):
                waiting += [(node.first, node.taken(total)), (node.second, total - node.taken(total))]
            else:
                found[node] = total
        return found

    def places(self, begin: int, end: int) -> Tuple[np.ndarray, np.ndarray]:
        """Of all samples [begin, end) at once: sources int32, numbers int64. Below 2^31 samples."""
        assert end <= 1 << 31, f"{end} samples: products leave 64 bits"
        sources, numbers = np.empty(end - begin, np.int32), np.empty(end - begin, np.int64)
        waiting: List[Tuple[Node, np.ndarray, np.ndarray]] = [
            (self._root, np.arange(end - begin), np.arange(begin, end, dtype=np.uint64))
        ]
        while waiting:
            node, where, number = waiting.pop()
            if not isinstance(node, _Pair):
                sources[where], numbers[where] = node, number
                continue
            left, total = np.uint64(2 * node.left), np.uint64(2 * node.total)
            before = (number * left + np.uint64(node.total)) // total
            is_first = (number * left + left + np.uint64(node.total)) // total > before
            waiting.append((node.first, where[is_first], before[is_first]))
            waiting.append((node.second, where[~is_first], (number - before)[~is_first]))
        return sources, numbers


def _tree(shares: List[Fraction]) -> Node:
    order = itertools.count()  # of equal weights the one that was there first
    heap: List[Tuple[Fraction, int, Node]] = [(share, next(order), source) for source, share in enumerate(shares)]
    heapq.heapify(heap)
    while len(heap) > 1:
        light, heavy = heapq.heappop(heap), heapq.heappop(heap)
        whole = light[0] + heavy[0]
        left = min(max(round(heavy[0] / whole * _RESOLUTION), 1), _RESOLUTION)
        heapq.heappush(heap, (whole, next(order), _Pair(left, _RESOLUTION, heavy[2], light[2])))
    return heap[0][2]
