"""Every rule that relates the fields of a run, checked before any process starts.

A rule is a generator of complaints: the value, the limit, the remedy. All complaints are reported together, since a
person who fixes a layout wants to see everything that is wrong with it. No torch here: a login node runs this.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import re
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List

from megatron_ext.config import passthrough, schema
from megatron_ext.config.load import ConfigError, flatten
from megatron_ext.config.schema import ClusterKind, Position, RouterScore, Run, world_size

Rule = Callable[[Run], Iterator[str]]


def check(run: Run) -> None:
    """Raises ConfigError that lists every broken rule."""
    _check(run, [*_RELATIONS, _shards, _start])


def check_config(run: Run) -> None:
    """The rules that need no file: presets for a cluster can be checked where its data is not."""
    _check(run, _RELATIONS)


def complaints(run: Run, rules: List[Rule]) -> List[str]:
    return [complaint for rule in rules for complaint in rule(run)]


def _check(run: Run, relations: List[Rule]) -> None:
    # Relations divide by values, so each value must be sound by itself first.
    for rules in (_VALUES, relations):
        if found := complaints(run, rules):
            raise ConfigError("this run cannot work:\n" + "\n".join(f"  - {complaint}" for complaint in found))


def _finite(run: Run) -> Iterator[str]:
    for name, value in flatten(run).items():
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, float) and not math.isfinite(number):
                yield f"{name}={value}; it must be a finite number"


def _positive(run: Run) -> Iterator[str]:
    yield from _at_least(1, run, "parallel", "data tensor pipeline virtual_pipeline context expert expert_tensor")
    yield from _at_least(1, run, "parallel", "bucket_size")
    yield from _at_least(1, run, "model", "num_layers hidden_size ffn_size num_heads num_kv_heads head_dim")
    yield from _at_least(1, run, "model", "vocab_size vocab_multiple seq_length rope_base rope_scaling_factor")
    yield from _at_least(1, run, "model.moe", "top_k expert_ffn_size")
    yield from _at_least(1, run, "train", "steps global_batch_size micro_batch_size log_every eval_batches")
    yield from _at_least(1, run, "cluster", "ranks_per_node threads_per_rank time_limit_minutes")
    above = {
        "optim.lr": run.optim.lr,
        "optim.eps": run.optim.eps,
        "model.norm_eps": run.model.norm_eps,
        "parallel.timeout_minutes": run.parallel.timeout_minutes,
    }
    for name, value in above.items():
        if value <= 0:
            yield f"{name}={value}; it must be above 0"


def _not_negative(run: Run) -> Iterator[str]:
    yield from _at_least(0, run, "train", "save_every eval_every keep_last")
    yield from _at_least(0, run, "model", "init_std")
    yield from _at_least(0, run, "model.moe", "num_experts shared_expert_ffn_size aux_loss_coeff z_loss_coeff")
    yield from _at_least(0, run, "optim", "min_lr weight_decay")
    yield from _at_least(0, run, "cluster", "signal_seconds max_restarts")
    if run.optim.clip_grad < 0:
        yield f"optim.clip_grad={run.optim.clip_grad}; use 0 to switch clipping off, 0.5 to 1.0 to clip"
    if not 0 <= run.seed < 2**32:
        yield f"seed={run.seed}; it must be at least 0 and below 2**32"


def _at_least(limit: int, run: Run, section: str, names: str) -> Iterator[str]:
    """Optional fields may also be None."""
    holder = functools.reduce(getattr, section.split("."), run)
    for name in names.split():
        if (value := getattr(holder, name)) is not None and value < limit:
            yield f"{section}.{name}={value}; it must be at least {limit}"


def _name(run: Run) -> Iterator[str]:
    """A folder's name, which also goes into job names, patterns of Slurm and shell lines."""
    if not re.fullmatch(r"\w[\w.+=@-]{0,99}", run.name):
        yield f"name={run.name!r}; use up to 100 letters, digits and ._+=@- and begin with a letter or digit"


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


def _rates(run: Run) -> Iterator[str]:
    optim = run.optim
    if optim.warmup_fraction + optim.decay_fraction > 1 and optim.schedule == schema.Schedule.wsd:
        yield (
            f"optim.warmup_fraction={optim.warmup_fraction} plus optim.decay_fraction={optim.decay_fraction} "
            f"exceed 1; lower one of them"
        )
    if optim.min_lr > optim.lr:
        yield f"optim.min_lr={optim.min_lr} is not between 0 and optim.lr={optim.lr}; set both"


def _model(run: Run) -> Iterator[str]:
    model = run.model
    if model.head_dim is None and model.hidden_size % model.num_heads:
        yield (
            f"model.hidden_size={model.hidden_size} is not a multiple of model.num_heads={model.num_heads}; "
            f"change one, or set model.head_dim"
        )
    groups = schema.num_kv_heads(model)
    if model.num_heads % groups:
        yield f"model.num_heads={model.num_heads} is not a multiple of model.num_kv_heads={groups}; use a divisor"
    if model.position == Position.rope and schema.head_dim(model) % 2:
        yield f"rotary embeddings turn pairs, but the head dimension is {schema.head_dim(model)}; make it even"
    if model.rope_base != int(model.rope_base):
        yield f"model.rope_base={model.rope_base}; Megatron cuts it to a whole number, so give one"
    if model.position != Position.rope and model.rope_scaling_factor > 1:
        yield (
            f"model.rope_scaling_factor={model.rope_scaling_factor} scales rotary embeddings, but "
            f"model.position={model.position}; set model.position=rope, or the factor to 1"
        )


def _moe(run: Run) -> Iterator[str]:
    model, moe = run.model, run.model.moe
    if moe.num_experts == 0:
        return
    if not 1 <= moe.top_k <= moe.num_experts:
        yield f"model.moe.top_k={moe.top_k} is not between 1 and model.moe.num_experts={moe.num_experts}"
    # Softmax over the one chosen logit is 1 whatever it is: the router would learn nothing.
    early = model.megatron.get("moe_router_pre_softmax", False)
    if moe.top_k == 1 and moe.router_score == RouterScore.softmax and not early:
        yield (
            "model.moe.top_k=1 with model.moe.router_score=softmax gives the router no gradient; "
            "set model.moe.router_score=sigmoid or model.megatron.moe_router_pre_softmax=true"
        )
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
    model, parallel, tensor = run.model, run.parallel, run.parallel.tensor
    groups = schema.num_kv_heads(model)
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
    chunks = parallel.pipeline * parallel.virtual_pipeline
    if model.num_layers % chunks:
        yield (
            f"model.num_layers={model.num_layers} is not a multiple of parallel.pipeline={parallel.pipeline} x "
            f"parallel.virtual_pipeline={parallel.virtual_pipeline} = {chunks}; use a divisor of {model.num_layers}"
        )
    if parallel.virtual_pipeline > 1 and parallel.pipeline == 1:
        yield f"parallel.virtual_pipeline={parallel.virtual_pipeline} with parallel.pipeline=1; set it to 1"


def _context(run: Run) -> Iterator[str]:
    length, context, tensor = run.model.seq_length, run.parallel.context, run.parallel.tensor
    reasons = {}
    if context > 1:
        reasons[f"two chunks for each of parallel.context={context}"] = 2 * context
    if run.parallel.sequence:
        reasons[f"parallel.tensor={tensor} with parallel.sequence=true"] = tensor
    if length % (parts := math.prod(reasons.values())):
        yield (
            f"model.seq_length={length} is not a multiple of {parts} ({' times '.join(reasons)}); "
            f"round it up to {-(-length // parts) * parts}"
        )
    if context > 1 and run.model.attention_dropout > 0:
        yield (
            f"model.attention_dropout={run.model.attention_dropout} with parallel.context={context}: "
            f"set it to 0, or parallel.context to 1"
        )


def _expert(run: Run) -> Iterator[str]:
    parallel, moe = run.parallel, run.model.moe
    expert, tensor = parallel.expert, parallel.expert_tensor
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
    per_step = train.micro_batch_size * parallel.data
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


def _overlap(run: Run) -> Iterator[str]:
    parallel = run.parallel
    if parallel.bucket_size is not None and not parallel.overlap_grad_reduce:
        yield (
            f"parallel.bucket_size={parallel.bucket_size} without parallel.overlap_grad_reduce=true does nothing; "
            f"set both, or leave it out"
        )
    if parallel.overlap_param_gather and not (parallel.distributed_optimizer and parallel.overlap_grad_reduce):
        yield (
            "parallel.overlap_param_gather=true needs parallel.distributed_optimizer=true and "
            "parallel.overlap_grad_reduce=true; set both, or switch it off"
        )


def _time(run: Run) -> Iterator[str]:
    cluster = run.cluster
    if cluster.time_limit_minutes is not None and cluster.signal_seconds >= 60 * cluster.time_limit_minutes:
        yield (
            f"cluster.signal_seconds={cluster.signal_seconds} is not shorter than cluster.time_limit_minutes="
            f"{cluster.time_limit_minutes}: the run would stop as soon as it starts; lower it or raise the limit"
        )


def _split(run: Run) -> Iterator[str]:
    split = run.data.split
    try:
        parts = [float(part) for part in split.split(",")]
    except ValueError:
        parts = []
    if len(parts) != 3 or not all(map(math.isfinite, parts)) or min(parts) < 0 or parts[0] <= 0:
        yield f"data.split={split!r}; give three numbers for train, validation and test, as 98,2,0"
    elif run.train.eval_every and parts[1] == 0:
        yield (
            f"train.eval_every={run.train.eval_every}, but data.split={split!r} leaves nothing for validation; "
            f"set train.eval_every=0, or another split"
        )


def _start(run: Run) -> Iterator[str]:
    if run.train.init_from and not Path(run.train.init_from).is_dir():
        yield f"train.init_from={run.train.init_from} is no folder; name a run or a checkpoint"


def _blend(run: Run) -> Iterator[str]:
    data = run.data
    if data.weights and len(data.weights) != len(data.blend):
        yield f"data.weights has {len(data.weights)} entries for {len(data.blend)} shards in data.blend; give one each"
    if data.epochs and len(data.epochs) != len(data.blend):
        yield f"data.epochs has {len(data.epochs)} entries for {len(data.blend)} shards in data.blend; give one each"
    if data.weights and data.epochs:
        yield "data.weights and data.epochs both say how much of each source is seen; give one of them"
    if any(epochs <= 0 for epochs in data.epochs):
        yield f"data.epochs={list(data.epochs)}; each must be above 0 (leave a shard out of data.blend to drop it)"
    if data.temperature < 1:
        yield f"data.temperature={data.temperature}; it must be 1 (by tokens) or more (towards equal shares)"
    if any(weight <= 0 for weight in data.weights):
        yield f"data.weights={list(data.weights)}; each must be above 0 (leave a shard out of data.blend to drop it)"


def _shards(run: Run) -> Iterator[str]:
    if not run.data.blend:
        yield "data.blend is empty; name the shards to train on (llm-preprocess data=... makes them)"
    tokenizers = {}
    for prefix in run.data.blend:
        sidecar = Path(f"{prefix}.json")
        if missing := _missing(prefix):
            yield f"shard {prefix}: no {' and no '.join(missing)}; make it with llm-preprocess, or correct data.blend"
            continue
        try:
            manifest = json.loads(sidecar.read_text())
            facts = manifest["tokenizer"]
            vocab_size, fingerprint = int(facts["vocab_size"]), str(facts["sha256"])
        except (ValueError, KeyError, TypeError):
            yield f"{sidecar} is damaged; run llm-preprocess again"
            continue
        tokenizers[prefix] = fingerprint
        yield from _packs(run, prefix, manifest)
        if vocab_size > run.model.vocab_size:
            yield (
                f"shard {prefix} has ids up to {vocab_size - 1}, but model.vocab_size={run.model.vocab_size}; "
                f"set model.vocab_size={vocab_size}, or tokenise again with this model's tokenizer"
            )
    yield from _one_tokenizer(run, tokenizers)


def _packs(run: Run, prefix: str, manifest: Dict[str, Any]) -> Iterator[str]:
    label = manifest.get("settings", {}).get("source", {}).get("label", {})
    if label.get("template") and label.get("pack_length", 0) > run.model.seq_length:
        yield (
            f"shard {prefix} has packs of up to {label['pack_length']} tokens, but model.seq_length="
            f"{run.model.seq_length}; raise it, or make the shard with data.source.label.pack_length="
            f"{run.model.seq_length}"
        )


def _missing(prefix: str) -> List[str]:
    """Endings of files that a shard should have; a set of shards, as its manifest names them, has its own."""
    manifest = Path(f"{prefix}.json")
    try:
        names = [shard["name"] for shard in json.loads(manifest.read_text())["shards"]]
    except (OSError, ValueError, KeyError, TypeError):
        names = [manifest.stem]
    shards = [manifest.with_name(name) for name in names]
    found = [ending for ending in (".bin", ".idx") if not all(Path(f"{one}{ending}").is_file() for one in shards)]
    return found + ([] if manifest.is_file() else [".json"])


def _one_tokenizer(run: Run, tokenizers: dict[str, str]) -> Iterator[str]:
    if len(set(tokenizers.values())) > 1:
        yield f"the shards {', '.join(tokenizers)} were made by different tokenizers; tokenise them with the same one"
    path = Path(run.data.tokenizer.path)
    if run.data.tokenizer.path and tokenizers:
        if not path.is_file():
            yield f"tokenizer {path} does not exist; correct data.tokenizer.path"
        elif hashlib.sha256(path.read_bytes()).hexdigest() not in tokenizers.values():
            yield f"the shards {', '.join(tokenizers)} were made by another tokenizer than {path}; use theirs"


_VALUES: List[Rule] = [_finite, _positive, _not_negative, _name]
_LAYOUT: List[Rule] = [_world, _tensor, _pipeline, _context, _expert, _batch, _overlap]
_RELATIONS: List[Rule] = [passthrough.complaints, _fractions, _rates, _model, _moe, *_LAYOUT, _time, _split, _blend]
