"""Who sees whom, under context parallelism as well. Masks are true where a query may see a key.

Shapes: S queries on this rank, K keys of all ranks in the order of an all-gather over the context group, B batch, W the
whole sequence.
"""

from __future__ import annotations

import functools
from typing import Any, Tuple

import torch


def zigzag_positions(length: int, rank: int, ranks: int) -> torch.Tensor:
    """Global positions of the `length` tokens that a context rank holds: chunks rank and 2 ranks - 1 - rank."""
    if ranks == 1:
        return torch.arange(length)
    half = length // 2
    chunks = (rank, 2 * ranks - 1 - rank)
    return torch.cat([torch.arange(chunk * half, (chunk + 1) * half) for chunk in chunks])


def zigzag_causal_mask(length: int, rank: int, ranks: int, device: torch.device) -> torch.Tensor:
    """[S, K] of a rank that holds `length` tokens."""
    return _places(length, rank, ranks, device)[2]


def causal_mask(owners_BW: torch.Tensor, context: Any) -> torch.Tensor:
    """-> [B, 1, S, K]: causal, and each sees only what has the same owner. context: the group, whose ranks all hold
    the owners of the whole sequence."""
    ranks = context.size()
    queries, keys, causal_SK = _places(owners_BW.shape[1] // ranks, context.rank(), ranks, owners_BW.device)
    return ((owners_BW[:, queries, None] == owners_BW[:, None, keys]) & causal_SK)[:, None]


@functools.lru_cache(maxsize=4)  # the same in every layer and microbatch
def _places(
    length: int, rank: int, ranks: int, device: torch.device
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Global positions of the queries and of the keys, and the causal mask between them."""
    queries = zigzag_positions(length, rank, ranks)
    keys = torch.cat([zigzag_positions(length, other, ranks) for other in range(ranks)])
    return queries.to(device), keys.to(device), (queries[:, None] >= keys[None]).to(device)
