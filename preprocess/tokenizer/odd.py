"""Odd texts, on which tokenizers lose something or differ: the self-test and the proof of the fast library use them."""

from __future__ import annotations

from typing import List, Sequence

ODD = (
    "", " ", "  two  spaces ", "\n\n\tline\r\n \n", "a\0b\x07c\x7f\x85", "don't we'LL I'm HE'S", "1234567 3.14 1,000",
    "naïve e\u0301 \u0301 a\u0301\u0302\u0303", "\u0301\u0301", "猫が好き。犬も", "สวัสดีครับ", "हिन्दी",
    "\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea \u263a\ufe0f", "\ufeffbom \u200b zero \u00a0 width\u200d",
    "مرحبا ٣٤٥", "שלום", "ﬁ ﷺ ½ Ⅷ İıſ",
    "x" * 300, " " * 70 + "x", "\t" * 30, "\n" * 30, "-" * 100, "def f(x):\n    return x  # ...\n",
    "CamelCase snake_case", "https://a.b/c?d=e&f=%20", "\u2581lower one eighth", "\ud7ff\ue000\ufffe\U0010ffff",
)  # fmt: skip


def texts(spellings: Sequence[str]) -> List[str]:
    """ODD, and each of `spellings` (of control and added tokens) within text, between spaces and alone."""
    return [*ODD, *(text for spelling in spellings for text in (f"x{spelling}y", f" {spelling} a", spelling))]
