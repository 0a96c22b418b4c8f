"""Llama (`LlamaForCausalLM`): the table of names, read both ways, and the configuration, read both ways."""

from __future__ import annotations

from typing import Any, Dict, List

import torch

from checkpoints_tools.certificate import dtype_name
from checkpoints_tools.formats.tensors import Damaged
from checkpoints_tools.hf.rules import Rule, gate_and_up, query_key_value, same, vocabulary
from megatron_ext.config.schema import Activation, Model, Norm, Position, head_dim, num_kv_heads

MODEL_TYPE = "llama"
# Tables that older versions of transformers stored; the configuration says the same.
DERIVED = (r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq", r"model\.rotary_emb\.inv_freq")

# What megatron-core's RoPE scaling has built in: of Llama 3.1's four numbers only the factor can be chosen.
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
# Fields of model.megatron that change speed, memory or training, never what the weights mean.
_HARMLESS = (
    "recompute_",
    "cpu_offloading",
    "fine_grained_activation",
    "distribute_saved_activations",
    "deterministic_mode",
)


def rules(model: Model) -> List[Rule]:
    """In the order of the forward pass; all rules of one layer stand together."""
    theirs, layers, hidden = "model.layers.{layer}.", "decoder.layers.", model.hidden_size
    attention = [theirs + f"self_attn.{name}_proj.weight" for name in "qkv"]
    heads = model.num_heads * head_dim(model)
    table = [
        vocabulary("embedding.word_embeddings.weight", "model.embed_tokens.weight", model),
        same(layers + "self_attention.linear_qkv.layer_norm_weight", theirs + "input_layernorm.weight", hidden),
        query_key_value(layers + "self_attention.linear_qkv.weight", (attention[0], attention[1], attention[2]), model),
        same(layers + "self_attention.linear_proj.weight", theirs + "self_attn.o_proj.weight", hidden, heads),
        same(layers + "mlp.linear_fc1.layer_norm_weight", theirs + "post_attention_layernorm.weight", hidden),
        gate_and_up(
            layers + "mlp.linear_fc1.weight",
            theirs + "mlp.gate_proj.weight",
            theirs + "mlp.up_proj.weight",
            model.ffn_size,
            hidden,
        ),
        same(layers + "mlp.linear_fc2.weight", theirs + "mlp.down_proj.weight", hidden, model.ffn_size),
        same("decoder.final_layernorm.weight", "model.norm.weight", hidden),
    ]
    return table + ([] if model.tie_embeddings else [vocabulary("output_layer.weight", "lm_head.weight", model)])


def to_config(model: Model, dtype: torch.dtype) -> Dict[str, Any]:
    """-> config.json in the words of transformers 5 and of 4. Raises ValueError for what Llama is not."""
    _refuse([f"model.{name}={value}" for name, value in _not_llama(model).items()], "a Llama model")
    rope: Dict[str, Any] = {"rope_type": "default"}
    if model.rope_scaling_factor > 1:
        rope = {"rope_type": "llama3", "factor": model.rope_scaling_factor, **_LLAMA3}
    base = int(model.rope_base)
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": MODEL_TYPE,
        "vocab_size": model.vocab_size,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.ffn_size,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": num_kv_heads(model),
        "head_dim": head_dim(model),
        "hidden_act": "silu",
        "max_position_embeddings": model.seq_length,
        "initializer_range": model.init_std,
        "rms_norm_eps": model.norm_eps,
        "attention_bias": False,
        "mlp_bias": False,
        "attention_dropout": model.attention_dropout,
        "tie_word_embeddings": model.tie_embeddings,
        "rope_parameters": {**rope, "rope_theta": float(base)},
        "rope_theta": float(base),
        "rope_scaling": rope if model.rope_scaling_factor > 1 else None,
        "dtype": dtype_name(dtype),
        "torch_dtype": dtype_name(dtype),
        "use_cache": True,
        "bos_token_id": None,
        "eos_token_id": None,
    }


def from_config(config: Dict[str, Any]) -> Model:
    """config.json of transformers 4 or 5 -> Model. Raises ValueError, naming the entry, for what we cannot build."""
    wrong = {
        "architectures": config.get("architectures") not in (None, ["LlamaForCausalLM"]),
        "hidden_act": config.get("hidden_act", "silu") != "silu",
        "attention_bias": bool(config.get("attention_bias")),
        "mlp_bias": bool(config.get("mlp_bias")),
        "quantization_config": config.get("quantization_config") is not None,
    }
    _refuse([f"config.json {name}={config.get(name)}" for name, is_wrong in wrong.items() if is_wrong], "what is read")
    try:
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        groups, dim = config.get("num_key_value_heads"), config.get("head_dim")
        return Model(
            num_layers=config["num_hidden_layers"],
            hidden_size=hidden,
            ffn_size=config["intermediate_size"],
            num_heads=heads,
            num_kv_heads=None
            if groups == heads
            else groups,  # as our presets write it: nothing where nothing is special
            head_dim=None if dim == hidden / heads else dim,
            vocab_size=config["vocab_size"],
            seq_length=config.get("max_position_embeddings", 2048),  # transformers' defaults for what it does not write
            norm_eps=config.get("rms_norm_eps", 1e-6),
            tie_embeddings=config.get("tie_word_embeddings", False),
            attention_dropout=config.get("attention_dropout") or 0.0,
            init_std=config.get("initializer_range", 0.02),
            **_rope(config),
        )
    except KeyError as error:
        raise Damaged(f"config.json has no {error}") from None


def _rope(config: Dict[str, Any]) -> Dict[str, Any]:
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    base = rope.get("rope_theta", config.get("rope_theta", 10000.0))
    wrong = [f"rope_theta={base}"] if base != int(base) else []
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        wrong.append(f"partial_rotary_factor={rope['partial_rotary_factor']}")
    if kind == "llama3":
        wrong += [
            f"{name}={rope.get(name)} (only {value})" for name, value in _LLAMA3.items() if rope.get(name) != value
        ]
    elif kind != "default":
        wrong.append(f"rope_type={kind!r} (only 'default' and 'llama3')")
    _refuse([f"config.json {text}" for text in wrong], "rotary embeddings that megatron-core computes")
    return {"rope_base": float(base), "rope_scaling_factor": float(rope["factor"]) if kind == "llama3" else 1.0}


def _not_llama(model: Model) -> Dict[str, Any]:
    wrong: Dict[str, Any] = {
        "norm": model.norm if model.norm != Norm.rmsnorm else None,
        "activation": model.activation if model.activation != Activation.swiglu else None,
        "position": model.position if model.position != Position.rope else None,
        "linear_bias": model.linear_bias or None,
        "qkv_bias": model.qkv_bias or None,
        "qk_norm": model.qk_norm or None,
        "moe.num_experts": model.moe.num_experts or None,
        "rope_base": model.rope_base if model.rope_base != int(model.rope_base) else None,
    }
    wrong.update({f"megatron.{name}": v for name, v in model.megatron.items() if not name.startswith(_HARMLESS)})
    return {name: value for name, value in wrong.items() if value is not None}


def _refuse(found: List[str], what: str) -> None:
    if found:
        raise ValueError(f"{', '.join(found)}: not {what}")
