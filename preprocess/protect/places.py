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

_BEFORE, _AFTER = 28, 12  # characters beside a place that may belong to it: a word before a number, an account's end


class Places:
    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def lowered(self) -> str:
        lowered = self.text.lower()  # some characters become two: then places would be shifted
        return lowered if len(lowered) == len(self.text) else self.text

    @cached_property
    def _codes(self) -> np.ndarray:
        if self.text.isascii():
            return np.frombuffer(self.text.encode(), np.uint8)
        return np.frombuffer(self.text.encode("utf-32-le", "surrogatepass"), np.uint32)

    @cached_property
    def _digits(self) -> np.ndarray:
        return (self._codes - self._codes.dtype.type(48)) < 10  # below 48 the difference wraps to a large number

    @cached_property
    def _seven(self) -> Regions:
        return _dense(self._digits, 7, 24)

    @cached_property
    def _nine(self) -> Regions:
        return _dense(self._digits, 9, 24) if self._seven else []

    def seven_digits(self) -> Regions:
        """In 24 characters: the least of a phone or identity number."""
        return self._seven

    def nine_digits(self) -> Regions:
        """In 24 characters, as most have them, and a date has not."""
        return self._nine

    def long_words(self) -> Regions:
        """At least 20 characters without a space: as keys are."""
        ends = np.concatenate([[-1], np.flatnonzero(self._codes <= 32), [len(self._codes)]])
        long = np.flatnonzero(np.diff(ends) > 20)
        return list(zip((ends[long] + 1).tolist(), ends[long + 1].tolist()))

    def dotted(self) -> Regions:
        """Three dots in 9 characters, digits beside them."""
        dots = np.flatnonzero(self._codes[1:-1] == 46) + 1
        return _close(dots[self._digits[dots - 1] & self._digits[dots + 1]], 3, 9, len(self.text))

    def colons(self) -> Regions:
        """Two colons in 6 characters: of an IPv6 address all but its last groups, so 40 more may belong to it."""
        return _joined([(start, min(end + 28, len(self.text))) for start, end in _dense(self._codes == 58, 2, 6)])

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
    return _close(np.flatnonzero(marked), least, width, len(marked))


def _close(places: np.ndarray, least: int, width: int, end: int) -> Regions:
    """Around so many of the places in `width` characters."""
    first, last = places[: max(0, len(places) - least + 1)], places[least - 1 :]
    close = last - first < width
    begins, ends = np.maximum(first[close] - _BEFORE, 0), np.minimum(last[close] + 1 + _AFTER, end)
    if not len(begins):
        return []
    apart = np.flatnonzero(begins[1:] > ends[:-1])  # places are in order, so the ends are too
    starts = begins[np.concatenate([[0], apart + 1])]
    return list(zip(starts.tolist(), ends[np.concatenate([apart, [len(ends) - 1]])].tolist()))


def _joined(regions: Regions) -> Regions:
    joined: Regions = []
    for start, end in sorted(regions):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined
