"""Every YAML loads; the real models have the published sizes and legal layouts for 8 to 1024 GPUs."""

from __future__ import annotations

import pytest

from megatron_ext.config import megatron, schema, validate
from megatron_ext.config.load import CONFIGS, GROUPS, compose
from megatron_ext.runtime import parallel
from megatron_ext.runtime.fork import run_ranks

PRESETS = [(group, path.stem) for group in GROUPS for path in sorted((CONFIGS / group).glob("*.yaml"))]


@pytest.mark.parametrize("group, choice", PRESETS)
def test_every_preset_loads(group, choice):
    run = compose([f"{group}={choice}"])
    if group in ("model", "optim", "train", "cluster"):
        validate.check_config(run)  # with the defaults of all other groups


def test_every_yaml_of_the_groups_was_tried():
    tried = {CONFIGS / group / f"{choice}.yaml" for group, choice in PRESETS}
    assert tried and all(path in tried for group in GROUPS for path in (CONFIGS / group).rglob("*.y*ml"))


@pytest.mark.parametrize(
    "model, published",
    [("llama3_8b", 8.03e9), ("llama3_70b", 70.6e9), ("mixtral_8x7b", 46.7e9), ("qwen3_30b_a3b", 30.5e9)],
)
def test_real_models_have_the_published_number_of_parameters(model, published):
    assert megatron.parameters(compose([f"model={model}"])) == pytest.approx(published, rel=0.005)


def test_active_parameters_of_the_mixtures():
    """FLOPs a token without attention are 6 for each weight it meets: 12.9e9 of Mixtral, 3.3e9 of Qwen3 30B-A3B."""
    for model, active in (("mixtral_8x7b", 12.9e9), ("qwen3_30b_a3b", 3.35e9)):
        run = compose([f"model={model}", "model.seq_length=1"])
        embedding = run.model.vocab_size * run.model.hidden_size  # looked up, not multiplied
        assert megatron.flops_per_token(run) / 6 + embedding == pytest.approx(active, rel=0.01)


# Not here: a 70B model on 8 GPUs. Weights, gradients and optimizer state are 18 bytes a parameter, 1.27 TB.
LAYOUTS = [
    *[("llama3_8b", f"gpu{gpus}_8b", gpus) for gpus in (8, 64, 256, 1024)],
    *[("llama3_70b", f"gpu{gpus}_70b", gpus) for gpus in (64, 256, 1024)],
    *[("mixtral_8x7b", f"gpu{gpus}_moe", gpus) for gpus in (8, 64, 256, 1024)],
    *[("qwen3_30b_a3b", f"gpu{gpus}_moe", gpus) for gpus in (8, 64, 256, 1024)],
]
BATCH = {8: 128, 64: 256, 256: 512, 1024: 1024}  # sequences: 1 to 8 million tokens


@pytest.mark.parametrize("model, layout, gpus", LAYOUTS)
def test_layouts_of_real_models(model, layout, gpus):
    batch = BATCH[gpus]
    run = compose([f"model={model}", f"parallel={layout}", "cluster=slurm", f"train.global_batch_size={batch}"])
    assert schema.world_size(run.parallel) == gpus and run.cluster.ranks_per_node == 8
    validate.check_config(run)


def test_every_preset_for_many_gpus_is_among_them():
    named = {layout for _, layout, _ in LAYOUTS}
    assert named == {choice for group, choice in PRESETS if group == "parallel" and choice.startswith("gpu")}


SMALL = ["model.num_layers=2", "model.hidden_size=32", "model.num_heads=4", "model.vocab_size=120",
         "model.seq_length=16", "model.vocab_multiple=128", "train.precision=fp32"]  # fmt: skip
KINDS = {
    "llama": ["model=llama_tiny"],
    "llama, tied, biases of qkv": ["model=llama_tiny", "model.tie_embeddings=true", "model.qkv_bias=true"],
    "llama, qk norm, wide heads": ["model=llama_tiny", "model.qk_norm=true", "model.head_dim=12"],
    "gpt": ["model=gpt_tiny"],
    "gpt, untied, qk norm": ["model=gpt_tiny", "model.tie_embeddings=false", "model.qk_norm=true"],
    "gpt without biases": ["model=gpt_tiny", "model.linear_bias=false", "model.qkv_bias=false"],
    "gpt, biases but of qkv": ["model=gpt_tiny", "model.qkv_bias=false"],
    "swiglu, biases": ["model=llama_tiny", "model.linear_bias=true"],
    "mixtral": ["model=mixtral_tiny"],
    "mixtral, shared expert, layernorm": ["model=mixtral_tiny", "model.moe.shared_expert_ffn_size=24",
                                          "model.moe.expert_ffn_size=20", "model.norm=layernorm"],
    "mixtral, gelu": ["model=mixtral_tiny", "model.activation=gelu"],
}  # fmt: skip


@pytest.mark.parametrize("kind", list(KINDS))
def test_parameters_are_counted_as_they_are_built(kind):
    run = compose([*KINDS[kind], *SMALL])
    assert run_ranks(1, _elements, run) == [megatron.parameters(run)]


@pytest.mark.parametrize("model", ["llama_tiny", "gpt_tiny", "mixtral_tiny"])
def test_tiny_models_have_the_parameters_that_are_counted(model):
    run = compose([f"model={model}"])
    assert run_ranks(1, _elements, run) == [megatron.parameters(run)]


def _elements(run):
    """Elements of all parameters of the model, without the padding of the vocabulary."""
    from megatron_ext.model.build import build

    (chunk,) = build(run, parallel.start(run))
    padding = (schema.padded_vocab_size(run.model) - run.model.vocab_size) * run.model.hidden_size
    tables = 1 if run.model.tie_embeddings else 2
    return sum(parameter.numel() for parameter in chunk.parameters()) - tables * padding
