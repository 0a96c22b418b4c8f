"""Every rule: refused with the value, the limit and the remedy; its legal neighbour passes."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from megatron_ext.config import schema, validate
from megatron_ext.config.load import ConfigError, compose
from megatron_ext.config.schema import Run
from tests.megatron_ext.runs import complaint, run_with


def test_the_defaults_are_legal():
    validate.check_config(Run())


AT_LEAST = {
    1: """parallel.data parallel.tensor parallel.pipeline parallel.virtual_pipeline parallel.context parallel.expert
          parallel.expert_tensor parallel.bucket_size model.num_layers model.hidden_size model.ffn_size model.num_heads
          model.num_kv_heads model.head_dim model.vocab_size model.vocab_multiple model.seq_length model.rope_base
          model.rope_scaling_factor model.moe.top_k model.moe.expert_ffn_size train.steps train.global_batch_size
          train.micro_batch_size train.log_every train.eval_batches cluster.ranks_per_node cluster.threads_per_rank
          cluster.time_limit_minutes""",
    0: """train.save_every train.eval_every train.keep_last model.init_std model.moe.num_experts
          model.moe.shared_expert_ffn_size model.moe.aux_loss_coeff model.moe.z_loss_coeff optim.min_lr
          optim.weight_decay cluster.signal_seconds cluster.max_restarts""",
}  # fmt: skip
LIMITS = [(name, limit) for limit, names in AT_LEAST.items() for name in names.split()]


@pytest.mark.parametrize("name, limit", LIMITS)
def test_values_below_their_limit(name, limit):
    for value in (limit - 1, -7):
        assert f"{name}={value}; it must be at least {limit}" in complaint(**{name: value})
    for rule in validate._VALUES:
        assert validate.complaints(run_with(**{name: limit}), [rule]) == []


def test_every_number_of_the_model_the_layout_and_the_training_has_a_limit():
    """A new number in the schema comes with a rule: whatever is negative without end is refused."""
    for name, value in validate.flatten(Run()).items():
        if name.startswith("data.") or isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        assert name in complaint(**{name: type(value)(-(10**6))}), name


@pytest.mark.parametrize("name", ["optim.lr", "optim.eps", "model.norm_eps", "parallel.timeout_minutes"])
def test_values_that_must_be_above_0(name):
    assert f"{name}=0.0; it must be above 0" in complaint(**{name: 0.0, "optim.min_lr": 0.0})
    validate.check_config(run_with(**{name: 1e-4, "optim.min_lr": 0.0}))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_none(value):
    for name, default in validate.flatten(Run()).items():
        if isinstance(default, float):
            assert f"{name}={value}; it must be a finite number" in complaint(**{name: value})
    assert "data.weights" in complaint(**{"data.weights": [1.0, value]})


@pytest.mark.parametrize(
    "name",
    ["model.hidden_dropout", "model.attention_dropout", "optim.warmup_fraction", "optim.decay_fraction", "optim.beta1",
     "optim.beta2", "train.label_smoothing"],
)  # fmt: skip
def test_fractions(name):
    for value in (1.0, 1.5, -0.1):
        assert f"{name}={value}; it must be at least 0 and below 1" in complaint(**{name: value})
    for value in (0.0, 0.999):
        validate.check_config(run_with(**{name: value}))


MOE = {"model.moe.num_experts": 8}
# rule: (broken, what the message must hold, the change that makes it legal)
RULES = {
    "clip_grad": ({"optim.clip_grad": -1.0}, ["optim.clip_grad=-1.0", "0 to switch"], {"optim.clip_grad": 0.0}),
    "seed below 0": ({"seed": -1}, ["seed=-1", "at least 0"], {"seed": 0}),
    "seed too large": ({"seed": 2**32}, ["seed=4294967296", "2**32"], {"seed": 2**32 - 1}),
    "name empty": ({"name": ""}, ["name=''", "letters"], {"name": "é"}),
    "name with a slash": ({"name": "a/b"}, ["name='a/b'", "letters"], {"name": "a-b_c.d+e=f@2"}),
    "name of a parent": ({"name": ".."}, ["name='..'"], {"name": "a.."}),
    "name of an option": ({"name": "-n"}, ["name='-n'"], {"name": "n-"}),
    "name with a space": ({"name": "a b"}, ["name='a b'"], {"name": "ab"}),
    "name with Slurm's pattern": ({"name": "a%j"}, ["name='a%j'"], {"name": "aj"}),
    "name with a line end": ({"name": "a\n"}, ["name='a\\n'"], {"name": "a"}),
    "name too long": ({"name": "a" * 101}, ["up to 100"], {"name": "a" * 100}),
    "wsd overlap": (
        {"optim.schedule": "wsd", "optim.warmup_fraction": 0.6, "optim.decay_fraction": 0.5},
        ["optim.warmup_fraction=0.6", "optim.decay_fraction=0.5", "exceed 1", "lower"],
        {"optim.schedule": "cosine"},
    ),
    "min_lr": ({"optim.min_lr": 1.0}, ["optim.min_lr=1.0", "optim.lr=0.0003", "set both"], {"optim.lr": 1.0}),
    "hidden_size": (
        {"model.hidden_size": 100},
        ["model.hidden_size=100", "model.num_heads=8", "model.head_dim"],
        {"model.head_dim": 32},
    ),
    "kv heads": ({"model.num_kv_heads": 3}, ["num_heads=8", "num_kv_heads=3", "divisor"], {"model.num_kv_heads": 4}),
    "rope pairs": ({"model.head_dim": 15}, ["dimension is 15", "even"], {"model.position": "learned"}),
    "rope base": ({"model.rope_base": 10000.5}, ["model.rope_base=10000.5", "whole"], {"model.rope_base": 10001.0}),
    "rope scaling": (
        {"model.rope_scaling_factor": 8.0, "model.position": "learned"},
        ["model.rope_scaling_factor=8.0", "model.position=learned", "set model.position=rope"],
        {"model.position": "rope"},
    ),
    "top_k": ({**MOE, "model.moe.top_k": 9}, ["top_k=9", "num_experts=8"], {"model.moe.top_k": 8}),
    "top_k of one": (
        {**MOE, "model.moe.top_k": 1},
        ["model.moe.top_k=1", "softmax", "model.moe.router_score=sigmoid"],
        {"model.moe.router_score": "sigmoid"},
    ),
    "top_k of one, other remedy": (
        {**MOE, "model.moe.top_k": 1},
        ["model.megatron.moe_router_pre_softmax=true"],
        {"model.megatron": {"moe_router_pre_softmax": True}},
    ),
    "experts' bias": ({**MOE, "model.linear_bias": True}, ["linear_bias=true", "false"], {"model.linear_bias": False}),
    "nodes": (
        {"cluster.kind": "slurm", "parallel.data": 12, "train.global_batch_size": 12},
        ["world size 12", "cluster.ranks_per_node=8", "parallel.data"],
        {"cluster.ranks_per_node": 6},
    ),
    "heads over tensor": (
        {"parallel.tensor": 3, "model.ffn_size": 345, "model.vocab_multiple": 384, "model.num_kv_heads": 1},
        ["model.num_heads=8", "parallel.tensor=3", "divisor of 8"],
        {"model.num_heads": 6, "model.head_dim": 16},
    ),
    "kv heads over tensor": (
        {"model.num_heads": 12, "model.head_dim": 16, "model.num_kv_heads": 6, "parallel.tensor": 4},
        ["model.num_kv_heads=6", "parallel.tensor=4", "divide"],
        {"model.num_kv_heads": 2},
    ),
    "ffn over tensor": (
        {"model.ffn_size": 345, "parallel.tensor": 2},
        ["model.ffn_size=345", "parallel.tensor=2"],
        {"model.ffn_size": 346},
    ),
    "shared expert over tensor": (
        {**MOE, "model.moe.shared_expert_ffn_size": 35, "parallel.tensor": 2, "parallel.sequence": True},
        ["model.moe.shared_expert_ffn_size=35", "parallel.tensor=2"],
        {"model.moe.shared_expert_ffn_size": 36},
    ),
    "vocabulary over tensor": (
        {"parallel.tensor": 4, "model.vocab_size": 10, "model.vocab_multiple": 2},
        ["10 padded to 10", "parallel.tensor=4", "model.vocab_multiple"],
        {"model.vocab_multiple": 4},
    ),
    "sequence alone": ({"parallel.sequence": True}, ["parallel.tensor=1", "set parallel.sequence=false"],
                       {"parallel.tensor": 2}),
    "experts without sequence": (
        {**MOE, "parallel.tensor": 2},
        ["parallel.tensor=2", "set parallel.sequence=true"],
        {"parallel.sequence": True},
    ),
    "layers over stages": (
        {"parallel.pipeline": 3},
        ["model.num_layers=4", "parallel.pipeline=3", "virtual_pipeline=1", "divisor of 4"],
        {"model.num_layers": 6},
    ),
    "layers over chunks": (
        {"parallel.pipeline": 2, "parallel.virtual_pipeline": 3},
        ["model.num_layers=4", "= 6"],
        {"parallel.virtual_pipeline": 2},
    ),
    "virtual alone": ({"parallel.virtual_pipeline": 2}, ["virtual_pipeline=2", "pipeline=1"], {"parallel.pipeline": 2}),
    "length over context": (
        {"model.seq_length": 254, "parallel.context": 2},
        ["model.seq_length=254", "parallel.context=2", "round it up to 256"],
        {"model.seq_length": 256},
    ),
    "length over sequence": (
        {"model.seq_length": 255, "parallel.tensor": 2, "parallel.sequence": True},
        ["model.seq_length=255", "parallel.tensor=2", "round it up to 256"],
        {"model.seq_length": 256},
    ),
    "length over both": (
        {"model.seq_length": 252, "parallel.tensor": 2, "parallel.sequence": True, "parallel.context": 2},
        ["model.seq_length=252", "multiple of 8", "parallel.context=2", "parallel.tensor=2", "256"],
        {"model.seq_length": 256},
    ),
    "attention dropout under context": (
        {"model.attention_dropout": 0.1, "parallel.context": 2},
        ["model.attention_dropout=0.1", "parallel.context=2", "set it to 0"],
        {"model.attention_dropout": 0.0, "model.hidden_dropout": 0.1},
    ),
    "experts' layout without experts": ({"parallel.expert": 2, "parallel.data": 2}, ["parallel.expert=2", "to 1"], MOE),
    "expert tensor without experts": (
        {"parallel.expert_tensor": 2, "parallel.data": 2}, ["parallel.expert_tensor=2", "to 1"], MOE),
    "experts over ranks": (
        {**MOE, "parallel.expert": 3, "parallel.data": 3, "train.global_batch_size": 3},
        ["model.moe.num_experts=8", "parallel.expert=3", "divisor of 8"],
        {"model.moe.num_experts": 9},
    ),
    "experts' size": (
        {**MOE, "model.moe.expert_ffn_size": 35, "parallel.expert_tensor": 2, "parallel.data": 2},
        ["35", "parallel.expert_tensor=2"],
        {"model.moe.expert_ffn_size": 36},
    ),
    "ranks of a stage": (
        {**MOE, "parallel.expert": 4, "parallel.data": 2},
        ["= 2 ranks", "parallel.expert=4", "raise parallel.data"],
        {"parallel.data": 4},
    ),
    "batch": (
        {"train.global_batch_size": 9, "train.micro_batch_size": 2, "parallel.data": 2},
        ["train.global_batch_size=9", "train.micro_batch_size=2", "parallel.data=2", "multiple of 4"],
        {"train.global_batch_size": 12},
    ),
    "interleaved": (
        {"parallel.pipeline": 2, "parallel.virtual_pipeline": 2, "train.global_batch_size": 7},
        ["parallel.pipeline=2", "there are 7", "multiple of 2"],
        {"train.global_batch_size": 8},
    ),
    "buckets": (
        {"parallel.bucket_size": 1000},
        ["parallel.bucket_size=1000", "parallel.overlap_grad_reduce=true"],
        {"parallel.overlap_grad_reduce": True},
    ),
    "gather without reduce": (
        {"parallel.overlap_param_gather": True},
        ["parallel.overlap_param_gather=true", "parallel.overlap_grad_reduce=true"],
        {"parallel.overlap_grad_reduce": True},
    ),
    "gather without sharding": (
        {"parallel.overlap_param_gather": True, "parallel.overlap_grad_reduce": True,
         "parallel.distributed_optimizer": False},
        ["parallel.distributed_optimizer=true"],
        {"parallel.distributed_optimizer": True},
    ),
    "signal": (
        {"cluster.time_limit_minutes": 2, "cluster.signal_seconds": 120},
        ["cluster.signal_seconds=120", "cluster.time_limit_minutes=2", "lower"],
        {"cluster.signal_seconds": 119},
    ),
    "validation": (
        {"train.eval_every": 5, "data.split": "100,0,0"},
        ["train.eval_every=5", "'100,0,0'", "train.eval_every=0"],
        {"train.eval_every": 0},
    ),
}  # fmt: skip


@pytest.mark.parametrize("rule", list(RULES))
def test_rule(rule):
    broken, parts, remedy = RULES[rule]
    answer = complaint(**broken)
    assert all(part in answer for part in parts), answer
    assert len(answer.splitlines()) == 1, answer
    validate.check_config(run_with(**{**broken, **remedy}))


@pytest.mark.parametrize(
    "split", ["", "98", "98,2", "98,2,0,0", "a,b,c", "0,1,1", "-1,2,3", "98,-2,0", "nan,0,0", "inf,0,0", "98;2;0"]
)
def test_splits_that_are_none(split):
    answer = complaint(**{"data.split": split})
    assert f"data.split={split!r}" in answer and "98,2,0" in answer


@pytest.mark.parametrize("split", ["98,2,0", "1,0,0", "0.98, 0.01, 0.01", "969,30,1"])
def test_splits(split):
    validate.check_config(run_with(**{"data.split": split}))


def test_all_complaints_come_together():
    answer = complaint(**{"parallel.pipeline": 3, "parallel.sequence": True, "optim.min_lr": 1.0, "model.head_dim": 15})
    assert len(answer.splitlines()) == 4
    assert all(part in answer for part in ("pipeline=3", "sequence", "min_lr", "dimension is 15"))
    answer = complaint(**{"seed": -1, "name": "", "model.vocab_multiple": 0, "parallel.pipeline": 0})
    assert len(answer.splitlines()) == 4


# --- any layout --------------------------------------------------------------------------------------------------

SMALL = st.integers(0, 8)


@settings(max_examples=300)
@given(
    values=st.fixed_dictionaries(
        {
            **{f"parallel.{name}": st.integers(0, 4) for name in
               ("data", "tensor", "pipeline", "virtual_pipeline", "context", "expert", "expert_tensor")},
            "parallel.sequence": st.booleans(),
            "model.num_layers": SMALL,
            "model.num_heads": st.sampled_from([0, 1, 4, 6, 8, 12]),
            "model.num_kv_heads": st.sampled_from([None, 0, 1, 2, 3, 4, 6]),
            "model.head_dim": st.sampled_from([None, 0, 7, 16]),
            "model.ffn_size": st.sampled_from([0, 24, 25, 36]),
            "model.vocab_size": st.sampled_from([0, 10, 120]),
            "model.vocab_multiple": st.sampled_from([0, 1, 12, 128]),
            "model.seq_length": st.sampled_from([0, 16, 24, 25, 96]),
            "model.moe.num_experts": st.sampled_from([0, 0, 4, 6]),
            "model.moe.top_k": st.integers(0, 3),
            "train.global_batch_size": st.sampled_from([0, 1, 8, 12, 24]),
            "train.micro_batch_size": st.integers(0, 2),
        }
    )
)  # fmt: skip
def test_any_layout_is_refused_in_words_or_divides_evenly(values):
    run = run_with(**values)
    try:
        validate.check_config(run)
    except ConfigError:
        return
    _assert_divides(run)


@settings(max_examples=200)
@given(
    tensor=st.sampled_from([1, 2, 4, 3]), pipeline=st.sampled_from([1, 2, 4]), virtual=st.sampled_from([1, 2, 3]),
    context=st.sampled_from([1, 2]), data=st.sampled_from([1, 2, 4]), expert=st.sampled_from([1, 2, 4]),
    expert_tensor=st.sampled_from([1, 2]), experts=st.sampled_from([0, 4, 8]), heads=st.sampled_from([8, 12]),
)  # fmt: skip
def test_plausible_layouts(tensor, pipeline, virtual, context, data, expert, expert_tensor, experts, heads):
    """As above, near the border: about one in ten of these is legal, and those must hold."""
    run = run_with(**{
        "parallel.tensor": tensor, "parallel.pipeline": pipeline, "parallel.virtual_pipeline": virtual,
        "parallel.context": context, "parallel.data": data, "parallel.expert": expert,
        "parallel.expert_tensor": expert_tensor, "parallel.sequence": tensor > 1, "model.moe.num_experts": experts,
        "model.num_layers": 8, "model.num_heads": heads, "model.head_dim": 16, "train.global_batch_size": 16,
    })  # fmt: skip
    try:
        validate.check_config(run)
    except ConfigError:
        assume(False)
    _assert_divides(run)


def _assert_divides(run):
    """The facts that megatron-core and our own code rely on, written down a second time."""
    model, p, train = run.model, run.parallel, run.train
    kv, dim = schema.num_kv_heads(model), schema.head_dim(model)
    assert model.num_heads % p.tensor == 0 and model.num_heads % kv == 0
    assert kv % p.tensor == 0 or p.tensor % kv == 0
    assert dim >= 1 and dim % 2 == 0
    assert schema.padded_vocab_size(model) >= model.vocab_size and schema.padded_vocab_size(model) % p.tensor == 0
    assert model.num_layers % (p.pipeline * p.virtual_pipeline) == 0
    assert model.seq_length % (2 * p.context if p.context > 1 else 1) == 0
    if p.sequence:
        assert p.tensor > 1 and model.seq_length // p.context % p.tensor == 0
    microbatches, rest = divmod(train.global_batch_size, p.data * train.micro_batch_size)
    assert rest == 0 and microbatches >= 1
    assert p.virtual_pipeline == 1 or (p.pipeline > 1 and microbatches % p.pipeline == 0)
    assert schema.world_size(p) % (p.expert * p.expert_tensor * p.pipeline) == 0
    if model.moe.num_experts:
        assert model.moe.num_experts % p.expert == 0 and 1 <= model.moe.top_k <= model.moe.num_experts
        assert schema.expert_ffn_size(model) % p.expert_tensor == 0 and (p.tensor == 1 or p.sequence)
    else:
        assert p.expert == p.expert_tensor == 1 and model.ffn_size % p.tensor == 0


def test_names_handed_through_to_megatron_are_checked_before_torch_is_imported():
    with pytest.raises(ConfigError, match="model.megatron.atention_softmax_in_fp32: .* did you mean attention_softmax"):
        validate.check_config(compose(["model.megatron.atention_softmax_in_fp32=true"]))
    validate.check_config(compose(["model.megatron.attention_softmax_in_fp32=true"]))


def test_the_names_read_from_the_source_are_those_of_the_class(megatron_core):
    import dataclasses

    from megatron.core.transformer import TransformerConfig

    from megatron_ext.config import passthrough

    assert passthrough.field_names() == {field.name for field in dataclasses.fields(TransformerConfig)}
