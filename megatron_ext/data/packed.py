"""Packs of conversations, as llm-preprocess makes them of chat data -> samples of one sequence length.

Beside the shard's .bin and .idx, whose documents are conversations: `.mask`, uint8 a token, 1 where the token is to be
predicted from those before it in its conversation; `.packs`, int64, the first document of each pack, and the number of
documents. Attention must not cross from one conversation to another: `boundaries` is what variable-length kernels
call cu_seqlens.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from megatron_ext.data.shard import Shard

_AGAIN = "make the shard again with llm-preprocess"


@dataclass(frozen=True)
class PackedSample:
    """[sequence] each, but boundaries int32 [conversations + 1], or one more for the padding: from 0 to the length.

    labels are the next tokens, loss_mask (float32) is 1 where they are learned; positions start anew in each
    conversation. Padding is token 0, a sequence of its own at the end, without loss.
    """

    tokens: torch.Tensor
    labels: torch.Tensor
    loss_mask: torch.Tensor
    positions: torch.Tensor
    boundaries: torch.Tensor


class Packs:
    """Memory-mapped; sample number i is packs[i]."""

    def __init__(self, prefix: str, length: int) -> None:
        """length: tokens of a sample. Raises ValueError for files that do not belong together, and for longer packs."""
        self._shard, self.length = Shard(prefix), length
        self._mask, self._bounds = _map(f"{prefix}.mask", np.uint8), _map(f"{prefix}.packs", np.int64)
        if len(self._mask) != len(self._shard.tokens):
            raise ValueError(f"{prefix}.mask is of {len(self._mask)} tokens, not {len(self._shard.tokens)}; {_AGAIN}")
        ends = (int(self._bounds[0]), int(self._bounds[-1]))
        if ends != (0, len(self._shard)) or (np.diff(self._bounds) < 1).any():
            raise ValueError(f"{prefix}.packs does not divide the shard's {len(self._shard)} documents; {_AGAIN}")
        longest = int(np.diff(self._shard.starts(self._bounds)).max())
        if longest > length:
            raise ValueError(
                f"{prefix} has a pack of {longest} tokens, a sequence has {length}; make it with "
                f"data.source.label.pack_length={length}, or raise model.seq_length"
            )

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def __getitem__(self, number: int) -> PackedSample:
        if not 0 <= number < len(self):
            raise IndexError(f"pack {number} of {len(self)}")
        lengths = np.asarray(self._shard.lengths[self._bounds[number] : self._bounds[number + 1]])
        begin = int(self._shard.starts(self._bounds[number]))
        size = int(lengths.sum())
        tokens, learned = np.zeros(self.length + 1, np.int64), np.zeros(self.length + 1, np.float32)
        tokens[:size] = self._shard.tokens[begin : begin + size]
        learned[:size] = self._mask[begin : begin + size]
        if size < self.length:
            lengths = np.append(lengths, self.length - size)
        boundaries = np.concatenate([[0], np.cumsum(lengths)])
        learned[boundaries[:-1]] = 0  # a first token is not predicted from another conversation's last
        positions = np.arange(self.length) - np.repeat(boundaries[:-1], lengths)
        arrays = (tokens[:-1], tokens[1:], learned[1:], positions, boundaries.astype(np.int32))
        return PackedSample(*(torch.from_numpy(array.copy()) for array in arrays))


def _map(path: str, dtype: type) -> np.ndarray:
    size = Path(path).stat().st_size if Path(path).is_file() else 0
    if not size or size % np.dtype(dtype).itemsize:
        raise ValueError(f"{path} is missing or cut short ({size} bytes); {_AGAIN} and data.source.label.template")
    return np.memmap(path, dtype, "r")
