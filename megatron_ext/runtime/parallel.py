"""Process groups and seeds: who this rank is, and with whom it talks.

Order of ranks is Megatron's (tp-cp-ep-dp-pp: tensor-parallel ranks are neighbours, pipeline stages farthest apart).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from megatron_ext.config.schema import Run, world_size
from megatron_ext.runtime import device


@dataclass(frozen=True)
class Grid:
    """This rank's place. `groups` is Megatron's ProcessGroupCollection: tp, pp, cp, dp, dp_cp, ep, expt_dp ..."""

    rank: int
    world: int
    device: torch.device
    groups: Any
    virtual_stages: int

    @property
    def data_rank(self) -> int:
        return self.groups.dp.rank()

    @property
    def data_size(self) -> int:
        return self.groups.dp.size()

    @property
    def is_first_stage(self) -> bool:
        return self.groups.pp.rank() == 0

    @property
    def is_last_stage(self) -> bool:
        return self.groups.pp.rank() == self.groups.pp.size() - 1


def start(run: Run) -> Grid:
    """Join the world that RANK, WORLD_SIZE, LOCAL_RANK and MASTER_ADDR/PORT describe, and divide it.

    Communication: rendezvous, then one group creation per parallel dimension. Raises ValueError when the number of
    ranks is not the layout's.
    """
    device.install()
    # One hardware queue, so that communication enqueued before a GEMM also starts before it: the overlap of tensor and
    # context parallelism on GPUs up to Hopper relies on it. To be set before CUDA starts.
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world != world_size(run.parallel):
        raise ValueError(
            f"{world} ranks were started, but the layout (data x tensor x pipeline x context) needs "
            f"{world_size(run.parallel)}; start as many ranks, or change parallel.data"
        )
    if "RANK" not in os.environ:  # a single process needs no launcher
        os.environ.update(
            RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ.get("MASTER_PORT", "0")
        )
    torch.set_num_threads(run.cluster.threads_per_rank)
    where = device.device(int(os.environ.get("LOCAL_RANK", "0")))
    timeout = timedelta(minutes=run.parallel.timeout_minutes)
    if not dist.is_initialized():
        dist.init_process_group(device.backend(), rank=rank, world_size=world, timeout=timeout)
    divide(run)
    from megatron.core.process_groups_config import ProcessGroupCollection

    groups = ProcessGroupCollection.use_mpu_process_groups()
    return Grid(rank, world, where, groups, run.parallel.virtual_pipeline)


def divide(run: Run) -> None:
    """(Re)create Megatron's process groups for this layout and seed every generator."""
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    parallel = run.parallel
    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=parallel.tensor,
        pipeline_model_parallel_size=parallel.pipeline,
        virtual_pipeline_model_parallel_size=parallel.virtual_pipeline if parallel.virtual_pipeline > 1 else None,
        context_parallel_size=parallel.context,
        expert_model_parallel_size=parallel.expert,
        expert_tensor_parallel_size=parallel.expert_tensor,
        distributed_timeout_minutes=int(max(parallel.timeout_minutes, 1)),
    )
    torch.manual_seed(run.seed)
    # Stages and data-parallel ranks draw different dropout masks, tensor-parallel ones the same outside split regions.
    # Strides far above the small offsets that Megatron adds for tensor and expert ranks.
    data, stage = parallel_state.get_data_parallel_rank(True), parallel_state.get_pipeline_model_parallel_rank()
    model_parallel_cuda_manual_seed(run.seed + 100_003 * data + 10_000_000_019 * stage)


def stop() -> None:
    """Leave the world in order: without the barrier a fast rank may close sockets that a slow one still reads."""
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def any_rank(flag: bool, where: torch.device) -> bool:
    """True everywhere if it is true anywhere. One all-reduce of one number over the world."""
    votes = torch.tensor([1.0 if flag else 0.0], device=where)
    dist.all_reduce(votes, op=dist.ReduceOp.MAX)
    return bool(votes.item() > 0)
