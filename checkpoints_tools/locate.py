"""What the user points at -> a checkpoint that can be read."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Union

from checkpoints_tools.formats import huggingface, torch_dist
from checkpoints_tools.formats.tensors import Damaged
from megatron_ext.config import rundir

log = logging.getLogger(__name__)


def open_any(path: Path) -> Union[torch_dist.Reader, huggingface.Reader]:
    """A Hugging Face folder, or whatever `open_torch_dist` takes."""
    if huggingface.is_model_folder(path):
        return huggingface.Reader(path)
    return open_torch_dist(path)


def open_torch_dist(path: Path) -> torch_dist.Reader:
    """A checkpoint folder, a folder of several, or a run folder; of several the newest that is whole.

    Raises ValueError; Damaged when the checkpoint pointed at is not whole.
    """
    if not path.is_dir():
        raise ValueError(f"{path} does not exist or is no folder; give a run folder or a checkpoint folder")
    if torch_dist.is_checkpoint(path):
        return torch_dist.Reader(path)
    found = sorted(path.glob("iter_*"), reverse=True) or sorted(rundir.checkpoints(path).glob("iter_*"), reverse=True)
    for folder in found:
        try:
            return torch_dist.Reader(folder)
        except Damaged as fault:
            log.warning("passed over: %s", fault)
    hint = "none of its checkpoints is whole" if found else "it holds no checkpoint"
    raise ValueError(f"{path}: {hint}; give a run folder or a checkpoint folder")
