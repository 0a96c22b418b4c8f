"""A shuffle that is computed, not stored: number of a sample in the epoch -> which sample it is.

A Feistel network (Luby & Rackoff 1988) permutes the numbers of 2b bits; walking on from what falls outside makes it a
permutation of any size (Black & Rogaway 2002), in under four steps on average. A stored one of a trillion tokens would
be gigabytes on each rank.
"""

from __future__ import annotations

from typing import List

import numpy as np

_ROUNDS = 6
_MASK = (1 << 64) - 1


class Permutation:
    """Of 0 ... size - 1, another for each seed. int -> int."""

    def __init__(self, size: int, seed: List[int]) -> None:
        assert size > 0, "nothing to permute"
        self._size = size
        self._half = max(1, ((size - 1).bit_length() + 1) // 2)  # bits of each half
        words = np.random.SeedSequence(seed).generate_state(_ROUNDS, np.uint64)
        self._keys = [int(word) for word in words]

    def __call__(self, number: int) -> int:
        assert 0 <= number < self._size, f"{number} is outside of {self._size}"
        while True:
            number = self._once(number)
            if number < self._size:
                return number

    def _once(self, number: int) -> int:
        mask = (1 << self._half) - 1
        left, right = number >> self._half, number & mask
        for key in self._keys:
            left, right = right, left ^ (_mixed(right ^ key) & mask)
        return left << self._half | right


def _mixed(x: int) -> int:
    """The finaliser of SplitMix64 (Steele et al. 2014)."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _MASK
    return x ^ (x >> 31)
