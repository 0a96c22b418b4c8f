"""Every rule that relates the fields of a run, checked before any process starts.

A rule is a generator of complaints: the value, the limit, the remedy. All complaints are reported together, since a
person who fixes a layout wants to see everything that is wrong with it. No torch here: a login node runs this.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Callable, Iterator, List

from megatron_ext.config import schema
from megatron_ext.config.load import ConfigError
from megatron_ext.config.schema import ClusterKind, Position, Run, world_size

Rule = Callable[[Run], Iterator[str]]


def check(run: Run) -> None:
    """Raises ConfigError that lists every broken rule."""
    check_config(run)
    _raise(complaints(run, [_shards]))


def check_config(run: Run) -> None:
    """The rules that need no file: presets for a cluster can be checked where its data is not."""
    _raise(
        complaints(run, [_positive, _fractions, _model, _moe, _world, _tensor, _pipeline, _context, _expert, _batch])
    )


def complaints(run: Run, rules: List[Rule]) -> List[str]:
    return [complaint for rule in rules for complaint in rule(run)]


def _raise(found: List[str]) -> None:
    if found:
        raise ConfigError("this run cannot work:\n" + "\n".join(f"  - {complaint}" for complaint in found))


def _positive(run: Run) -> Iterator[str]:
    model, parallel, train = run.model, run.parallel, run.train
    for name in ("data", "tensor", "pipeline", "virtual_pipeline", "context", "expert", "expert_tensor"):
        if (value := getattr(parallel, name)) < 1:
            yield f"parallel.{name}={value}; it must be at least 1"
    sizes = ("num_layers", "hidden_size", "ffn_size", "num_heads", "vocab_size", "vocab_multiple", "seq_length")
    for name in sizes:
        if (value := getattr(model, name)) < 1:
            yield f"model.{name}={value}; it must be at least 1"
    for name in ("steps", "global_batch_size", "micro_batch_size", "log_every", "eval_batches"):
        if (value := getattr(train, name)) < 1:
            yield f"train.{name}={value}; it must be at least 1"
    for name in ("save_every", "eval_every", "keep_last"):
        if (value := getattr(train, name)) < 0:
            yield f"train.{name}={value}; it must be 0 or more"
    if run.cluster.ranks_per_node < 1:
        yield f"cluster.ranks_per_node={run.cluster.ranks_per_node}; it must be at least 1"
    if parallel.bucket_size is not None and parallel.bucket_size < 1:
        yield f"parallel.bucket_size={parallel.bucket_size}; give a number of parameters, or null"


def _fractions(run: Run) -> Iterator[str]:
    model, optim, train = run.model, run.optim, run.train
    bounded = {
        "model.hidden_dropout": model.hidden_dropout,
        "model.attention_dropout": model.attention_dropout,
        "optim.warmup_fraction": optim.warmup_fraction,
        "optim.decay_fraction": optim.decay_fraction,
        "optim.beta1": optim.beta1,
        "optim.beta2": optim.beta2,
        "train.label_smoothing": train.label_smoothing,
    }
    for name, value in bounded.items():
        if not 0 <= value < 1:
            yield f"{name}={value}; it must be at least 0 and below 1"
    if optim.warmup_fraction + optim.decay_fraction > 1 and optim.schedule == schema.Schedule.wsd:
        yield (
            f"optim.warmup_fraction={optim.warmup_fraction} plus optim.decay_fraction={optim.decay_fraction} "
            f"exceed 1; lower one of them"
        )
    if not 0 <= optim.min_lr <= optim.lr:
        yield f"optim.min_lr={optim.min_lr} is not between 0 and optim.lr={optim.lr}; set both"
    for name in ("eps", "lr"):
        if (value := getattr(optim, name)) <= 0:
            yield f"optim.{name}={value}; it must be above 0"
    if optim.clip_grad < 0:
        yield f"optim.clip_grad={optim.clip_grad}; use 0 to switch clipping off, 0.5 to 1.0 to clip"


def _model(run: Run) -> Iterator[str]:
    model = run.model
    if model.head_dim is None and model.hidden_size % max(model.num_heads, 1):
        yield (
            f"model.hidden_size={model.hidden_size} is not a multiple of model.num_heads={model.num_heads}; "
            f"change one, or set model.head_dim"
        )
    groups = schema.num_kv_heads(model)
    if groups < 1 or model.num_heads % groups:
        yield f"model.num_heads={model.num_heads} is not a multiple of model.num_kv_heads={groups}; use a divisor"
    if model.position == Position.rope and schema.head_dim(model) % 2:
        yield f"rotary embeddings turn pairs, but the head dimension is {schema.head_dim(model)}; make it even"
    if model.rope_scaling_factor < 1:
        yield f"model.rope_scaling_factor={model.rope_scaling_factor}; it must be at least 1 (1: no scaling)"


def _moe(run: Run) -> Iterator[str]:
    model, moe = run.model, run.model.moe
    if moe.num_experts == 0:
        return
    if not 1 <= moe.top_k <= moe.num_experts:
        yield f"model.moe.top_k={moe.top_k} is not between 1 and model.moe.num_experts={moe.num_experts}"
    if model.linear_bias:
        yield "model.linear_bias=true, but experts have no biases; set model.linear_bias=false"


def _world(run: Run) -> Iterator[str]:
    world, cluster = world_size(run.parallel), run.cluster
    if cluster.kind == ClusterKind.slurm and world > cluster.ranks_per_node and world % cluster.ranks_per_node:
        yield (
            f"world size {world} (data x tensor x pipeline x context) is not a multiple of "
            f"cluster.ranks_per_node={cluster.ranks_per_node}; change parallel.data so that whole nodes are filled"
        )


def _tensor(run: Run) -> Iterator[str]:
    model, parallel, tensor = run.model, run.parallel, max(run.parallel.tensor, 1)
    groups = max(schema.num_kv_heads(model), 1)
    if model.num_heads % tensor:
        yield (
            f"model.num_heads={model.num_heads} is not a multiple of parallel.tensor={tensor}; "
            f"use a divisor of {model.num_heads}"
        )
    if groups % tensor and tensor % groups:
        yield (
            f"model.num_kv_heads={groups} and parallel.tensor={tensor}: one must divide the other; "
            f"use a parallel.tensor that does"
        )
    ffn = {"model.ffn_size": model.ffn_size} if model.moe.num_experts == 0 else {}
    if model.moe.shared_expert_ffn_size:
        ffn["model.moe.shared_expert_ffn_size"] = model.moe.shared_expert_ffn_size
    for name, size in ffn.items():
        if size % tensor:
            yield f"{name}={size} is not a multiple of parallel.tensor={tensor}; change one of them"
    if schema.padded_vocab_size(model) % tensor:
        yield (
            f"the vocabulary, {model.vocab_size} padded to {schema.padded_vocab_size(model)}, is not a multiple of "
            f"parallel.tensor={tensor}; set model.vocab_multiple to a multiple of {tensor}"
        )
    if parallel.sequence and tensor == 1:
        yield "parallel.sequence=true with parallel.tensor=1 does nothing; set parallel.sequence=false"
    if model.moe.num_experts and tensor > 1 and not parallel.sequence:
        yield (
            f"a mixture of experts with parallel.tensor={tensor} needs sequence parallelism, or its tokens "
            f"are dispatched {tensor} times; set parallel.sequence=true"
        )


def _pipeline(run: Run) -> Iterator[str]:
    model, parallel = run.model, run.parallel
    chunks = max(parallel.pipeline, 1) * max(parallel.virtual_pipeline, 1)
    if model.num_layers % chunks:
        yield (
            f"model.num_layers={model.num_layers} is not a multiple of parallel.pipeline={parallel.pipeline} x "
            f"parallel.virtual_pipeline={parallel.virtual_pipeline} = {chunks}; use a divisor of {model.num_layers}"
        )
    if parallel.virtual_pipeline > 1 and parallel.pipeline == 1:
        yield f"parallel.virtual_pipeline={parallel.virtual_pipeline} with parallel.pipeline=1; set it to 1"


def _context(run: Run) -> Iterator[str]:
    length, context = run.model.seq_length, max(run.parallel.context, 1)
    shards = (2 * context if context > 1 else 1) * (run.parallel.tensor if run.parallel.sequence else 1)
    if length % max(shards, 1):
        tensor = run.parallel.tensor
        sequence = f", times parallel.tensor={tensor} for sequence parallelism" if run.parallel.sequence else ""
        yield (
            f"model.seq_length={length} is not a multiple of {shards} (two chunks for each of "
            f"parallel.context={context}{sequence}); round it up to {-(-length // shards) * shards}"
        )
    if context > 1 and run.model.attention_dropout > 0:
        yield (
            f"model.attention_dropout={run.model.attention_dropout} with parallel.context={context}: "
            f"set it to 0, or parallel.context to 1"
        )


def _expert(run: Run) -> Iterator[str]:
    parallel, moe = run.parallel, run.model.moe
    expert, tensor = max(parallel.expert, 1), max(parallel.expert_tensor, 1)
    if moe.num_experts == 0:
        if expert > 1 or tensor > 1:
            yield f"parallel.expert={expert}, parallel.expert_tensor={tensor}, but there are no experts; set both to 1"
        return
    if moe.num_experts % expert:
        yield (
            f"model.moe.num_experts={moe.num_experts} is not a multiple of parallel.expert={expert}; "
            f"use a divisor of {moe.num_experts}"
        )
    if schema.expert_ffn_size(run.model) % tensor:
        yield (
            f"the experts' ffn size {schema.expert_ffn_size(run.model)} is not a multiple of "
            f"parallel.expert_tensor={tensor}; change one of them"
        )
    ranks = parallel.data * parallel.tensor * parallel.context
    if ranks % (expert * tensor):
        yield (
            f"data x tensor x context = {ranks} ranks of a stage cannot be divided into parallel.expert={expert} x "
            f"parallel.expert_tensor={tensor} = {expert * tensor}; raise parallel.data or lower those"
        )


def _batch(run: Run) -> Iterator[str]:
    train, parallel = run.train, run.parallel
    per_step = max(train.micro_batch_size * parallel.data, 1)
    if train.global_batch_size % per_step:
        yield (
            f"train.global_batch_size={train.global_batch_size} is not a multiple of train.micro_batch_size="
            f"{train.micro_batch_size} x parallel.data={parallel.data}; use a multiple of {per_step}"
        )
        return
    microbatches = train.global_batch_size // per_step
    if parallel.virtual_pipeline > 1 and microbatches % parallel.pipeline:
        yield (
            f"the interleaved schedule needs microbatches in multiples of parallel.pipeline={parallel.pipeline}, but "
            f"there are {microbatches}; raise train.global_batch_size to a multiple of {per_step * parallel.pipeline}"
        )
    if parallel.overlap_param_gather and not (parallel.distributed_optimizer and parallel.overlap_grad_reduce):
        yield (
            "parallel.overlap_param_gather=true needs parallel.distributed_optimizer=true and "
            "parallel.overlap_grad_reduce=true; set both, or switch it off"
        )


def _shards(run: Run) -> Iterator[str]:
    data = run.data
    if not data.blend:
        yield "data.blend is empty; name the shards to train on (llm-preprocess data=... makes them)"
    if data.weights and len(data.weights) != len(data.blend):
        yield f"data.weights has {len(data.weights)} entries for {len(data.blend)} shards in data.blend; give one each"
    if any(weight <= 0 for weight in data.weights):
        yield f"data.weights={list(data.weights)}; each must be above 0 (leave a shard out of data.blend to drop it)"
    try:
        parts = [float(part) for part in data.split.split(",")]
    except ValueError:
        parts = []
    if len(parts) != 3 or min(parts) < 0 or parts[0] <= 0:
        yield f"data.split={data.split!r}; give three numbers for train, validation and test, as 98,2,0"
    tokenizers = {}
    for prefix in data.blend:
        sidecar = Path(f"{prefix}.json")
        if missing := [suffix for suffix in (".bin", ".idx", ".json") if not Path(f"{prefix}{suffix}").is_file()]:
            yield f"shard {prefix}: no {' and no '.join(missing)}; make it with llm-preprocess, or correct data.blend"
            continue
        try:
            facts = json.loads(sidecar.read_text())
            vocab_size, fingerprint = facts["vocab_size"], facts["tokenizer_sha256"]
        except (json.JSONDecodeError, KeyError, TypeError):
            yield f"{sidecar} is damaged; run llm-preprocess again"
            continue
        tokenizers[prefix] = fingerprint
        if vocab_size > run.model.vocab_size:
            yield (
                f"shard {prefix} has ids up to {vocab_size - 1}, but model.vocab_size={run.model.vocab_size}; "
                f"set model.vocab_size={vocab_size}, or tokenise again with this model's tokenizer"
            )
    yield from _one_tokenizer(run, tokenizers)


def _one_tokenizer(run: Run, tokenizers: dict[str, str]) -> Iterator[str]:
    if len(set(tokenizers.values())) > 1:
        yield f"the shards {', '.join(tokenizers)} were made by different tokenizers; tokenise them with the same one"
    path = Path(run.data.tokenizer.path)
    if run.data.tokenizer.path and tokenizers:
        if not path.is_file():
            yield f"tokenizer {path} does not exist; correct data.tokenizer.path"
        elif hashlib.sha256(path.read_bytes()).hexdigest() not in tokenizers.values():
            yield f"the shards {', '.join(tokenizers)} were made by another tokenizer than {path}; use theirs"
