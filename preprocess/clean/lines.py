"""A text -> its lines and paragraphs. Blank ones are none: space between paragraphs is no repetition (datatrove
#273)."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Sequence, Tuple

# Marks that end a sentence (Unicode's property Sentence_Terminal, scripts in use today), and quotes that may close one.
SENTENCE_ENDS = frozenset(".!?\u2047\u2048\u2049\u203c\u203d։؝؞؟۔܀܁܂।॥၊။።፧፨។៕᙮᠃᠉\u2e2e。！？．｡﹒﹖﹗")
CLOSING_QUOTES = frozenset('"”»」』')
_BLANK = re.compile(r"\n[^\S\n]*\n")


@lru_cache(maxsize=8)
def lines(text: str) -> Tuple[str, ...]:
    """Without the white space around them."""
    return tuple([stripped for line in text.split("\n") if (stripped := line.strip())])


def paragraphs(text: str) -> Tuple[str, ...]:
    """What blank lines separate."""
    return tuple([stripped for part in _BLANK.split(text) if (stripped := part.strip())])


def repeated(pieces: Sequence[str]) -> Tuple[float, float]:
    """Shares of pieces, and of characters, that are in pieces that were there before; 0 and 0 when there are none."""
    different = set(pieces)
    if len(different) == len(pieces):
        return 0.0, 0.0
    characters = sum(map(len, pieces))
    return 1 - len(different) / len(pieces), 1 - sum(map(len, different)) / characters
