"""Beginning and end around each document's ids."""

from __future__ import annotations

from typing import Optional, Tuple

import numpy as np


def frame(
    ids: np.ndarray, lengths: np.ndarray, bos: Optional[int], eod: Optional[int]
) -> Tuple[np.ndarray, np.ndarray]:
    """ids [sum of lengths], lengths [documents] -> the same with `bos` before and `eod` after each, where not None."""
    more = (bos is not None) + (eod is not None)
    if not more:
        return ids, lengths
    framed = np.empty(len(ids) + more * len(lengths), ids.dtype)
    new = lengths + more
    ends = np.cumsum(new)
    is_text = np.ones(len(framed), bool)
    if bos is not None:
        framed[ends - new] = bos
        is_text[ends - new] = False
    if eod is not None:
        framed[ends - 1] = eod
        is_text[ends - 1] = False
    framed[is_text] = ids
    return framed, new
