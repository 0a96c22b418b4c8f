"""Step `fineweb`: lists and fragments; Penedo et al. 2024 (FineWeb), section 3.6, thresholds of its released code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from preprocess.clean.lines import QUOTES, SENTENCE_ENDS, lines
from preprocess.clean.words import words
from preprocess.document import Document, Dropped
from preprocess.pipeline import Apply, Tally, each

_STOPS = SENTENCE_ENDS + QUOTES  # its code had . ! ? and quotes at first, then the marks of all scripts


@dataclass(frozen=True)
class FineWeb:
    """Shares: of lines that end with punctuation, of lines of at most short_line characters, of characters in lines
    that stood before; and line ends per word. Blank lines do not count."""

    min_punctuated_lines: float = 0.12
    max_short_lines: float = 0.67
    short_line: int = 30
    max_duplicate_characters: float = 0.01
    max_line_ends: float = 0.3

    def open(self) -> Apply:
        return each(self._one)

    def _one(self, document: Document, tally: Tally) -> Union[Document, Dropped]:
        rows = lines(document.text)
        if not rows:
            return Dropped("no lines")
        punctuated = sum(1 for line in rows if line.endswith(_STOPS)) / len(rows)
        if punctuated < self.min_punctuated_lines:
            return Dropped("too few lines with punctuation", f"{punctuated:.2f}")
        short = sum(1 for line in rows if len(line) <= self.short_line) / len(rows)
        if short > self.max_short_lines:
            return Dropped("too many short lines", f"{short:.2f}")
        characters = sum(map(len, rows))
        share = (characters - sum(map(len, set(rows)))) / characters
        if share > self.max_duplicate_characters:
            return Dropped("characters in duplicate lines", f"{share:.2f}")
        ends = (len(rows) - 1) / max(1, len(words(document.text)))
        return document if ends <= self.max_line_ends else Dropped("too many line ends", f"{ends:.2f}")
