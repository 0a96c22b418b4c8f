"""When are two configurations of the same model? Asked before a run folder is continued and before weights are read."""

from __future__ import annotations

from typing import Any, Dict, List

from megatron_ext.config import load, schema
from megatron_ext.config.schema import Run

# No shape and no meaning of a weight hangs on these.
_FREE = {
    "model.attention_dropout",
    "model.hidden_dropout",
    "model.implementation",
    "model.init",
    "model.init_std",
    "model.moe.aux_loss_coeff",
    "model.moe.dispatcher",
    "model.moe.z_loss_coeff",
}
_LENGTH = {"model.seq_length", "model.rope_base", "model.rope_scaling_factor"}


def model_changes(was: Run, now: Run, start: bool = False) -> List[str]:
    """["model.num_layers 4 -> 2", ...]: the differences that make it another model.

    start: weights only begin a new run, so with rotary embeddings the sequence length may be another.
    """
    free = _FREE | (_LENGTH if start and now.model.position == schema.Position.rope else set())
    before, after = _resolved(was), _resolved(now)
    names = [name for name in after if name.startswith("model.") and name not in free]
    return [f"{name} {before[name]} -> {after[name]}" for name in names if before[name] != after[name]]


def _resolved(run: Run) -> Dict[str, Any]:
    """Fields by name, with what a null stands for in its place."""
    model = run.model
    return load.flatten(run) | {
        "model.head_dim": schema.head_dim(model),
        "model.num_kv_heads": schema.num_kv_heads(model),
        "model.moe.expert_ffn_size": schema.expert_ffn_size(model),
    }
