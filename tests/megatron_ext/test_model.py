"""The model: the same initial weights and the same training in every layout, for every variant of its parts."""

from __future__ import annotations

import math

import pytest
import torch

from benchmarks.equivalence import LOSS_LIMIT, NORM_LIMIT, compare, trajectory
from megatron_ext import checkpoint
from megatron_ext.config import megatron, rundir, schema
from megatron_ext.config.load import ConfigError, compose
from megatron_ext.runtime import parallel
from megatron_ext.runtime.fork import run_ranks
from tests.megatron_ext.training import make_run, tensors

MOE = ["model=mixtral_tiny", "model.moe.num_experts=4", "model.moe.expert_ffn_size=36"]
EVERYTHING = ["parallel.data=2", "parallel.tensor=2", "parallel.pipeline=2", "parallel.sequence=true"]


def initial_weights(run, folder):
    run_ranks(schema.world_size(run.parallel), _save_untrained, run, rundir.checkpoints(folder))
    return tensors(rundir.checkpoints(folder) / "iter_0000000")


def _save_untrained(run, folder):
    from megatron_ext.model.build import build
    from megatron_ext.optim.adamw import AdamW

    grid = parallel.start(run)
    chunks = build(run, grid)
    checkpoint.save(run, folder, checkpoint.Progress(), chunks, AdamW(chunks, run, grid), grid)


@pytest.mark.parametrize("init", list(schema.Init))
@pytest.mark.parametrize(
    "kind, layout",
    [([], EVERYTHING), (["model=gpt_tiny"], EVERYTHING), (MOE, [*EVERYTHING, "parallel.expert=2"]),
     ([], ["parallel.pipeline=2", "parallel.virtual_pipeline=2"])],
    ids=["llama 3d", "gpt tied 3d", "mixtral ep", "llama vpp"],
)  # fmt: skip
def test_initial_weights_are_the_same_bits_in_every_layout(tmp_path, init, kind, layout):
    one = initial_weights(*make_run(tmp_path, *kind, f"model.init={init}", name="one"))
    split = initial_weights(*make_run(tmp_path, *kind, f"model.init={init}", *layout, name="split"))
    assert one.keys() == split.keys()
    assert all(torch.equal(one[key], split[key]) for key in one)


def test_initial_weights_have_the_stated_spread(tmp_path):
    big = ["model.hidden_size=128", "model.ffn_size=200", "model.vocab_size=1000", "model.vocab_multiple=64"]
    for init in schema.Init:
        w = initial_weights(*make_run(tmp_path, *big, f"model.init={init}", name=str(init)))
        fc1, fc2 = w["decoder.layers.mlp.linear_fc1.weight"], w["decoder.layers.mlp.linear_fc2.weight"]
        if init == schema.Init.xavier_uniform:
            bound = math.sqrt(6 / (128 + 200))
            assert fc1.abs().max() <= bound and fc1.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.02)
        else:
            assert fc1.std().item() == pytest.approx(0.02, rel=0.02)
            scale = math.sqrt(2 * 4) if init == schema.Init.scaled_normal else 1
            assert fc2.std().item() == pytest.approx(0.02 / scale, rel=0.02)
        assert (w["decoder.layers.mlp.linear_fc1.layer_norm_weight"] == 1).all()
        embedding = w["embedding.word_embeddings.weight"]
        assert embedding.shape == (1024, 128) and (embedding[1000:] == 0).all() and (embedding[999] != 0).any()
        assert not torch.equal(fc1[0], fc1[1]), "layers draw different numbers"


def test_another_seed_gives_other_weights(tmp_path):
    a = initial_weights(*make_run(tmp_path, name="a"))
    b = initial_weights(*make_run(tmp_path, "seed=4321", name="b"))
    assert not torch.equal(a["output_layer.weight"], b["output_layer.weight"])


VARIANTS = {
    "qk norm, qkv bias": (["model.qk_norm=true", "model.qkv_bias=true"], EVERYTHING),
    "head dimension of its own": (["model.head_dim=16"], ["parallel.tensor=2", "parallel.sequence=true"]),
    "tensor wider than kv heads": (["model.num_kv_heads=2"], ["parallel.tensor=4"]),
    "label smoothing": (["train.label_smoothing=0.1"], ["parallel.tensor=2", "parallel.sequence=true"]),
    "rope scaling": (["model.rope_scaling_factor=8"], ["parallel.context=2"]),
    "layernorm, gelu, biases": (["model=gpt_tiny"], ["parallel.tensor=2", "parallel.sequence=true"]),
    "learned positions under context": (["model=gpt_tiny"], ["parallel.context=2"]),
    "recompute": (["train.recompute=full"], EVERYTHING),
    "shared expert": ([*MOE, "model.moe.shared_expert_ffn_size=36"], ["parallel.data=2", "parallel.expert=2",
                      "parallel.tensor=2", "parallel.sequence=true"]),
    "sigmoid router": ([*MOE, "model.moe.router_score=sigmoid"], ["parallel.data=2", "parallel.expert=2"]),
    "bigger micro-batches": (["train.micro_batch_size=2"], ["parallel.data=2", "parallel.pipeline=2"]),
}  # fmt: skip


@pytest.mark.parametrize("name", list(VARIANTS))
def test_every_variant_trains_in_parallel_as_on_one_rank(tmp_path, name):
    settings, layout = VARIANTS[name]
    one, _ = make_run(tmp_path, *settings, "train.steps=5")
    split, _ = make_run(tmp_path, *settings, *layout, "train.steps=5")
    loss, norm = compare(split, run_ranks(1, trajectory, one)[0])
    assert loss <= LOSS_LIMIT and norm <= NORM_LIMIT, (loss, norm)


def test_attention_refuses_packed_sequences_rather_than_ignore_them(tmp_path):
    run, _ = make_run(tmp_path)
    assert "takes no bias and no packed sequences" in run_ranks(1, _with_packed_sequences, run)[0]


def _with_packed_sequences(run):
    from megatron.core.packed_seq_params import PackedSeqParams

    from megatron_ext.model.attention.full import CausalAttention
    from megatron_ext.model.build import build

    (chunk,) = build(run, parallel.start(run))
    (attention, *_) = [module for module in chunk.modules() if isinstance(module, CausalAttention)]
    x_SBHD = torch.zeros(32, 1, 4, 16)
    try:
        attention(x_SBHD, x_SBHD, x_SBHD, None, packed_seq_params=PackedSeqParams())
    except NotImplementedError as error:
        return str(error)


def test_unknown_and_conflicting_passthrough_names_are_refused():
    with pytest.raises(ConfigError, match="no such field; did you mean attention_softmax_in_fp32"):
        megatron.transformer_config(compose(["+model.megatron.atention_softmax_in_fp32=true"]))
    with pytest.raises(ConfigError, match="set from our own fields"):
        megatron.transformer_config(compose(["+model.megatron.num_layers=3"]))
    config = megatron.transformer_config(compose(["+model.megatron.attention_softmax_in_fp32=true"]))
    assert config.attention_softmax_in_fp32 is True


@pytest.mark.parametrize("field", ["window_size=[4,0]", "moe_layer_freq=2", "layernorm_zero_centered_gamma=true"])
def test_fields_that_only_transformer_engine_reads_are_refused_without_it(tmp_path, field):
    run, _ = make_run(tmp_path, *(MOE if "moe" in field else []), f"model.megatron.{field}")
    assert "needs Transformer Engine's layers" in run_ranks(1, _build_error, run)[0]


def _build_error(run):
    from megatron_ext.model.build import build

    try:
        build(run, parallel.start(run))
    except ConfigError as error:
        return str(error)
    return "built"


def test_flops_of_llama3_8b_are_six_per_weight_and_attention():
    run = compose(["model=llama3_8b"])
    weights = 8.03e9 - 128256 * 4096  # the embedding is looked up, not multiplied
    attention = 12 * 32 * 4096 * 8192 / 2
    assert megatron.flops_per_token(run) == pytest.approx(6 * weights + attention, rel=1e-3)
