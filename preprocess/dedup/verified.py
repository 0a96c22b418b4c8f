"""Candidate pairs -> those whose texts really are alike, by the exact Jaccard similarity of their shingles.

Texts are read from the documents of the round, a batch at a time; those of the last few batches are kept.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Callable, Dict, List, Tuple

import numpy as np
import pyarrow as pa

from preprocess.dedup.files import Round
from preprocess.dedup.minhash import jaccard

_BATCHES = 32  # of about a megabyte


def verified(pairs: np.ndarray, round: Round, ngram: int, similarity: float) -> np.ndarray:
    """The pairs uint64 [n, 2] of numbers whose similarity is at least that."""
    text = _texts(round)
    alike = [jaccard(text(int(one)), text(int(other)), ngram) >= similarity for one, other in pairs]
    return pairs[np.asarray(alike, bool)]


def _texts(round: Round) -> Callable[[int], str]:
    places: Dict[int, Tuple[Any, np.ndarray]] = {}

    def opened(part: int) -> Tuple[Any, np.ndarray]:
        if part not in places:
            file = pa.ipc.open_file(pa.memory_map(str(round.documents(part))))
            sizes = [file.get_batch(batch).num_rows for batch in range(file.num_record_batches)]
            places[part] = file, np.cumsum([0, *sizes])
        return places[part]

    @lru_cache(maxsize=_BATCHES)
    def column(part: int, batch: int) -> List[str]:
        texts: List[str] = opened(part)[0].get_batch(batch).column("text").to_pylist()
        return texts

    def text(number: int) -> str:
        part, ordinal = (number >> 32) & 0x3FFFFFFF, number & 0xFFFFFFFF
        starts = opened(part)[1]
        batch = int(np.searchsorted(starts, ordinal, "right")) - 1
        return column(part, batch)[ordinal - int(starts[batch])]

    return text
