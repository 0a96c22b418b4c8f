"""A text -> its words, in any language; every rule that counts words asks here.

Words stand between white space, without the punctuation around them. Chinese, Japanese, Thai, Lao, Khmer and Burmese
have no spaces between words: there ICU's word breaks are taken (Unicode Annex 29 with ICU's dictionaries), since one
small library knows all six, without a model. Tibetan and the scripts of Java and Bali are taken as if they had spaces.
"""

from __future__ import annotations

import re
import string
import unicodedata
from functools import lru_cache
from typing import List, Tuple

_UNSPACED = re.compile(
    "[\u0e01-\u0eff\u1000-\u109f\ua9e0-\ua9fe\uaa60-\uaa7f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
    "\u3005-\u3007\u3041-\u30ff\u31f0-\u31ff\uff66-\uff9f"  # kana and marks of repetition
    "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af]+"  # Han
)


@lru_cache(maxsize=8)  # several rules in a row look at the same text
def tokens(text: str) -> Tuple[str, ...]:
    """Words, and symbols that stand alone, in order. Case is kept."""
    if text.isascii():
        return tuple([piece.strip(string.punctuation) or piece for piece in text.split()])
    return tuple([_bare(piece) for piece in _pieces(text)])


@lru_cache(maxsize=8)
def words(text: str) -> Tuple[str, ...]:
    """Those of `tokens` that are not of punctuation and symbols only."""
    return tuple([token for token in tokens(text) if token[0].isalnum() or not _is_symbol(token[0])])


def count(text: str) -> int:
    """How many words and lone symbols; nothing is remembered, so it suits single lines."""
    return len(text.split() if text.isascii() else _pieces(text))


def is_unspaced(word: str) -> bool:
    """Whether it is of a script that puts no spaces between words: limits of word length do not hold there."""
    return _UNSPACED.match(word) is not None


def _pieces(text: str) -> List[str]:
    if not _UNSPACED.search(text):
        return text.split()
    from icu4py.breakers import WordBreaker

    pieces: List[str] = []
    end = 0
    for run in _UNSPACED.finditer(text):
        pieces += text[end : run.start()].split()
        pieces += WordBreaker(run.group(), "und")
        end = run.end()
    return pieces + text[end:].split()


def _bare(piece: str) -> str:
    """Without the symbols around it, unless there is nothing else."""
    if piece[0].isalnum() and piece[-1].isalnum():
        return piece
    start, end = 0, len(piece)
    while start < end and _is_symbol(piece[start]):
        start += 1
    while end > start and _is_symbol(piece[end - 1]):
        end -= 1
    return piece[start:end] or piece


@lru_cache(maxsize=4096)
def _is_symbol(character: str) -> bool:
    return unicodedata.category(character)[0] in "PSC"
