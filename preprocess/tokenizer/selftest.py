"""What a tokenizer does to text, found by trying: reported with every shard, so that nobody learns it from a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Optional, Sequence

import numpy as np

from preprocess.tokenizer import Tokenizer, odd

_SHOWN = 5  # texts, and characters on each side of the place where one is lost
_AROUND = 20


@dataclass(frozen=True)
class SelfTest:
    """restored: of `tried` texts, those that decoding gives back; of the first others, `not_restored` shows the place.

    unused_ids: below vocab_size without a meaning, as where added tokens stand far above the vocabulary.
    """

    tried: int
    restored: int
    not_restored: List[str]
    controls_stay_text: bool  # a control token that a text spells is encoded as its characters
    vocab_size: int
    unused_ids: int
    eod: Optional[int]
    bos: Optional[int]
    unknown: Optional[int]


def self_test(tokenizer: Tokenizer, sample: Sequence[str]) -> SelfTest:
    """Never fails: whether a loss matters is for the one who reads the report."""
    texts = [*sample, *odd.texts([*tokenizer.added, *tokenizer.controls])]
    ids, lengths = tokenizer.encode(texts)
    decoded = [tokenizer.decode(piece.tolist()) for piece in np.split(ids, np.cumsum(lengths)[:-1])]
    lost = [_place(text, other) for text, other in zip(texts, decoded) if text != other]
    ends = [id for id in (tokenizer.eod, tokenizer.bos) if id is not None]
    return SelfTest(
        tried=len(texts),
        restored=len(texts) - len(lost),
        not_restored=lost[:_SHOWN],
        controls_stay_text=not np.isin(ids, ends).any(),
        vocab_size=tokenizer.vocab_size,
        unused_ids=tokenizer.vocab_size - tokenizer.entries,
        eod=tokenizer.eod,
        bos=tokenizer.bos,
        unknown=tokenizer.unknown,
    )


def _place(text: str, decoded: str) -> str:
    """Where they begin to differ."""
    shorter = min(len(text), len(decoded))
    first = next((i for i in range(shorter) if text[i] != decoded[i]), shorter)
    around = slice(max(0, first - _AROUND), first + _AROUND)
    return f"{text[around]!r} becomes {decoded[around]!r}"
