"""Llama to and from Hugging Face: bit for bit, formula by formula, and the same logits in Megatron."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from checkpoints_tools.formats import huggingface
from checkpoints_tools.hf import llama
from checkpoints_tools.hf.rules import query_key_value
from megatron_ext.config import load
from megatron_ext.config.schema import Activation, Model, Moe, Norm, Parallel, Position, Precision
from megatron_ext.runtime.fork import run_ranks
from tests.checkpoints_tools import samples
from tests.checkpoints_tools.samples import assert_same, convert, huggingface_tensors
from tests.megatron_ext.training import tensors

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SHAPES = {
    "gqa": {},
    "mha": {"num_key_value_heads": 8},
    "mqa": {"num_key_value_heads": 1},
    "wide heads": {"head_dim": 16},
    "tied": {"tie_word_embeddings": True},
    "vocab 256": {"vocab_size": 256},
    "eps, base": {"rms_norm_eps": 3e-6, "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
    "llama3 rope": {
        "rope_parameters": {**LLAMA3, "original_max_position_embeddings": 8192, "rope_theta": 500000.0},
        "max_position_embeddings": 16384,
    },
}


def _logits(folder: Path) -> torch.Tensor:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        return model(torch.arange(40).reshape(2, 20) * 3 % 131).logits


@pytest.mark.parametrize("name", SHAPES)
def test_huggingface_to_ours_and_back(tmp_path, name):
    """Every tensor, the key set, the dtype, the configuration's meaning, and so the logits; through TP 2."""
    source = samples.llama(tmp_path / "source", **SHAPES[name])
    layout = [] if name == "mqa" else ["--tensor", 2]
    assert convert(source, tmp_path / "ours", "--from", "hf", *layout) == 0
    assert convert(tmp_path / "ours", tmp_path / "back", "--to", "hf") == 0
    assert_same(huggingface_tensors(tmp_path / "back"), huggingface_tensors(source))
    configs = [json.loads((folder / "config.json").read_text()) for folder in (source, tmp_path / "back")]
    silent = {"transformers_version", "pad_token_id", "pretraining_tp", "bos_token_id", "eos_token_id"}
    assert {k: v for k, v in configs[0].items() if k not in silent} == {
        k: configs[1][k] for k in configs[0] if k not in silent
    }
    assert torch.equal(_logits(tmp_path / "back"), _logits(source))
    assert convert("verify", source, tmp_path / "ours") == 0
    assert convert("verify", tmp_path / "back", source) == 0


@pytest.mark.parametrize("tied", [False, True])
def test_ours_to_huggingface_and_back(tmp_path, tied):
    """The other direction, with the padding rows zero as the trainer leaves them."""
    model = Model(num_layers=2, hidden_size=16, ffn_size=24, num_heads=4, vocab_size=100, tie_embeddings=tied)
    made = samples.weights(model, torch.float32)
    if tied:
        del made["output_layer.weight"]
    for name, tensor in made.items():
        if "embedding" in name or "output_layer" in name:
            tensor[100:] = 0
    samples.checkpoint(tmp_path / "ours", made, model)
    assert convert(tmp_path / "ours", tmp_path / "hf", "--to", "hf") == 0
    assert convert(tmp_path / "hf", tmp_path / "back", "--from", "hf") == 0
    assert_same(tensors(tmp_path / "back"), made)
    run = load.read(tmp_path / "back" / "run.yaml")
    assert run.model == model and run.train.precision == Precision.fp32  # None stays None: presets compare equal


def test_padding_that_is_not_zero_is_cut_and_said(tmp_path, capsys):
    model = Model(num_layers=1, hidden_size=16, ffn_size=24, num_heads=4, vocab_size=100)
    samples.checkpoint(tmp_path / "ours", samples.with_optimizer(samples.weights(model, torch.float32)), model)
    assert convert(tmp_path / "ours", tmp_path / "hf", "--to", "hf") == 0
    said = capsys.readouterr().err
    assert "output_layer.weight: its padding rows, cut off, were not zero" in said
    assert "bytes of optimizer state" in said
    assert huggingface_tensors(tmp_path / "hf")["lm_head.weight"].shape == (100, 16)


@pytest.mark.parametrize("heads, groups, dim", [(8, 2, 8), (8, 8, 4), (8, 1, 8), (6, 3, 16), (4, 2, 6)])
def test_formula_q(heads, groups, dim):
    """For each group its query heads, then its key, then its value; written out row by row."""
    model = Model(num_heads=heads, num_kv_heads=groups, head_dim=dim, hidden_size=10)
    q, k, v = (torch.randn(n * dim, 10) for n in (heads, groups, groups))
    expected = []
    for group in range(groups):
        for head in range(group * heads // groups, (group + 1) * heads // groups):
            expected += [q[head * dim + row] for row in range(dim)]
        for tensor in (k, v):
            expected += [tensor[group * dim + row] for row in range(dim)]
    rule = query_key_value("ours", ("q", "k", "v"), model)
    assert rule.shape == (len(expected), 10)
    assert torch.equal(rule.join([q, k, v]), torch.stack(expected))
    assert all(torch.equal(a, b) for a, b in zip(rule.split(torch.stack(expected)), (q, k, v)))


@pytest.mark.parametrize("name", ["gqa", "tied", "wide heads", "eps, base", "llama3 rope"])
def test_megatron_computes_the_same_logits(tmp_path, name):
    """train.init_from's loader at its default strictness, fp32, against transformers."""
    source = samples.llama(tmp_path / "source", torch.float32, **SHAPES[name])
    assert convert(source, tmp_path / "ours", "--from", "hf") == 0
    (found,) = run_ranks(1, _megatron_logits, tmp_path / "ours")
    expected = _logits(source)
    assert expected.std() > 0.1
    assert torch.allclose(torch.from_numpy(found)[..., :131], expected, atol=2e-5, rtol=1e-4)


def _megatron_logits(folder: Path) -> Any:
    from megatron_ext import checkpoint
    from megatron_ext.model.build import build
    from megatron_ext.optim.adamw import AdamW
    from megatron_ext.runtime import parallel

    run = load.read(folder / "run.yaml")
    grid = parallel.start(run)
    chunks = build(run, grid)
    checkpoint.load_weights(run, checkpoint.resolve(str(folder)), chunks, AdamW(chunks, run, grid), grid)
    tokens = torch.arange(40).reshape(2, 20) * 3 % 131
    with torch.no_grad():
        chunks[0].eval()
        return chunks[0](tokens, torch.arange(20).expand(2, -1), None).numpy()  # a tensor would be sent by reference


def test_shards_have_an_index_and_transformers_reads_them(tmp_path):
    """And the other way: transformers' own shards."""
    source = samples.llama(tmp_path / "source", shard_size="60KB")
    assert len(list(source.glob("*.safetensors"))) > 2
    assert convert(source, tmp_path / "ours", "--from", "hf") == 0
    assert convert(tmp_path / "ours", tmp_path / "back", "--to", "hf", "--shard-size", "50KB") == 0
    shards = sorted(tmp_path.glob("back/*.safetensors"))
    assert len(shards) > 3 and all(path.stat().st_size < 60_000 for path in shards)
    index = json.loads((tmp_path / "back" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in huggingface_tensors(source).values())
    assert_same(huggingface_tensors(tmp_path / "back"), huggingface_tensors(source))
    assert torch.equal(_logits(tmp_path / "back"), _logits(source))


def _edit(folder: Path, **entries: object) -> None:
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), **entries}
    path.write_text(json.dumps({name: value for name, value in config.items() if value != "absent"}))


@pytest.mark.parametrize(
    "entries, message",
    [
        ({"model_type": "gpt_oss"}, "model_type='gpt_oss'"),
        ({"architectures": ["LlamaModel"]}, "architectures=['LlamaModel']"),
        ({"attention_bias": True}, "attention_bias=True"),
        ({"mlp_bias": True}, "mlp_bias=True"),
        ({"hidden_act": "gelu"}, "hidden_act=gelu"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}}, "rope_type='yarn'"),
        ({"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 8.0}}, "rope_type='linear'"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 10000.5}}, "rope_theta=10000.5"),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "partial_rotary_factor=0.5"),
        (
            {"rope_parameters": {**LLAMA3, "original_max_position_embeddings": 32, "rope_theta": 5e5}},
            "original_max_position_embeddings=32 (only 8192)",
        ),
        ({"hidden_size": "absent"}, "config.json has no 'hidden_size'"),
        ({"intermediate_size": 80}, "gate_proj.weight is [96, 64], its configuration says [80, 64]"),
        ({"num_hidden_layers": 5}, "model.layers.4.input_layernorm.weight is missing"),
        ({"num_hidden_layers": 3}, "model.layers.3.input_layernorm.weight [64] has no place in this model"),
        ({"tie_word_embeddings": True}, "lm_head.weight differs from"),
    ],
)
def test_what_cannot_be_built_is_refused_by_name(tmp_path, capsys, entries, message):
    source = samples.llama(tmp_path / "source")
    _edit(source, **entries)
    assert convert(source, tmp_path / "ours", "--from", "hf") == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_the_words_of_transformers_4_mean_the_same(tmp_path):
    config = json.loads((samples.llama(tmp_path / "source") / "config.json").read_text())
    old = {k: v for k, v in config.items() if k not in ("rope_parameters", "dtype", "head_dim")}
    old.update(torch_dtype="bfloat16", rope_theta=10000.0, rope_scaling=None)
    assert llama.from_config(old) == llama.from_config(config)
    three = {**LLAMA3, "original_max_position_embeddings": 8192}
    new = {**config, "rope_parameters": {**three, "rope_theta": 5e5}}
    assert llama.from_config({**old, "rope_theta": 5e5, "rope_scaling": three}) == llama.from_config(new)
    written = llama.to_config(llama.from_config(new), torch.bfloat16)
    assert written["rope_scaling"] == three and written["rope_theta"] == 5e5
    assert written["rope_parameters"] == {**three, "rope_theta": 5e5}


@pytest.mark.parametrize(
    "changes",
    [
        {"norm": Norm.layernorm},
        {"activation": Activation.gelu},
        {"position": Position.learned},
        {"linear_bias": True},
        {"qkv_bias": True},
        {"qk_norm": True},
        {"moe": Moe(num_experts=8)},
        {"rope_base": 10000.5},
        {"megatron": {"window_size": 128}},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_model_that_is_no_llama_is_refused_by_name(changes):
    with pytest.raises(ValueError, match=rf"^model\.{next(iter(changes))}.*not a Llama model"):
        llama.to_config(Model(**changes), torch.bfloat16)
    llama.to_config(Model(megatron={"recompute_num_layers": 1}), torch.bfloat16)


def _rewrite(folder: Path, change) -> None:
    found = load_file(folder / "model.safetensors")
    change(found)
    save_file(found, folder / "model.safetensors", metadata={"format": "pt"})


def test_left_over_and_mixed_tensors_are_named(tmp_path, capsys):
    source = samples.llama(tmp_path / "source")
    _rewrite(source, lambda found: found.update({"model.layers.0.extra": torch.ones(2)}))
    assert convert(source, tmp_path / "ours", "--from", "hf") == 2
    assert "one dtype is needed, found" in capsys.readouterr().err
    _rewrite(source, lambda found: found.update({"model.layers.0.extra": torch.ones(2).bfloat16()}))
    assert convert(source, tmp_path / "ours", "--from", "hf") == 2
    assert "model.layers.0.extra [2] has no place in this model" in capsys.readouterr().err
    _rewrite(source, lambda found: found.update({name: t.half() for name, t in found.items() if found.pop("_", 1)}))
    _rewrite(source, lambda found: found.pop("model.layers.0.extra"))
    assert convert(source, tmp_path / "ours", "--from", "hf") == 2
    assert "is in float16, training is in bfloat16 or float32" in capsys.readouterr().err


def test_what_the_rest_implies_is_left_out_and_said(tmp_path, capsys):
    """Old rotary tables; a head that equals the embedding it is tied to."""
    source = samples.llama(tmp_path / "source", tie_word_embeddings=True)
    table = "model.layers.0.self_attn.rotary_emb.inv_freq"

    def change(found):
        found.update({table: torch.ones(4), "lm_head.weight": found["model.embed_tokens.weight"].clone()})

    _rewrite(source, change)
    assert convert(source, tmp_path / "ours", "--from", "hf") == 0
    said = capsys.readouterr().err
    assert f"left out: {table}" in said and "left out: lm_head.weight" in said
    assert "output_layer.weight" not in tensors(tmp_path / "ours")


def test_the_index_decides_between_two_copies(tmp_path, capsys):
    source = samples.llama(tmp_path / "source", shard_size="60KB")
    index = json.loads((source / huggingface.INDEX).read_text())["weight_map"]
    right = source / index["model.norm.weight"]
    other = next(path for path in source.glob("*.safetensors") if path != right)
    save_file({**load_file(other), "model.norm.weight": torch.zeros(64).bfloat16()}, other, metadata={"format": "pt"})
    assert convert(source, tmp_path / "ours", "--from", "hf") == 0
    assert f"left out: model.norm.weight in {other.name}" in capsys.readouterr().err
    found = tensors(tmp_path / "ours")["decoder.final_layernorm.weight"]
    assert torch.equal(found, load_file(right)["model.norm.weight"])


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda f: (f / "model-00002-of-00005.safetensors").unlink(), "model-00002-of-00005.safetensors is missing"),
        (lambda f: _truncate(f / "model-00002-of-00005.safetensors"), "model-00002-of-00005.safetensors is truncated"),
        (lambda f: (f / "model-00001-of-00005.safetensors").write_bytes(b"{}"), "is truncated or no safetensors file"),
        (lambda f: (f / "config.json").write_text("{"), "config.json is not readable as JSON"),
        (lambda f: (f / "config.json").write_text("[]"), "config.json holds no JSON object"),
        (lambda f: (f / "config.json").unlink(), "config.json is missing"),
        (lambda f: (f / huggingface.INDEX).write_text('{"weight_map": {"a": "../x"}}'), "no weight_map of plain file"),
        (lambda f: (f / huggingface.INDEX).unlink(), "neither model.safetensors nor model.safetensors.index.json"),
    ],
)
def test_damaged_folders_are_refused(tmp_path, capsys, damage, message):
    source = samples.llama(tmp_path / "source", shard_size="60KB")
    assert len(list(source.glob("*.safetensors"))) == 5
    damage(source)
    assert convert(source, tmp_path / "ours", "--from", "hf") == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_headers_are_checked(tmp_path):
    source = samples.llama(tmp_path / "source")
    path = source / "model.safetensors"
    content = path.read_bytes()
    for wrong, message in ((b"F8_E5M2", "dtype F8_E5M2"), (b"not", "damaged header")):
        text = json.dumps({"x": {"dtype": wrong.decode(), "shape": [1], "data_offsets": [0, 1]}}).encode()
        if wrong == b"not":
            text = b"{not json"
        path.write_bytes(len(text).to_bytes(8, "little") + text + b"0")
        with pytest.raises(ValueError, match=message):
            huggingface.Reader(source)
    path.write_bytes(content)
    shutil.copyfile(path, source / "other.safetensors")
    (source / huggingface.INDEX).write_text(json.dumps({"weight_map": {"nowhere": "other.safetensors"}}))
    with pytest.raises(ValueError, match="lists nowhere in other.safetensors, but it is not there"):
        huggingface.Reader(source)


@pytest.mark.parametrize("text, size", [("5GB", 5 * 10**9), ("500 mb", 5 * 10**8), ("1.5KB", 1500), ("7", 7)])
def test_sizes(text, size):
    assert huggingface.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "5GiB", "0", "nan"])
def test_what_is_no_size(text):
    with pytest.raises(ValueError, match="--shard-size"):
        huggingface.parse_size(text)


def test_parallel_defaults_and_dtype_are_kept(tmp_path):
    assert convert(samples.llama(tmp_path / "hf"), tmp_path / "ours", "--from", "hf", "--pipeline", 2) == 0
    run = load.read(tmp_path / "ours" / "run.yaml")
    assert run.parallel == Parallel(pipeline=2) and run.train.precision == Precision.bf16
    assert {tensor.dtype for tensor in tensors(tmp_path / "ours").values()} == {torch.bfloat16}
