"""Run -> Megatron's own configuration objects; the one place where our names become Megatron's."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from megatron_ext.config import passthrough, schema
from megatron_ext.config.load import ConfigError
from megatron_ext.config.schema import Activation, Norm, Position, Precision, Recompute, Run

_DTYPE = {Precision.bf16: torch.bfloat16, Precision.fp32: torch.float32}


def dtype(run: Run) -> torch.dtype:
    return _DTYPE[run.train.precision]


def transformer_config(run: Run) -> Any:
    """-> TransformerConfig. Raises ConfigError for a passthrough name that Megatron does not know."""
    from megatron.core.transformer import TransformerConfig

    model = run.model
    fields: dict[str, Any] = dict(
        num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        ffn_hidden_size=model.ffn_size,
        num_attention_heads=model.num_heads,
        num_query_groups=schema.num_kv_heads(model),
        kv_channels=schema.head_dim(model),
        normalization="RMSNorm" if model.norm == Norm.rmsnorm else "LayerNorm",
        layernorm_epsilon=model.norm_eps,
        gated_linear_unit=model.activation == Activation.swiglu,
        activation_func=F.silu if model.activation == Activation.swiglu else F.gelu,
        add_bias_linear=model.linear_bias,
        add_qkv_bias=model.qkv_bias,
        qk_layernorm=model.qk_norm,
        hidden_dropout=model.hidden_dropout,
        attention_dropout=model.attention_dropout,
        init_method_std=model.init_std,
        perform_initialization=False,  # model/init.py fills every weight by its name, the same in every layout
        calculate_per_token_loss=True,  # gradients are of the mean over all tokens of the step, whatever the layout
        **_precision(run),
        **_layout(run),
        **_moe(run),
    )
    return TransformerConfig(**_with_passthrough(run, fields))


def ddp_config(run: Run) -> Any:
    """-> DistributedDataParallelConfig: how gradients are bucketed and reduced (in fp32, always)."""
    from megatron.core.distributed import DistributedDataParallelConfig

    parallel = run.parallel
    return DistributedDataParallelConfig(
        grad_reduce_in_fp32=True,
        use_distributed_optimizer=parallel.distributed_optimizer,
        overlap_grad_reduce=parallel.overlap_grad_reduce,
        overlap_param_gather=parallel.overlap_param_gather,
        bucket_size=parallel.bucket_size,
    )


def _precision(run: Run) -> dict[str, Any]:
    kind = dtype(run)
    return dict(params_dtype=kind, pipeline_dtype=kind, autocast_dtype=kind, bf16=kind == torch.bfloat16)


def _layout(run: Run) -> dict[str, Any]:
    parallel = run.parallel
    return dict(
        tensor_model_parallel_size=parallel.tensor,
        pipeline_model_parallel_size=parallel.pipeline,
        virtual_pipeline_model_parallel_size=parallel.virtual_pipeline if parallel.virtual_pipeline > 1 else None,
        context_parallel_size=parallel.context,
        expert_model_parallel_size=parallel.expert,
        expert_tensor_parallel_size=parallel.expert_tensor,
        sequence_parallel=parallel.sequence,
        batch_p2p_comm=False,
        **_recompute(run),
    )


def _recompute(run: Run) -> dict[str, Any]:
    if run.train.recompute == Recompute.full:
        return dict(recompute_granularity="full", recompute_method="uniform", recompute_num_layers=1)
    if run.train.recompute == Recompute.selective:
        return dict(recompute_granularity="selective", recompute_modules=["core_attn"])
    return {}


def _moe(run: Run) -> dict[str, Any]:
    moe = run.model.moe
    if moe.num_experts == 0:
        return {}
    return dict(
        num_moe_experts=moe.num_experts,
        moe_router_topk=moe.top_k,
        moe_ffn_hidden_size=schema.expert_ffn_size(run.model),
        moe_shared_expert_intermediate_size=moe.shared_expert_ffn_size or None,
        moe_router_score_function=str(moe.router_score),
        moe_router_load_balancing_type="aux_loss" if moe.aux_loss_coeff else "none",
        moe_aux_loss_coeff=moe.aux_loss_coeff,
        moe_z_loss_coeff=moe.z_loss_coeff or None,
        moe_token_dispatcher_type=str(moe.dispatcher),
        moe_router_dtype="fp32",  # bf16 near-ties would choose other experts in another layout
    )


def _with_passthrough(run: Run, fields: dict[str, Any]) -> dict[str, Any]:
    if found := list(passthrough.complaints(run)):
        raise ConfigError("; ".join(found))
    for name in run.model.megatron:
        if name in fields:
            raise ConfigError(f"model.megatron.{name} is set from our own fields; change it there")
    return {**fields, **run.model.megatron}


def parameters(run: Run) -> int:
    """Number of weights, padding rows of the vocabulary not counted."""
    model, size = run.model, run.model.hidden_size
    norm = 1 if model.norm == Norm.rmsnorm else 2  # LayerNorm has a bias
    matrices = 1 if model.tie_embeddings else 2
    positions = model.seq_length if model.position == Position.learned else 0
    layer = _attention_parameters(run) + _ffn_parameters(run) + 2 * norm * size
    return model.num_layers * layer + (matrices * model.vocab_size + positions + norm) * size


def _attention_parameters(run: Run) -> int:
    model, dim = run.model, schema.head_dim(run.model)
    inner, qkv = model.num_heads * dim, (model.num_heads + 2 * schema.num_kv_heads(model)) * dim
    count = model.hidden_size * (qkv + inner)
    count += qkv * (model.qkv_bias or model.linear_bias) + model.hidden_size * model.linear_bias
    return count + model.qk_norm * 2 * dim * (1 if model.norm == Norm.rmsnorm else 2)


def _ffn_parameters(run: Run) -> int:
    model, moe = run.model, run.model.moe
    gated = 2 if model.activation == Activation.swiglu else 1
    if moe.num_experts:  # experts have no biases; the router is a matrix
        inner = moe.num_experts * schema.expert_ffn_size(model) + moe.shared_expert_ffn_size
        return model.hidden_size * ((gated + 1) * inner + moe.num_experts)
    return (gated + 1) * model.hidden_size * model.ffn_size + model.linear_bias * (
        gated * model.ffn_size + model.hidden_size
    )


def flops_per_token(run: Run) -> float:
    """Forward and backward of one token: 6 FLOPs a weight that it meets, and attention (Narayanan et al. 2021, eq. 3).

    Causal attention is counted by half. Recomputation is not counted: it is work, not use.
    """
    model = run.model
    looked_up = 0 if model.tie_embeddings else model.vocab_size
    looked_up += model.seq_length if model.position == Position.learned else 0
    active = parameters(run) - looked_up * model.hidden_size
    if model.moe.num_experts:
        gated = 3 if model.activation == Activation.swiglu else 2
        idle = model.moe.num_experts - model.moe.top_k
        active -= model.num_layers * gated * model.hidden_size * schema.expert_ffn_size(model) * idle
    attention = 12 * model.num_layers * model.num_heads * schema.head_dim(model) * model.seq_length / 2
    return 6.0 * active + attention


def init_std_output(run: Run) -> float:
    """For layers that write into the residual stream (Radford et al. 2019): their sum keeps its variance with depth."""
    return run.model.init_std / math.sqrt(2 * run.model.num_layers)
