"""Small real runs for tests: a shard, a frozen run, the trainer on forked gloo ranks."""

from __future__ import annotations

import io
import json
import os
import signal
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from benchmarks.equivalence import write_shard
from megatron_ext.config import load
from megatron_ext.config.schema import Run, world_size
from megatron_ext.runtime.fork import run_ranks

TINY = [
    "model.num_layers=4",
    "model.hidden_size=32",
    "model.ffn_size=52",
    "model.num_heads=4",
    "model.num_kv_heads=2",
    "model.vocab_size=120",
    "model.vocab_multiple=16",
    "model.seq_length=32",
    "train.precision=fp32",
    "train.steps=8",
    "train.global_batch_size=8",
    "optim.lr=1e-3",
    "optim.min_lr=1e-4",
    "optim.eps=1e-5",
    "data.tokenizer.path=''",
]


def make_run(folder: Path, *overrides: str, name: str = "run") -> Tuple[Run, Path]:
    """A frozen run in folder/name over a shard in folder; -> it and its run folder."""
    if not (folder / "shard.json").exists():
        write_shard(folder / "shard", 120, documents=80)
    run = load.compose([*TINY, f"data.blend=[{folder}/shard]", f"name={name}", f"root={folder}", *overrides])
    run_folder = folder / name
    run_folder.mkdir(exist_ok=True)
    load.freeze(run, run_folder / "run.yaml")
    return run, run_folder


def train(run: Run, run_folder: Path, stop_after: Optional[int] = None, timeout: float = 120) -> List[Tuple[int, str]]:
    """The trainer on all ranks; -> (exit code, output) of each. stop_after: rank 0 gets SIGTERM after that step."""
    return run_ranks(world_size(run.parallel), _one_rank, run_folder, stop_after, timeout=timeout)


def _one_rank(run_folder: Path, stop_after: Optional[int]) -> Tuple[int, str]:
    from megatron_ext import train as trainer

    if stop_after is not None and os.environ["RANK"] == "0":
        _signal_after(stop_after)
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(out):
        return trainer.main([str(run_folder)]), out.getvalue()


def _signal_after(step: int) -> None:
    """A real SIGTERM to this rank as soon as it has made `step` updates."""
    from megatron_ext.step import Stepper

    original = Stepper.train

    def counted(self: Any, number: int, loader: Any) -> Any:
        outcome = original(self, number, loader)
        if number + 1 == step:
            os.kill(os.getpid(), signal.SIGTERM)
        return outcome

    Stepper.train = counted  # type: ignore[method-assign]


def curve(run_folder: Path) -> List[Tuple[int, float, float]]:
    """(step, loss, gradient norm) of every update in metrics.jsonl."""
    lines = map(json.loads, (run_folder / "metrics.jsonl").read_text().splitlines())
    return [(line["step"], line["loss"], line["grad_norm"]) for line in lines if "loss" in line]


def tensors(checkpoint: Path) -> Dict[str, Any]:
    """Every tensor of a checkpoint, whole, read by torch alone."""
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    reader = dcp.FileSystemReader(checkpoint)
    kinds = reader.read_metadata().state_dict_metadata
    state = {
        key: torch.zeros(kind.size, dtype=kind.properties.dtype)
        for key, kind in kinds.items()
        if isinstance(kind, TensorStorageMetadata)
    }
    dcp.load(state, storage_reader=reader, no_dist=True)
    return state
