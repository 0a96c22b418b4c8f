"""How a tensor of ours and the tensors of a Hugging Face model that hold the same numbers become each other.

H hidden size, R rows of the fused query-key-value matrix, F feed-forward size, V rows of the vocabulary, G groups of
key-value heads, P query heads a group, D head dimension.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, List, Mapping, Tuple

import torch

from checkpoints_tools.formats.tensors import Shape
from megatron_ext.config.schema import Model, head_dim, num_kv_heads, padded_vocab_size

LAYER = "{layer}"  # stands in Hugging Face's names for the layer's number; ours have a leading axis instead


@dataclass(frozen=True)
class Rule:
    """One tensor of ours, without its layer axis, and theirs; `join` and `split` are each other's inverse."""

    ours: str
    shape: Shape
    theirs: Mapping[str, Shape]
    join: Callable[[List[torch.Tensor]], torch.Tensor]
    split: Callable[[torch.Tensor], List[torch.Tensor]]
    padding: int = 0  # last rows of ours that are not in theirs

    @property
    def is_layered(self) -> bool:
        return any(LAYER in name for name in self.theirs)


def same(ours: str, theirs: str, *shape: int) -> Rule:
    return Rule(ours, shape, {theirs: shape}, lambda tensors: tensors[0], lambda tensor: [tensor])


def vocabulary(ours: str, theirs: str, model: Model) -> Rule:
    """Ours has padding rows, zero, up to a multiple that parallel layouts can divide."""
    rows, padded = model.vocab_size, padded_vocab_size(model)

    def join(tensors: List[torch.Tensor]) -> torch.Tensor:
        out_VH = tensors[0].new_zeros(padded, model.hidden_size)
        out_VH[:rows] = tensors[0]
        return out_VH

    shapes = (padded, model.hidden_size), (rows, model.hidden_size)
    return Rule(ours, shapes[0], {theirs: shapes[1]}, join, lambda tensor: [tensor[:rows]], padded - rows)


def gate_and_up(ours: str, gate: str, up: str, ffn: int, hidden: int) -> Rule:
    """[2 F, H]: the gate's rows, then the up projection's."""
    theirs = {gate: (ffn, hidden), up: (ffn, hidden)}
    return Rule(ours, (2 * ffn, hidden), theirs, torch.cat, lambda tensor: list(tensor.split(ffn)))


def query_key_value(ours: str, theirs: Tuple[str, str, str], model: Model) -> Rule:
    """[R, H]: for each group of key-value heads its P query heads, then its key head, then its value head.

    So that a rank of any tensor-parallel size takes one run of rows and has whole groups.
    """
    groups, hidden, dim = num_kv_heads(model), model.hidden_size, head_dim(model)
    per_group = [model.num_heads // groups * dim, dim, dim]  # rows of q, k and v

    def join(tensors: List[torch.Tensor]) -> torch.Tensor:
        grouped = [tensor.view(groups, rows, hidden) for tensor, rows in zip(tensors, per_group)]
        return torch.cat(grouped, dim=1).view(-1, hidden)

    def split(tensor: torch.Tensor) -> List[torch.Tensor]:
        parts = tensor.view(groups, sum(per_group), hidden).split(per_group, dim=1)
        return [part.reshape(-1, hidden) for part in parts]

    shapes = {name: (groups * rows, hidden) for name, rows in zip(theirs, per_group)}
    return Rule(ours, (groups * sum(per_group), hidden), shapes, join, split)
