"""Layer specs: which module fills each slot of megatron-core's transformer layer."""

from __future__ import annotations

import functools
import importlib
import logging
from typing import Any

from megatron_ext.config.load import ConfigError
from megatron_ext.config.schema import Implementation, Norm, Run
from megatron_ext.runtime.parallel import Grid

log = logging.getLogger(__name__)


def block_spec(run: Run, config: Any, virtual: Any, grid: Grid) -> Any:
    """The layers of one model chunk and its final norm: Transformer Engine's when wanted and importable, else ours."""
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build

    if uses_transformer_engine(run):
        if not virtual:  # once, not for every virtual stage
            log.info("layers: Transformer Engine")
        spec = get_gpt_decoder_block_spec(config, use_transformer_engine=True, vp_stage=virtual)
        for layer in spec.layer_specs:
            _use_router(layer, run)
        return spec
    _refuse_unimplemented(config)
    if not virtual:
        log.info("layers: local (Transformer Engine is not installed or not wanted)")
    from megatron_ext.model.norm import Norm as OurNorm

    layers = get_num_layers_to_build(config, vp_stage=virtual, pp_rank=grid.groups.pp.rank())
    return TransformerBlockSubmodules(layer_specs=[_local_layer(run)] * layers, layer_norm=OurNorm)


def uses_transformer_engine(run: Run) -> bool:
    """Raises ValueError when it is demanded and cannot be imported."""
    available = _transformer_engine_imports()
    if run.model.implementation == Implementation.transformer_engine and not available:
        raise ValueError(
            "model.implementation=transformer_engine, but it cannot be imported here; install it, or use auto or local"
        )
    return available and run.model.implementation != Implementation.local


def check_packs(run: Run) -> None:
    """Raises ValueError where attention would cross from one conversation of a pack to the next."""
    if uses_transformer_engine(run):
        raise ValueError(
            "data.blend has packs of conversations, which Transformer Engine's causal attention would see as one text; "
            "set model.implementation=local"
        )


@functools.lru_cache(maxsize=1)
def _transformer_engine_imports() -> bool:
    """Tried rather than looked up: built for another CUDA it is there and cannot be imported."""
    try:
        importlib.import_module("transformer_engine.pytorch")
    except (ImportError, OSError) as error:
        log.debug("Transformer Engine: %s", error)
        return False
    return True


def _refuse_unimplemented(config: Any) -> None:
    """Fields of Megatron's configuration that our own modules do not read; to ignore them would be another model."""
    defaults = {
        "window_size": None,
        "softmax_type": "vanilla",
        "apply_query_key_layer_scaling": False,
        "layernorm_zero_centered_gamma": False,
        "moe_layer_freq": 1,
        "multi_latent_attention": False,
    }
    for name, default in defaults.items():
        if getattr(config, name) != default:
            raise ConfigError(
                f"model.megatron.{name}={getattr(config, name)} needs Transformer Engine's layers, and these are "
                f"local; install it, or leave the field out"
            )


def for_subclass(module: type, submodules: Any, **groups: Any) -> Any:
    """Spec of a subclass of MLP (`tp_group=`) or MoELayer (`pg_collection=`), with its process groups.

    megatron-core's layer hands groups only to those very classes; a subclass silently falls back to the global ones.
    """
    from megatron.core.transformer.spec_utils import ModuleSpec

    assert groups, "a subclass without groups would take the global ones"
    return ModuleSpec(module=module, submodules=submodules, params=groups)


def _local_layer(run: Run) -> Any:
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec

    from megatron_ext.model.attention.full import CausalAttention
    from megatron_ext.model.norm import Norm as OurNorm

    model = run.model
    spec = get_gpt_layer_local_spec(
        num_experts=model.moe.num_experts or None,
        qk_layernorm=model.qk_norm,
        normalization="RMSNorm" if model.norm == Norm.rmsnorm else "LayerNorm",
    )
    parts = spec.submodules
    parts.input_layernorm = parts.pre_mlp_layernorm = OurNorm
    parts.self_attention.submodules.core_attention = CausalAttention
    if model.qk_norm:
        parts.self_attention.submodules.q_layernorm = parts.self_attention.submodules.k_layernorm = OurNorm
    if model.moe.num_experts:  # Transformer Engine's name for this norm, so that both kinds of run share checkpoints
        parts.sharded_state_dict_keys_map = {"input_layernorm.": "self_attention.linear_qkv.layer_norm_"}
    _use_router(spec, run)
    return spec


def _use_router(layer: Any, run: Run) -> None:
    if run.model.moe.num_experts == 0:
        return
    from megatron.core.transformer.moe import moe_utils

    from megatron_ext.model.moe.router import Router

    # megatron-core 0.16.1's router asks whether this is None, but binds the name only with Transformer Engine.
    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None
    layer.submodules.mlp.submodules.router = Router
