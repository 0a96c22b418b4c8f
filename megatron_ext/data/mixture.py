"""Sample number of a run -> source, and number of the sample there: by weight, without an index.

Two sources share by rounding: of the first n samples the heavier one has round(n w). More sources are a tree of such
pairs, built as Huffman's code (1952): the two lightest are joined, again and again, so that a heavy source is few steps
from the root. Each step is integer arithmetic on the number alone, so that nothing has to be built, stored or shared:
any rank asks for any sample at any time, the first samples do not depend on how many follow, and there is no end.

After any number of samples a source of weight w is off its share by at most (1 + w / a + w / b + ...) / 2 samples, a, b
... being the weights of the pairs it is in, the root left out: half a sample at each step, scaled by the weights below.
So by 1/2 for two sources and less than 1 for three. In Huffman's trees a, b, c ... are at least 1, 2, 3, 5, 8 ... times
w, as the Fibonacci numbers, so by less than 1.68 for any number.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import dataclass
from fractions import Fraction
from typing import List, Sequence, Tuple, Union

import numpy as np

_BITS = 40  # of a weight; what that leaves out is less than half a sample after 2^40 of them
_HALF = 1 << (_BITS - 1)
_AT_ONCE = 1 << 22  # samples: products stay in 63 bits


@dataclass(frozen=True)
class _Pair:
    """`heavy` x 2^-_BITS of the samples go to the first of two."""

    heavy: int
    first: Node
    second: Node

    def taken(self, number: int) -> int:
        """Of the first `number` samples, those of the first."""
        return (number * self.heavy + _HALF) >> _BITS


Node = Union[int, _Pair]


class Mixture:
    """Weights of any scale, each above 0, for sources 0, 1, ..."""

    def __init__(self, weights: Sequence[float]) -> None:
        """Raises ValueError for a weight that is not above 0 and finite."""
        if not weights or not all(weight > 0 and np.isfinite(weight) for weight in weights):
            raise ValueError(f"weights {list(weights)}: each must be above 0 and finite")
        self.shares = [float(weight / sum(weights)) for weight in weights]
        self._root = _tree([Fraction(weight) for weight in weights])

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
        """Of all samples [begin, end), up to 2^22, at once: sources int32 and numbers int64."""
        assert 0 <= end - begin <= _AT_ONCE, f"{end - begin} samples at once"
        sources, numbers = np.empty(end - begin, np.int32), np.empty(end - begin, np.int64)
        waiting: List[Tuple[Node, np.ndarray, int]] = [(self._root, np.arange(end - begin), begin)]
        while waiting:
            node, where, first = waiting.pop()  # these samples are number first, first + 1, ... of the node
            if not isinstance(node, _Pair):
                sources[where], numbers[where] = node, np.arange(first, first + len(where))
                continue
            before = node.taken(first)
            fraction = first * node.heavy + _HALF - (before << _BITS)
            taken = (np.arange(len(where) + 1) * node.heavy + fraction) >> _BITS
            is_first = taken[1:] > taken[:-1]
            waiting += [(node.first, where[is_first], before), (node.second, where[~is_first], first - before)]
        return sources, numbers


def _tree(weights: List[Fraction]) -> Node:
    order = itertools.count()  # of equal weights the one that was there first
    heap: List[Tuple[Fraction, int, Node]] = [(weight, next(order), source) for source, weight in enumerate(weights)]
    heapq.heapify(heap)
    while len(heap) > 1:
        light, heavy = heapq.heappop(heap), heapq.heappop(heap)
        whole = light[0] + heavy[0]
        heapq.heappush(heap, (whole, next(order), _Pair(round(heavy[0] / whole * 2**_BITS), heavy[2], light[2])))
    return heap[0][2]
