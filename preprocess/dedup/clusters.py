"""Pairs of alike documents -> for each document that goes, the one that stays: the first of all it hangs together with.

Only documents that occur in a pair take memory: some 40 bytes each, and 16 a pair.
"""

from __future__ import annotations

from typing import Tuple

import numpy as np


def decide(pairs: np.ndarray) -> Tuple[np.ndarray, np.ndarray]:
    """pairs uint64 [pairs, 2] of numbers -> (gone, stays): each that is not the least of its cluster, ascending."""
    if not len(pairs):
        return np.zeros(0, np.uint64), np.zeros(0, np.uint64)
    numbers, places = np.unique(pairs, return_inverse=True)
    one, other = places.reshape(-1, 2).T
    label = np.arange(len(numbers))
    while True:  # labels fall to the least of the neighbours, then to the label of their label: logarithmic rounds
        before = label.copy()
        least = np.minimum(label[one], label[other])
        np.minimum.at(label, label[one], least)
        np.minimum.at(label, label[other], least)
        while not np.array_equal(label, label[label]):
            label = label[label]
        if np.array_equal(before, label):
            break
    gone = label != np.arange(len(numbers))
    return numbers[gone], numbers[label[gone]]
