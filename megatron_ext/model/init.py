"""Initial weights: a function of the seed and the weight's name in the whole model, the same in every layout.

Each rank draws the whole tensor of every weight it holds a part of, from a generator seeded by that weight's name and
layer, and keeps its part. That costs a drawing several times over at the start of a run and nothing after it; in return
TP8 x PP4 starts with the very numbers that one rank starts with.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any, List, Tuple

import torch

from megatron_ext.config import megatron
from megatron_ext.config.schema import Activation, Init, Run
from megatron_ext.model.places import Piece, find_places
from megatron_ext.runtime.parallel import Grid

_WRITES_TO_RESIDUAL = ("linear_proj.weight", "linear_fc2.weight")
_OVER_VOCABULARY = ("word_embeddings.weight", "output_layer.weight")


@torch.no_grad()
def initialise(chunks: List[Any], run: Run, grid: Grid) -> None:
    """Fill every local parameter in place. No communication."""
    for parameter, pieces in find_places(chunks, grid).items():
        flat = parameter.data.view(-1)
        for piece in pieces:
            whole = _whole(piece, run, parameter.device)
            part = whole[tuple(slice(start, start + size) for start, size in zip(_inner_offset(piece), piece.shape))]
            flat[piece.start : piece.start + piece.numel].copy_(part.reshape(-1))


def _inner_offset(piece: Piece) -> Tuple[int, ...]:
    return piece.offset[piece.leading :]


def _whole(piece: Piece, run: Run, device: torch.device) -> torch.Tensor:
    """The fp32 tensor of one layer (and expert) of the whole model that the piece belongs to."""
    shape = piece.global_shape[piece.leading :]
    if len(shape) == 1:  # norm weights are one; biases, among them a norm's, zero
        fill = 0.0 if piece.key.endswith("bias") else 1.0
        return torch.full(shape, fill, device=device)
    generator = torch.Generator(device).manual_seed(_seed(run.seed, piece))
    if piece.key.endswith(_OVER_VOCABULARY):  # padding rows are zero: their number must not change what is drawn
        rows = torch.empty(run.model.vocab_size, *shape[1:], device=device)
        return torch.cat([_draw(rows, piece.key, run, generator), rows.new_zeros(shape[0] - len(rows), *shape[1:])])
    return _draw(torch.empty(shape, device=device), piece.key, run, generator)


def _draw(x: torch.Tensor, key: str, run: Run, generator: torch.Generator) -> torch.Tensor:
    """x [fan_out, fan_in], filled."""
    model = run.model
    if model.init == Init.xavier_uniform:
        fan_out, fan_in = x.shape
        if key.endswith("linear_fc1.weight") and model.activation == Activation.swiglu:
            fan_out //= 2  # gate and up are two matrices that lie in one
        bound = math.sqrt(6.0 / (fan_in + fan_out))
        return x.uniform_(-bound, bound, generator=generator)
    scaled = model.init == Init.scaled_normal and key.endswith(_WRITES_TO_RESIDUAL)
    return x.normal_(0.0, megatron.init_std_output(run) if scaled else model.init_std, generator=generator)


def _seed(seed: int, piece: Piece) -> int:
    name = f"{seed}/{piece.key}/{piece.offset[: piece.leading]}"
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little") >> 1
