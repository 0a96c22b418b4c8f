"""Save and resume through megatron-core's distributed checkpoint format.

    checkpoints/iter_0000100/   metadata.json (written last), common.pt, .metadata, *.distcp, run.yaml
    checkpoints/latest_checkpointed_iteration.txt   moved last

A checkpoint is written under a temporary name and renamed when every rank's files are on disk, so a folder with a final
name is whole; it is checked again before it is trusted. Any layout reads what any other wrote.
"""

from __future__ import annotations

import dataclasses
import io
import logging
import os
import pickle
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional

import torch
import torch.distributed.checkpoint

from megatron_ext.config import load as config
from megatron_ext.config import rundir
from megatron_ext.config.sameness import model_changes
from megatron_ext.config.schema import Run
from megatron_ext.model.places import sharded_state, unwrap
from megatron_ext.optim.adamw import AdamW
from megatron_ext.runtime import device
from megatron_ext.runtime.parallel import Grid, any_rank

log = logging.getLogger(__name__)

_LAYOUT = ("data", "tensor", "pipeline", "virtual_pipeline", "context", "expert", "expert_tensor")


class CheckpointError(RuntimeError):
    """A checkpoint could not be written or read; the ones before it are untouched."""


@dataclass(frozen=True)
class Progress:
    """How far a run is: updates made, and samples of the training data that they saw."""

    step: int = 0
    consumed_samples: int = 0
    data: List[Dict[str, Any]] = dataclasses.field(default_factory=list)  # what decides which tokens are seen


def save(run: Run, folder: Path, progress: Progress, chunks: List[Any], optimizer: AdamW, grid: Grid) -> Path:
    """Write the state after `progress.step` updates; -> its folder. Collective: if a rank fails, all raise."""
    step = progress.step
    target, working = folder / f"iter_{step:07d}", folder / f".iter_{step:07d}.tmp"
    if _on_first_rank(grid, lambda: damage(target) is None if target.exists() else False):
        return target  # the very step is on disk already: a signal came right after a planned save
    optimizer.finish_param_sync()
    state = {
        **sharded_state(chunks, grid),
        "optimizer": optimizer.sharded_state_dict(),
        **_common_state(run, progress, optimizer),
    }
    state["rng"] = _rng_state(run, grid)
    _everywhere(grid, lambda: _fresh(working), f"cannot make {working}", only_first=True)
    try:
        _write(state, working, grid, f"checkpoint of step {step} was not written")
    except CheckpointError:
        if grid.rank == 0:
            shutil.rmtree(working, ignore_errors=True)
        raise
    _everywhere(
        grid, lambda: _publish(run, working, target, step), f"cannot move {working} to {target}", only_first=True
    )
    return target


def latest(folder: Path) -> Optional[Path]:
    """The newest complete checkpoint, looked up on disk; damaged ones are named in the log and passed over."""
    for path in sorted(folder.glob("iter_*"), reverse=True):
        if (fault := damage(path)) is None:
            return path
        log.warning("checkpoint %s is passed over: %s", path, fault)
    return None


def damage(path: Path) -> Optional[str]:
    """What is wrong with a checkpoint folder, or None. Reads the index and the files' sizes, not their content."""
    if not (path / "metadata.json").is_file():
        return "metadata.json is missing: it was never finished"
    try:
        with open(path / ".metadata", "rb") as file:
            stored = pickle.load(file).storage_data
        torch.load(path / "common.pt", weights_only=True)
        config.read(path / "run.yaml")
    except Exception as error:  # whatever the damage raises, it is damage
        return f"{type(error).__name__}: {error}"
    needed: Dict[str, int] = {}
    for entry in stored.values():
        needed[entry.relative_path] = max(needed.get(entry.relative_path, 0), entry.offset + entry.length)
    for name, size in needed.items():
        if not (path / name).is_file():
            return f"{name} is missing"
        if (path / name).stat().st_size < size:
            return f"{name} has {(path / name).stat().st_size} of {size} bytes"
    return None


def load(run: Run, path: Path, chunks: List[Any], optimizer: AdamW, grid: Grid) -> Progress:
    """Restore everything in place; -> how far it was. Collective.

    In the layout that wrote it the random generators continue where they were, so the run ends with the bits of one
    that never stopped; in another layout they start from the seed anew, which is logged.
    """
    common = _common(run, path)
    state = {**sharded_state(chunks, grid), "optimizer": optimizer.sharded_state_dict()}
    same_layout = common["layout"] == _layout(run)
    if same_layout:
        state["rng"] = _rng_state(run, grid)
    else:
        log.warning("resuming in another layout: random generators start from the seed (was %s)", common["layout"])
    loaded = _read(state, path)
    _fill(chunks, loaded)
    optimizer.loaded(common["optimizer_step"])
    if same_layout:
        _set_rng_state(loaded["rng"])
    return Progress(common["step"], common["consumed_samples"], common.get("data", []))


def load_weights(run: Run, path: Path, chunks: List[Any], optimizer: AdamW, grid: Grid) -> None:
    """Restore the weights only; with rotary embeddings another sequence length may begin from them. Collective."""
    _common(run, path, start=True)
    _fill(chunks, _read(sharded_state(chunks, grid), path))
    optimizer.reload_masters()


def resolve(name: str) -> Path:
    """A checkpoint folder, the folder of several, or a run folder -> a complete checkpoint. Raises ValueError."""
    path = Path(name)
    if (path / "metadata.json").is_file():
        if fault := damage(path):
            raise ValueError(f"checkpoint {path} is damaged: {fault}")
        return path
    for folder in (path, rundir.checkpoints(path)):
        if found := latest(folder):
            return found
    raise ValueError(f"no complete checkpoint in {path}; give a run folder or a checkpoint folder")


def prune(folder: Path, keep: int, newest: int) -> None:
    """Delete all but the `keep` checkpoints up to step `newest` (0: none is deleted), and what killed saves left.

    Those above `newest` are damaged ones that the run was resumed below; they are set aside, not counted.
    """
    for path in folder.glob(".iter_*.tmp"):
        shutil.rmtree(path, ignore_errors=True)
    paths = sorted(folder.glob("iter_*"))
    above = [path for path in paths if path.name > f"iter_{newest:07d}"]
    for path in above:
        path.rename(path.with_name(f"damaged_{path.name}_{time.time_ns()}"))
    for path in [path for path in paths if path not in above][: -keep if keep else 0]:
        doomed = path.with_name(f".{path.name}.tmp")
        path.rename(doomed)  # a half-deleted folder must not carry a final name
        shutil.rmtree(doomed, ignore_errors=True)


def _common(run: Run, path: Path, start: bool = False) -> Dict[str, Any]:
    """The part of a checkpoint that all ranks share. Raises ValueError when it is of another model."""
    if changed := model_changes(config.read(path / "run.yaml"), run, start):
        raise ValueError(
            f"checkpoint {path} is of another model: {'; '.join(changed)}; use its model, or another run name"
        )
    return torch.load(path / "common.pt", weights_only=True)


def _common_state(run: Run, progress: Progress, optimizer: AdamW) -> Dict[str, Any]:
    return {
        **dataclasses.asdict(progress),
        "iteration": progress.step,  # Megatron's name for it
        "optimizer_step": optimizer.taken,
        "layout": _layout(run),
    }


def _layout(run: Run) -> Dict[str, int]:
    return {name: getattr(run.parallel, name) for name in _LAYOUT}


def _rng_state(run: Run, grid: Grid) -> Any:
    from megatron.core.dist_checkpointing.mapping import ShardedObject
    from megatron.core.tensor_parallel.random import get_cuda_rng_tracker

    states = {
        "device": device.rng_state(),
        "host": torch.get_rng_state(),
        "tracker": get_cuda_rng_tracker().get_states(),
    }
    return ShardedObject("rng_state", states, (grid.world,), (grid.rank,), replica_id=0)


def _set_rng_state(states: Dict[str, Any]) -> None:
    from megatron.core.tensor_parallel.random import get_cuda_rng_tracker

    torch.set_rng_state(states["host"])
    device.set_rng_state(states["device"])
    get_cuda_rng_tracker().set_states(states["tracker"])


def _fill(chunks: List[Any], loaded: Dict[str, Any]) -> None:
    for index, chunk in enumerate(chunks):
        unwrap(chunk).load_state_dict(loaded["model" if len(chunks) == 1 else f"model{index}"])


def _read(state: Dict[str, Any], path: Path) -> Dict[str, Any]:
    from megatron.core import dist_checkpointing

    try:
        return dist_checkpointing.load(state, str(path))
    except (Exception, torch.distributed.checkpoint.CheckpointException) as error:
        raise CheckpointError(f"checkpoint {path} could not be read: {error}") from error


def _write(state: Dict[str, Any], working: Path, grid: Grid, what: str) -> None:
    """What megatron-core's `save` does, in three parts.

    In one, a first rank that fails at its own files would leave the others in a collective that it never enters.
    """
    from megatron.core.dist_checkpointing.core import CheckpointingConfig, save_config
    from megatron.core.dist_checkpointing.state_dict_utils import save_preprocess

    from megatron_ext.runtime.saving import PlainSave

    strategy = PlainSave()
    sharded, common = save_preprocess(state, True, None)
    # By way of memory: torch.save into a file reports a full disk as "iostream error".
    _everywhere(grid, lambda: (working / "common.pt").write_bytes(_serialised(common)), what, only_first=True)
    _everywhere(grid, lambda: strategy.save(sharded, working), what)  # torch raises on all ranks what one raised
    description = CheckpointingConfig(strategy.backend, strategy.version)
    _everywhere(grid, lambda: save_config(description, str(working)), what, only_first=True)


def _serialised(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _fresh(working: Path) -> None:
    shutil.rmtree(working, ignore_errors=True)
    working.mkdir(parents=True)


def _publish(run: Run, working: Path, target: Path, step: int) -> None:
    config.freeze(run, working / "run.yaml")
    _sync_to_disk(working)
    if target.exists():  # damaged, or `save` would have left it alone
        shutil.rmtree(target)
    working.rename(target)
    _sync_to_disk(target.parent)
    rundir.write_atomically(target.parent / rundir.LATEST, f"{step}\n")
    prune(target.parent, run.train.keep_last, step)


def _sync_to_disk(folder: Path) -> None:
    for path in [*folder.iterdir(), folder] if folder.name.startswith(".iter") else [folder]:
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def _on_first_rank(grid: Grid, question: Any) -> bool:
    return any_rank(bool(question()) if grid.rank == 0 else False, grid.device)


def _everywhere(grid: Grid, work: Any, what: str, only_first: bool = False) -> None:
    """Do the work; if it fails on any rank, raise on all, so that none is left waiting in a collective."""
    fault: Optional[BaseException] = None
    try:
        if grid.rank == 0 or not only_first:
            work()
    except (Exception, torch.distributed.checkpoint.CheckpointException) as error:  # the latter is no Exception
        fault = error
    if any_rank(fault is not None, grid.device):
        raise CheckpointError(f"{what}: {fault or 'another rank failed, see its log'}") from fault
