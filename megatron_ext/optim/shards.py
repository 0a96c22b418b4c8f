"""Which elements of the local parameters this rank updates.

With the distributed optimizer (ZeRO stage 1, Rajbhandari et al. 2020) each data-parallel rank owns an equal part of
every gradient bucket of megatron-core's DDP; without it, every rank owns all it holds. In both cases the owned elements
of one parameter are one run of its flattened values.

A run of a row-major tensor is a few boxes of it, so each rank saves and loads just what it owns, in the tensors of the
whole model: nothing is gathered, no padding is stored, and any layout reads what any other wrote.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Tuple

import torch

from megatron_ext.model.places import Piece


@dataclass(frozen=True)
class Shard:
    """Elements [start, start + numel) of a flattened local parameter."""

    parameter: torch.nn.Parameter
    start: int
    model: torch.Tensor  # view of the parameter's elements, in the model's dtype
    grad: torch.Tensor  # view of their reduced gradient, fp32
    pieces: List[Piece]
    is_counted: bool  # whether this rank adds these elements to the global gradient norm

    @property
    def numel(self) -> int:
        return self.model.numel()


def find_shards(chunks: List[Any], places: Dict[torch.nn.Parameter, List[Piece]]) -> List[Shard]:
    """All shards of this rank, in the same order on every start."""
    shards: List[Shard] = []
    for chunk in chunks:
        for buffer in chunk.buffers + chunk.expert_parallel_buffers:
            for bucket in buffer.buckets:
                low, high = _owned(buffer, bucket)
                for parameter in bucket.params_list:
                    first, last, _ = buffer.param_index_map[parameter]
                    start, end = max(first, low), min(last, high)
                    if start < end:
                        shards.append(_shard(buffer, parameter, start, end, first, places[parameter]))
    return shards


def _owned(buffer: Any, bucket: Any) -> Tuple[int, int]:
    """Range of the buffer that this data-parallel rank owns of a bucket."""
    length = bucket.grad_data.numel()
    if not buffer.ddp_config.use_distributed_optimizer:
        return bucket.offset, bucket.offset + length
    share = length // buffer.data_parallel_world_size
    low = bucket.offset + buffer.data_parallel_group.rank() * share
    return low, low + share


def _shard(buffer: Any, parameter: torch.nn.Parameter, start: int, end: int, first: int, pieces: List[Piece]) -> Shard:
    distributed = buffer.ddp_config.use_distributed_optimizer
    model = buffer.param_data[start:end] if distributed else parameter.data.view(-1)
    # Owned parts are disjoint among data-parallel ranks; without the distributed optimizer the first copy counts.
    counted = pieces[0].is_counted and (distributed or pieces[0].replica[-1] == 0)
    return Shard(parameter, start - first, model, buffer.grad_data[start:end], pieces, counted)


def boxes(shape: Tuple[int, ...], start: int, end: int) -> Iterator[Tuple[Tuple[int, ...], Tuple[int, ...]]]:
    """Elements [start, end) of a row-major tensor as boxes (offset, shape), in order: at most 2 n - 1 for n dimensions.

    >>> list(boxes((4, 10), 7, 25))
    [((0, 7), (1, 3)), ((1, 0), (1, 10)), ((2, 0), (1, 5))]
    """
    if start >= end:
        return
    if len(shape) == 1:
        yield (start,), (end - start,)
        return
    row = int(torch.Size(shape[1:]).numel())
    first, last = -(-start // row), end // row  # whole rows
    if first > last:  # inside one row
        yield from _in_row(shape, last, start - last * row, end - last * row)
        return
    if start < first * row:
        yield from _in_row(shape, first - 1, start - (first - 1) * row, row)
    if first < last:
        yield (first, *[0] * (len(shape) - 1)), (last - first, *shape[1:])
    if last * row < end:
        yield from _in_row(shape, last, 0, end - last * row)


def _in_row(
    shape: Tuple[int, ...], index: int, start: int, end: int
) -> Iterator[Tuple[Tuple[int, ...], Tuple[int, ...]]]:
    for offset, size in boxes(shape[1:], start, end):
        yield (index, *offset), (1, *size)


def sharded_tensors(shard: Shard, values: torch.Tensor, prefix: str) -> List[Any]:
    """`values`, one an element of the shard, as ShardedTensors `prefix.<weight's name>`: views, loaded in place."""
    from megatron.core.dist_checkpointing.mapping import ShardedTensor

    found = []
    for piece in shard.pieces:
        low = max(shard.start - piece.start, 0)
        high = min(shard.start + shard.numel - piece.start, piece.numel)
        position = piece.start + low - shard.start  # of the first such element in `values`
        for offset, size in boxes(piece.shape, low, high):
            size = (1,) * piece.leading + size  # one layer, one expert
            data = values[position : position + torch.Size(size).numel()].view(size)
            position += data.numel()
            whole = (*piece.offset[: piece.leading], *(a + b for a, b in zip(piece.offset[piece.leading :], offset)))
            found.append(
                ShardedTensor(
                    f"{prefix}.{piece.key}",
                    data,
                    data.dtype,
                    size,
                    piece.global_shape,
                    whole,
                    None,  # no regular grid: owners' boundaries fall anywhere
                    replica_id=(0,) if shard.is_counted else (1,),
                )
            )
    return found
