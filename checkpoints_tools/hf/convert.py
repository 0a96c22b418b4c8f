"""Whole conversions between our checkpoints and Hugging Face model folders, into a folder that is empty."""

from __future__ import annotations

from pathlib import Path
from typing import Dict, Optional

import torch

from checkpoints_tools import reshard
from checkpoints_tools.certificate import Certificate, dtype_name
from checkpoints_tools.formats import huggingface, torch_dist
from checkpoints_tools.hf import tokenizer
from checkpoints_tools.hf.views import AsHuggingFace, AsOurs
from megatron_ext.config.schema import Parallel, Precision, Run, Train

_PRECISION = {torch.bfloat16: Precision.bf16, torch.float32: Precision.fp32}
# Modules of a layer for which megatron-core's layers, ours and Transformer Engine's, ask an `_extra_state` object of
# each layer when they load; what they do not ask for they overlook. Transformer Engine's have not been tried on a GPU.
_STATEFUL = ("self_attention.linear_qkv", "self_attention.linear_proj", "mlp.linear_fc1", "mlp.linear_fc2")
_STATEFUL_TE = ("self_attention.core_attention",)


def to_huggingface(
    view: AsHuggingFace, folder: Path, shard_bytes: int, report: Certificate, progress: reshard.Progress
) -> None:
    writer = huggingface.Writer(folder, view.tensors, shard_bytes)
    for name, spec in view.tensors.items():
        data = view.read(name, (0,) * len(spec.shape), spec.shape)
        report.add(name, spec, view.sources(name), data)
        writer.write(name, data)
        progress(data.nbytes)
    if view.left_out:
        report.note(f"left out: {view.left_out:,} bytes of optimizer state, for which this format has no place")
    for name in view.padding:
        report.note(f"{name}: its padding rows, cut off, were not zero")
    tokenizer.export(view.reader.run, folder, view.config, report.notes)
    report.write(folder)
    writer.finish(view.config)


def new_run(view: AsOurs, changes: Dict[str, Optional[int]]) -> Run:
    """The run.yaml of a checkpoint that starts from a Hugging Face model. Raises ValueError."""
    if view.dtype not in _PRECISION:
        raise ValueError(
            f"{view.reader.folder} is in {dtype_name(view.dtype)}, training is in bfloat16 or float32; "
            f"load it with transformers in one of these and save it again"
        )
    parallel = reshard.target_layout(view.model, Parallel(), changes)
    return Run(model=view.model, parallel=parallel, train=Train(precision=_PRECISION[view.dtype]))


def from_huggingface(
    view: AsOurs, run: Run, folder: Path, target: Path, report: Certificate, progress: reshard.Progress
) -> None:
    """Weights only: for train.init_from. `target` is the name that `folder` will get."""
    writer = torch_dist.Writer(folder)
    reshard.write_tensors(view, view.model, run.parallel, writer, report, progress)
    layers, empty = view.model.num_layers, torch_dist.empty_object()
    for module in _STATEFUL + _STATEFUL_TE:
        for layer in range(layers):
            writer.write_object(f"decoder.layers.{module}._extra_state/shard_{layer}_{layers}", empty, 0)
    writer.write_object("decoder.final_layernorm._extra_state/shard_0_1", empty, 0)
    for name in view.left_out:
        report.note(f"left out: {name}, which the rest of the model implies")
    for text in view.reader.duplicates:
        report.note(f"left out: {text}; the index names another file for it")
    run = tokenizer.adopt(view.reader.folder, folder, target, run, report.notes)
    layout = {name: getattr(run.parallel, name) for name in reshard.LAYOUT_FIELDS}
    report.facts["layout"] = layout
    report.write(folder)
    nothing_yet = {"step": 0, "iteration": 0, "consumed_samples": 0, "optimizer_step": 0}
    writer.finish({**nothing_yet, "layout": layout}, run)
