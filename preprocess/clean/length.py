"""Texts that are too short or too long, in characters (code points) or words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Union

from preprocess.clean.words import words
from preprocess.document import Document, Dropped
from preprocess.pipeline import Apply, Tally, each


@dataclass(frozen=True)
class Length:
    """Least and most, both still kept; null: no limit."""

    min_characters: Optional[int] = None
    max_characters: Optional[int] = None
    min_words: Optional[int] = None
    max_words: Optional[int] = None

    def open(self) -> Apply:
        for unit in ("characters", "words"):
            least, most = getattr(self, f"min_{unit}"), getattr(self, f"max_{unit}")
            if least is not None and most is not None and least > most:
                raise ValueError(f"step length: min_{unit}={least} is above max_{unit}={most}; nothing would be left")
        if self == Length():
            raise ValueError("step length: no limit is set; set min_words, max_words, min_characters, max_characters")
        return each(self._one)

    def _one(self, document: Document, tally: Tally) -> Union[Document, Dropped]:
        out = self._outside(len(document.text), self.min_characters, self.max_characters, "characters")
        if out is None and (self.min_words is not None or self.max_words is not None):
            out = self._outside(len(words(document.text)), self.min_words, self.max_words, "words")
        return out or document

    def _outside(self, number: int, least: Optional[int], most: Optional[int], unit: str) -> Optional[Dropped]:
        if least is not None and number < least:
            return Dropped(f"few {unit}", str(number))
        if most is not None and number > most:
            return Dropped(f"many {unit}", str(number))
        return None
