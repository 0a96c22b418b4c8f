"""Which rank of a layout holds which box of every tensor of the whole model. No ranks, no Megatron: arithmetic.

Ranks are numbered as Megatron does: tensor-parallel ranks are neighbours, then context, then data, then pipeline. Each
box has one file, that of the first rank among its copies; optimizer state goes to the copies by turns when the
distributed optimizer divides it among them.

Names are those of the whole model: `decoder.layers.*` tensors have a leading layer axis, experts a second one.
"""

from __future__ import annotations

import enum
import itertools
import re
import zlib
from dataclasses import dataclass
from typing import Iterator, Optional, Tuple

from checkpoints_tools.formats.tensors import Box, Shape
from megatron_ext.config.schema import Activation, Model, Parallel, world_size


class Cut(enum.Enum):
    """How tensor parallelism divides one layer's (or expert's) matrix [out, in] or vector [out]."""

    whole = "every rank holds all of it"
    rows = "ranks hold equal runs of rows"
    gated_rows = "as rows, of the gate half and of the up half each"
    columns = "ranks hold equal runs of columns"


@dataclass(frozen=True)
class Place:
    cut: Cut
    stage: str  # "first", "last", or "layer": that of its layer
    leading: int = 0  # axes before the matrix: layer; layer and expert

    @property
    def is_expert(self) -> bool:
        return self.leading == 2


_LAYER = r"decoder\.layers\."
_PLACES = [
    (r"embedding\.word_embeddings\.weight", Place(Cut.rows, "first")),
    (r"embedding\.position_embeddings\.weight", Place(Cut.whole, "first")),
    (r"decoder\.final_layernorm\.\w+", Place(Cut.whole, "last")),
    (r"output_layer\.\w+", Place(Cut.rows, "last")),
    (_LAYER + r"self_attention\.linear_qkv\.(weight|bias)", Place(Cut.rows, "layer", 1)),
    (_LAYER + r"self_attention\.linear_proj\.weight", Place(Cut.columns, "layer", 1)),
    (_LAYER + r"mlp\.(shared_experts\.)?linear_fc1\.(weight|bias)", Place(Cut.gated_rows, "layer", 1)),
    (_LAYER + r"mlp\.(shared_experts\.)?linear_fc2\.weight", Place(Cut.columns, "layer", 1)),
    (_LAYER + r"mlp\.experts\.experts\.linear_fc1\.(weight|bias)", Place(Cut.gated_rows, "layer", 2)),
    (_LAYER + r"mlp\.experts\.experts\.linear_fc2\.weight", Place(Cut.columns, "layer", 2)),
    # Norms, the router, biases added after a row-parallel product.
    (_LAYER + r"(?!\d|mlp\.experts\.)[\w.]+", Place(Cut.whole, "layer", 1)),
]
_OPTIMIZER = re.compile(r"optimizer\.state\.\w+?\.(?=embedding|decoder|output_layer)")
_OBJECT = re.compile(r"decoder\.layers\..*/shard_(\d+)[_.].*")


def place(name: str) -> Optional[Place]:
    """None for a tensor we know nothing of."""
    weight = _OPTIMIZER.sub("", name)
    return next((found for pattern, found in _PLACES if re.fullmatch(pattern, weight)), None)


def slices(name: str, shape: Shape) -> Iterator[Box]:
    """The tensor as boxes that are divided independently: one a layer, one an expert, else the whole, in order."""
    found = place(name)
    leading = found.leading if found else 0
    rest = shape[leading:]
    for index in itertools.product(*(range(size) for size in shape[:leading])):
        yield (*index, *[0] * len(rest)), (*[1] * leading, *rest)


def holders(name: str, piece: Box, model: Model, parallel: Parallel) -> Iterator[Tuple[int, Box]]:
    """(rank, box) for one of `slices`, in row-major order of the boxes' offsets; the boxes tile it.

    A tensor of no known place is kept whole by rank 0.
    """
    found = place(name)
    if found is None:
        yield 0, piece
        return
    index, (offset, shape) = piece[0][: found.leading], (piece[0][found.leading :], piece[1][found.leading :])
    stage = {"first": 0, "last": parallel.pipeline - 1}.get(found.stage)
    if stage is None:
        stage = stage_of_layer(index[0], model, parallel)
    ways = parallel.expert_tensor if found.is_expert else parallel.tensor
    cut = found.cut
    if cut is Cut.gated_rows and model.activation is not Activation.swiglu:
        cut = Cut.rows
    for share, (start, size) in _cut(cut, offset, shape, ways):
        rank = _rank(name, index, share, stage, found, model, parallel)
        yield rank, ((*index, *start), (*[1] * found.leading, *size))


def object_rank(name: str, model: Model, parallel: Parallel) -> int:
    """The rank whose file holds a sharded object: its layer's stage for a layer's, else the first."""
    found = _OBJECT.fullmatch(name)
    if found is None or int(found[1]) >= model.num_layers:
        return 0
    return stage_of_layer(int(found[1]), model, parallel) * (world_size(parallel) // parallel.pipeline)


def stage_of_layer(layer: int, model: Model, parallel: Parallel) -> int:
    """Chunk c of stage s holds the layers of run c * pipeline + s, all runs being equally long."""
    length = model.num_layers // (parallel.pipeline * parallel.virtual_pipeline)
    return layer // length % parallel.pipeline


def _cut(cut: Cut, offset: Shape, shape: Shape, ways: int) -> Iterator[Tuple[int, Box]]:
    """(tensor-parallel rank, box), row-major for rows."""
    if cut is Cut.whole or (ways == 1 and cut is not Cut.gated_rows):
        yield 0, (offset, shape)
        return
    axis, halves = (1, 1) if cut is Cut.columns else (0, 2 if cut is Cut.gated_rows else 1)
    size, rest = divmod(shape[axis], ways * halves)
    assert rest == 0, f"{shape} does not divide by {ways}"  # validate.py refuses such layouts
    for number in range(ways * halves):
        start = list(offset)
        start[axis] += number * size
        yield number % ways, (tuple(start), (*shape[:axis], size, *shape[axis + 1 :]))


def _rank(name: str, index: Shape, share: int, stage: int, found: Place, model: Model, parallel: Parallel) -> int:
    per_stage = world_size(parallel) // parallel.pipeline
    if found.is_expert:
        near = parallel.expert_tensor * parallel.expert
        inner = index[1] // (model.moe.num_experts // parallel.expert) * parallel.expert_tensor + share
    else:
        near, inner = parallel.tensor, share
    copy = 0
    if name.startswith("optimizer.") and parallel.distributed_optimizer:
        copy = zlib.crc32(f"{name}{index}".encode()) % (per_stage // near)
    return stage * per_stage + copy * near + inner
