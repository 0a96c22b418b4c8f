"""Which conversations share a pack: best fit of the longest first, among some thousands that follow each other.

Best-fit decreasing needs at most 11/9 of the least number of packs, and four (Johnson 1973); of the short texts that
conversations are it fills all but the last pack of a window nearly whole.
"""

from __future__ import annotations

import bisect
from typing import List, Tuple

import numpy as np

WINDOW = 4096  # conversations


def pack(lengths: np.ndarray, pack_length: int) -> List[np.ndarray]:
    """Lengths in tokens -> numbers of the conversations of each pack, ascending; pack_length 0: each has its own.

    Every conversation is in one pack, no pack is longer than pack_length, packs are in the order of their first member.
    """
    if not pack_length:
        return [np.asarray([number]) for number in range(len(lengths))]
    assert not len(lengths) or lengths.max() <= pack_length, f"{lengths.max()} tokens do not fit {pack_length}"
    packs: List[List[int]] = []
    for start in range(0, len(lengths), WINDOW):
        packs += sorted(sorted(one) for one in _window(lengths[start : start + WINDOW], start, pack_length))
    return [np.asarray(one) for one in packs]


def _window(lengths: np.ndarray, first: int, pack_length: int) -> List[List[int]]:
    packs: List[List[int]] = []
    rooms: List[Tuple[int, int]] = []  # tokens left, number of the pack; sorted
    for number in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[number])
        place = bisect.bisect_left(rooms, (length, -1))
        room, which = rooms.pop(place) if place < len(rooms) else (pack_length, len(packs))
        if which == len(packs):
            packs.append([])
        packs[which].append(first + number)
        bisect.insort(rooms, (room - length, which))
    return packs
