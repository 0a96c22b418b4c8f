"""Where each local parameter lies in the whole model.

Megatron's `sharded_state_dict` already knows it, for saving: the name in the whole model, the offset there, which copy
this is. Initialisation, the gradient norm and the optimizer's checkpoint need the same facts; they all take them from
here, so that there is one truth about what a rank holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Tuple

import torch

from megatron_ext.runtime.parallel import Grid


@dataclass(frozen=True)
class Piece:
    """A contiguous run of elements of a local parameter that is one box of a tensor of the whole model.

    Most parameters are one piece; a gated MLP's first layer is two (gate rows, then up rows).
    """

    key: str
    start: int  # in elements, within the flattened local parameter
    shape: Tuple[int, ...]  # of the local box, without the leading layer and expert axes
    global_shape: Tuple[int, ...]  # of the whole tensor, with the leading axes
    offset: Tuple[int, ...]  # of the box in the whole tensor
    leading: int  # number of leading axes (layer; layer and expert)
    replica: Tuple[int, ...]  # last: rank among data-parallel copies; all else 0 on the copy that counts

    @property
    def numel(self) -> int:
        return int(torch.Size(self.shape).numel())

    @property
    def is_counted(self) -> bool:
        """False on tensor-parallel duplicates and on the second copy of a tied embedding."""
        return not any(self.replica[:-1])


def sharded_state(chunks: List[Any], grid: Grid) -> Dict[str, Any]:
    """Megatron's sharded state dict of the local model chunks."""
    metadata = {"singleton_local_shards": False, "dp_cp_group": grid.groups.dp_cp}
    states = [unwrap(chunk).sharded_state_dict(metadata=metadata) for chunk in chunks]
    return {"model": states[0]} if len(states) == 1 else {f"model{i}": state for i, state in enumerate(states)}


def find_places(chunks: List[Any], grid: Grid) -> Dict[torch.nn.Parameter, List[Piece]]:
    """Every trainable local parameter -> its pieces, in order of their start."""
    from megatron.core.dist_checkpointing.dict_utils import nested_values
    from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory

    wanted = {id(parameter): parameter for chunk in chunks for parameter in chunk.parameters()}
    places: Dict[torch.nn.Parameter, List[Piece]] = {}
    for entry in nested_values(sharded_state(chunks, grid)):
        if not isinstance(entry, (ShardedTensor, ShardedTensorFactory)) or id(entry.data) not in wanted:
            continue
        parameter = wanted[id(entry.data)]
        tensors = entry.build() if isinstance(entry, ShardedTensorFactory) else [entry]
        places[parameter] = sorted((_piece(parameter, tensor) for tensor in tensors), key=lambda piece: piece.start)
    missing = [p for p in wanted.values() if p not in places]
    assert not missing, f"{len(missing)} parameters are not in the sharded state dict"
    return places


def unwrap(chunk: Any) -> Any:
    """The GPTModel inside DistributedDataParallel and Float16Module."""
    while hasattr(chunk, "module"):
        chunk = chunk.module
    return chunk


def _piece(parameter: torch.nn.Parameter, tensor: Any) -> Piece:
    assert tensor.data.is_contiguous(), f"{tensor.key} is not a contiguous part of its parameter"
    return Piece(
        key=tensor.key,
        start=tensor.data.storage_offset() - parameter.storage_offset(),
        shape=tuple(tensor.local_shape),
        global_shape=tuple(tensor.global_shape),
        offset=tuple(tensor.global_offset),
        leading=tensor.prepend_axis_num,
        replica=tuple(tensor.replica_id) if isinstance(tensor.replica_id, tuple) else (tensor.replica_id,),
    )
