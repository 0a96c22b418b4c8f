"""Where in a text something may be: so that patterns are tried on a hundredth of it.

A pattern that begins with a class of characters costs ten nanoseconds a character, and there are twenty. Places with
enough digits, dots or colons close together are found for all of them by a few running sums instead.
"""

from __future__ import annotations

from functools import cached_property
from typing import Callable, List, Sequence, Tuple

import numpy as np

Regions = List[Tuple[int, int]]  # [start, end) in characters, in order, apart from one another
Finder = Callable[["Places"], Regions]

_SLACK = 48  # characters beside a place that may belong to it: a country's prefix, a word before a number


class Places:
    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def lowered(self) -> str:
        lowered = self.text.lower()  # some characters become two: then places would be shifted
        return lowered if len(lowered) == len(self.text) else self.text

    @cached_property
    def _codes(self) -> np.ndarray:
        return np.frombuffer(self.text.encode("utf-32-le", "surrogatepass"), np.uint32)

    @cached_property
    def _digits(self) -> np.ndarray:
        return (self._codes - 48) < 10  # below 48 the difference wraps to a large number

    def dense_digits(self) -> Regions:
        """At least 7 digits in 24 characters: every phone, card, account and identity number has them."""
        return _dense(self._digits, 7, 24)

    def dotted(self) -> Regions:
        """Three dots between digits in 13 characters."""
        inner = (self._codes[1:-1] == 46) & self._digits[:-2] & self._digits[2:]
        return _dense(np.concatenate([[False], inner, [False]]), 3, 13) if len(self._codes) > 2 else []

    def colons(self) -> Regions:
        """Two colons in 6 characters."""
        return _dense(self._codes == 58, 2, 6)

    def around(self, words: Sequence[str], before: int, after: int, any_case: bool = False) -> Regions:
        """So many characters before the start and after the end of each of the words."""
        text = self.lowered if any_case else self.text
        found = []
        for word in words:
            place = text.find(word)
            while place >= 0:
                found.append((max(0, place - before), min(len(text), place + len(word) + after)))
                place = text.find(word, place + len(word))
        return _joined(found)


def near(*words: str, before: int = 0, after: int = 0, any_case: bool = False) -> Finder:
    return lambda places: places.around(words, before, after, any_case)


def _dense(marked: np.ndarray, least: int, width: int) -> Regions:
    """Where at least so many characters of `width` are marked."""
    places = np.flatnonzero(marked)
    if len(places) < least:
        return []
    first = places[: len(places) - least + 1]
    last = places[least - 1 :]
    close = last - first < width
    return _joined(
        [
            (max(0, a - _SLACK), min(len(marked), b + 1 + _SLACK))
            for a, b in zip(first[close].tolist(), last[close].tolist())
        ]
    )


def _joined(regions: Regions) -> Regions:
    joined: Regions = []
    for start, end in sorted(regions):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined
