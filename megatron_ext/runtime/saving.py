"""Writes a distributed checkpoint with torch's own writer, in this process.

megatron-core's default writer forks workers and a manager for each save: seconds of start-up, and a wait without end if
one dies. torch's writer gives the same format, and an error on any rank is raised on every rank.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as torch_checkpoint
from megatron.core.dist_checkpointing.strategies.base import SaveShardedStrategy
from megatron.core.dist_checkpointing.strategies.torch import (
    MCoreSavePlanner,
    _replace_state_dict_keys_with_sharded_keys,
    mcore_to_pyt_state_dict,
)


class PlainSave(SaveShardedStrategy):
    """Strategy for `dist_checkpointing.save`: format torch_dist, version 1, one file a rank, synced to disk."""

    def __init__(self) -> None:
        super().__init__("torch_dist", 1)

    @property
    def can_handle_sharded_objects(self) -> bool:
        return True

    def save(self, sharded_state_dict: Any, checkpoint_dir: Path) -> None:
        named, _, _ = _replace_state_dict_keys_with_sharded_keys(sharded_state_dict, keep_only_main_replica=True)
        torch_checkpoint.save(
            mcore_to_pyt_state_dict(named, False),
            storage_writer=torch_checkpoint.FileSystemWriter(
                checkpoint_dir, single_file_per_rank=True, sync_files=True
            ),
            planner=MCoreSavePlanner(dedup_replicated_tensors=False, flatten_state_dict=False),
        )
