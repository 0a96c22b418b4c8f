"""Tensors of the whole model -> a torch_dist checkpoint of any layout, one layer's tensor in memory at a time."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Dict, Optional

import torch

from checkpoints_tools import layout
from checkpoints_tools.certificate import Certificate
from checkpoints_tools.formats import torch_dist
from checkpoints_tools.formats.tensors import Damaged, Source, part, raw_bytes
from megatron_ext.config import validate
from megatron_ext.config.schema import Cluster, Model, Parallel, Run, Train

Progress = Callable[[int], Any]  # called with the number of bytes just written

RNG = "rng_state/"
_MASTER = "optimizer.state.param."
LAYOUT_FIELDS = ("data", "tensor", "pipeline", "virtual_pipeline", "context", "expert", "expert_tensor")


def target_layout(model: Model, source: Parallel, changes: Dict[str, Optional[int]]) -> Parallel:
    """The source's layout with the given sizes changed; sequence parallelism follows the tensor size.

    Raises ValueError, naming value, limit and remedy, when the model cannot be divided so.
    """
    sizes: Dict[str, Any] = {name: size for name, size in changes.items() if size is not None}
    target = replace(source, **sizes)
    needs_sequence = source.sequence or model.moe.num_experts > 0
    target = replace(target, sequence=needs_sequence and target.tensor > 1)
    # Only the rules on the model and its division matter here; everything else is set so that it satisfies its rules.
    division: Dict[str, Any] = {name: getattr(target, name) for name in (*LAYOUT_FIELDS, "sequence")}
    train = Train(global_batch_size=max(target.data, 1) * max(target.pipeline, 1))
    cluster = Cluster(ranks_per_node=1)
    validate.check_config(Run(model=model, parallel=Parallel(**division), train=train, cluster=cluster))
    return target


def write_tensors(
    source: Source, model: Model, parallel: Parallel, writer: torch_dist.Writer, report: Certificate, progress: Progress
) -> None:
    masters = _Masters(source)
    for name, spec in source.tensors.items():
        if layout.place(name) is None:
            report.note(f"{name}: nothing is known of how it is divided; rank 0's file holds all of it")
        for piece in layout.slices(name, spec.shape):
            data = source.read(name, *piece)
            report.add(name, spec, source.sources(name), data)
            masters.add(name, data)
            for rank, (offset, shape) in layout.holders(name, piece, model, parallel):
                inner = tuple(a - b for a, b in zip(offset, piece[0]))
                writer.write(name, spec, offset, part(data, inner, shape), rank)
            progress(data.nbytes)
    masters.check(report)


class _Masters:
    """The optimizer's fp32 copies must round to the weights; where they do not, the optimizer state is corrupt.

    megatron-core up to 0.19.0 can write such checkpoints (Megatron-LM pull request 5077) and loads them in silence.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.rounded: Dict[str, Any] = {}  # weight -> hash of its master copy in the weight's dtype

    def add(self, name: str, data: torch.Tensor) -> None:
        weight = name[len(_MASTER) :]
        if name.startswith(_MASTER) and weight in self.source.tensors:
            digest = self.rounded.setdefault(weight, hashlib.sha256())
            digest.update(raw_bytes(data.to(self.source.tensors[weight].dtype)))

    def check(self, report: Certificate) -> None:
        wrong = [weight for weight, digest in self.rounded.items() if digest.hexdigest() != report.hash_of(weight)]
        if wrong:
            raise Damaged(
                f"the optimizer's fp32 copy does not round to the weight for {', '.join(wrong)}: its optimizer "
                f"state is corrupt; take an earlier checkpoint, or only the weights of this one with --to hf"
            )


def reshard(
    source: torch_dist.Reader, parallel: Parallel, folder: Path, report: Certificate, progress: Progress
) -> None:
    """Everything of the source, optimizer and objects included, in layout `parallel`, into an empty folder."""
    writer = torch_dist.Writer(folder)
    write_tensors(source, source.run.model, parallel, writer, report, progress)
    for name in source.objects:
        writer.write_object(name, source.read_object(name), layout.object_rank(name, source.run.model, parallel))
    _say_random_state(source, parallel, report)
    report.facts["layout"] = {name: getattr(parallel, name) for name in LAYOUT_FIELDS}
    report.facts["objects"] = len(source.objects)
    report.write(folder)
    # common["layout"] stays: it says in which layout the saved generators mean something, and the trainer asks it.
    writer.finish(source.common, replace(source.run, parallel=parallel))


def _say_random_state(source: torch_dist.Reader, parallel: Parallel, report: Certificate) -> None:
    if not any(name.startswith(RNG) for name in source.objects):
        return
    was = source.common.get("layout")
    if was == {name: getattr(parallel, name) for name in LAYOUT_FIELDS}:
        report.note("random generators: kept; a resumed run continues with the same random numbers")
    else:
        sizes = ", ".join(f"{name} {size}" for name, size in (was or {}).items() if size != 1) or "one rank"
        report.note(
            f"random generators: their states are kept, but belong to the layout that saved them ({sizes}); "
            f"a run resumed in this layout starts its generators from the seed (this matters only with dropout)"
        )
