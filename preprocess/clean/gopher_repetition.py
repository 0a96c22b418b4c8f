"""Step `gopher_repetition`: texts that repeat themselves; Rae et al. 2021 (Gopher), table A1.

Shares of characters are of those of all words. A run of n words counts as a duplicate where it stood before in the
text; a word that several duplicates cover counts once. With n
the covered share can only fall, so most texts are done after 5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Optional, Sequence, Union

import numpy as np

from preprocess.clean.lines import lines, paragraphs
from preprocess.clean.words import words
from preprocess.document import Document, Dropped
from preprocess.pipeline import Apply, Tally, each

_TOP = {2: 0.20, 3: 0.18, 4: 0.16}  # share of the characters in the most frequent run of so many words
_DUPLICATE = {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}  # share of the characters in duplicates
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class GopherRepetition:
    """Largest shares: of lines and paragraphs that stood before, by number and characters. Blank ones never count."""

    max_lines: float = 0.30
    max_paragraphs: float = 0.30
    max_line_characters: float = 0.20
    max_paragraph_characters: float = 0.20
    ngrams: bool = True  # the table's limits for runs of 2 to 10 words

    def open(self) -> Apply:
        return each(self._one)

    def _one(self, document: Document, tally: Tally) -> Union[Document, Dropped]:
        for what, parts, most, most_characters in (
            ("lines", lines(document.text), self.max_lines, self.max_line_characters),
            ("paragraphs", paragraphs(document.text), self.max_paragraphs, self.max_paragraph_characters),
        ):
            number, characters = _duplicates(parts)
            if number > most * len(parts):
                return Dropped(f"duplicate {what}", f"{number / len(parts):.2f}")
            if characters > most_characters * len(document.text):
                return Dropped(f"characters in duplicate {what}", f"{characters / len(document.text):.2f}")
        return (_repeated(words(document.text)) if self.ngrams else None) or document


def _duplicates(parts: Sequence[str]) -> "tuple[int, int]":
    """How many of the parts stood before, and their characters."""
    if len(set(parts)) == len(parts):
        return 0, 0
    seen, number, characters = set(), 0, 0
    for part in parts:
        if part in seen:
            number, characters = number + 1, characters + len(part)
        seen.add(part)
    return number, characters


def _repeated(found: Sequence[str]) -> Optional[Dropped]:
    numbers: Dict[str, int] = {}
    ids = np.fromiter((numbers.setdefault(word, len(numbers)) for word in found), np.uint64, len(found))
    sizes = np.fromiter(map(len, found), np.int64, len(found))
    before = np.concatenate([[0], np.cumsum(sizes)])
    total = int(before[-1])
    runs = ids
    for n in range(2, 11):
        if len(found) < n or not total:
            return None
        runs = runs[:-1] * _MULTIPLIER + ids[n - 1 :]
        order = np.argsort(runs, kind="stable")
        ordered = runs[order]
        again = np.zeros(len(runs), bool)
        again[1:] = ordered[1:] == ordered[:-1]
        if not again.any():
            return None  # no run of n words stands twice, so no longer one does
        if n in _TOP:
            share = _most_frequent(order, again, before, n) / total
            if share > _TOP[n]:
                return Dropped(f"most frequent {n} words", f"{share:.2f}")
        elif n in _DUPLICATE:
            share = _covered(order[again], sizes, n) / total
            if share > _DUPLICATE[n]:
                return Dropped(f"duplicate {n} words", f"{share:.2f}")
            if share <= min(_DUPLICATE.values()):
                return None
    return None


def _most_frequent(order: np.ndarray, again: np.ndarray, before: np.ndarray, n: int) -> int:
    """Characters of all places of the most frequent run; of several, of the longest."""
    starts = np.flatnonzero(~again)
    counts = np.diff(np.append(starts, len(order)))
    places = order[starts[counts == counts.max()]]
    return int(counts.max()) * int((before[places + n] - before[places]).max())


def _covered(places: np.ndarray, sizes: np.ndarray, n: int) -> int:
    """Characters of the words in runs that begin at these places."""
    edges = np.zeros(len(sizes) + 1, np.int64)
    np.add.at(edges, places, 1)
    np.add.at(edges, places + n, -1)
    return int(sizes[np.cumsum(edges[:-1]) > 0].sum())
