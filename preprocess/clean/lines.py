"""A text -> its lines and paragraphs. Blank ones are none: space between paragraphs is no repetition.

Elsewhere blank lines counted as repeated ones (datatrove #273).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Tuple

# Marks that end a sentence (Unicode's property Sentence_Terminal, scripts in use today).
SENTENCE_ENDS = tuple(".!?\u2047\u2048\u2049\u203c\u203d։؝؞؟۔܀܁܂।॥၊။።፧፨។៕᙮᠃᠉\u2e2e。！？．｡﹒﹖﹗")
QUOTES = tuple("\"'”’»」』")  # that may follow one
_BLANK = re.compile(r"\n[^\S\n]*\n")


@lru_cache(maxsize=8)
def lines(text: str) -> Tuple[str, ...]:
    """Without the white space around them."""
    return tuple([stripped for line in text.split("\n") if (stripped := line.strip())])


def paragraphs(text: str) -> Tuple[str, ...]:
    """What blank lines separate."""
    return tuple([stripped for part in _BLANK.split(text) if (stripped := part.strip())])
