"""The quality rules of Gopher: Rae et al. 2021, arXiv 2112.11446, appendix A1.1. Thresholds are theirs."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import List, Optional, Set, Union

from preprocess.clean.lines import lines
from preprocess.clean.words import is_unspaced, tokens, words
from preprocess.document import Document, Dropped
from preprocess.pipeline import Apply, Tally, each

_LETTER = re.compile(r"[^\W\d_]")
_BULLETS = ("\u2022", "\u2023", "\u2043", "\u25aa", "\u25cf", "\u25e6", "-", "*")
_ELLIPSES = ("...", "\u2026")


@dataclass(frozen=True)
class GopherQuality:
    """Lengths in characters. Word length is not judged where most words are of a script without spaces.

    stop_words_for: languages in whose documents at least `min_stop_words` different `stop_words` must occur; "any" is
    every document, whatever its language. The step `language`, or the input, tells the language.
    """

    min_words: int = 50
    max_words: int = 100_000
    min_mean_word_length: float = 3
    max_mean_word_length: float = 10
    max_hashes_per_word: float = 0.1
    max_ellipses_per_word: float = 0.1
    max_bullet_lines: float = 0.9
    max_ellipsis_lines: float = 0.3
    min_words_with_letters: float = 0.8
    min_stop_words: int = 2
    stop_words: List[str] = field(default_factory=lambda: ["the", "be", "to", "of", "and", "that", "have", "with"])
    stop_words_for: List[str] = field(default_factory=lambda: ["en"])

    def open(self) -> Apply:
        from preprocess.clean.language_codes import same_language

        if self.min_words > self.max_words or self.min_mean_word_length > self.max_mean_word_length:
            raise ValueError("step gopher_quality: a min_ is above its max_, nothing would be left; exchange them")
        every = "any" in self.stop_words_for
        is_wanted = same_language([code for code in self.stop_words_for if code != "any"], "step gopher_quality")
        spellings = {word: word for word in self.stop_words}
        spellings.update({form: word for word in self.stop_words for form in (word.capitalize(), word.upper())})

        def one(document: Document, tally: Tally) -> Union[Document, Dropped]:
            dropped = self._words(document.text) or self._lines(document.text)
            given = document.metadata.get("language") or document.metadata.get("lang")
            if dropped is None and (every or (isinstance(given, str) and is_wanted(given))):
                found: Set[str] = set()
                for word in words(document.text):
                    if word in spellings:
                        found.add(spellings[word])
                        if len(found) >= self.min_stop_words:
                            break
                if len(found) < self.min_stop_words:
                    dropped = Dropped("few stop words", str(len(found)))
            return dropped or document

        return each(one)

    def _words(self, text: str) -> Optional[Dropped]:
        found = words(text)
        number = len(found)
        if number < self.min_words:
            return Dropped("few words", str(number))
        if number > self.max_words:
            return Dropped("many words", str(number))
        spaced = found if text.isascii() else [word for word in found if not is_unspaced(word)]
        if 2 * len(spaced) >= number > 0:
            mean = sum(map(len, spaced)) / len(spaced)
            if mean < self.min_mean_word_length:
                return Dropped("short words", f"{mean:.2f}")
            if mean > self.max_mean_word_length:
                return Dropped("long words", f"{mean:.2f}")
        hashes, ellipses = text.count("#") / max(number, 1), _ellipses(text) / max(number, 1)
        if hashes > self.max_hashes_per_word:
            return Dropped("hash signs", f"{hashes:.3f}")
        if ellipses > self.max_ellipses_per_word:
            return Dropped("ellipses", f"{ellipses:.3f}")
        pieces = tokens(text)  # a symbol that stands alone is a word without a letter
        share = sum([piece.isalpha() or _LETTER.search(piece) is not None for piece in pieces]) / max(len(pieces), 1)
        return Dropped("words without letters", f"{share:.3f}") if share < self.min_words_with_letters else None

    def _lines(self, text: str) -> Optional[Dropped]:
        found = lines(text)
        bullets = sum([line.startswith(_BULLETS) for line in found]) / max(len(found), 1)
        ellipses = sum([line.endswith(_ELLIPSES) for line in found]) / max(len(found), 1)
        if bullets > self.max_bullet_lines:
            return Dropped("bullet lines", f"{bullets:.3f}")
        if ellipses > self.max_ellipsis_lines:
            return Dropped("ellipsis lines", f"{ellipses:.3f}")
        return None


def _ellipses(text: str) -> int:
    return sum(text.count(ellipsis) for ellipsis in _ELLIPSES)
