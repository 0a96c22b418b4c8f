"""The command: help, JSON, exit codes, verify."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from megatron_ext.config.schema import Model
from tests.checkpoints_tools import samples
from tests.checkpoints_tools.samples import checkpoint, convert, run_program, weights, with_optimizer

TINY = Model(num_layers=2, hidden_size=16, ffn_size=24, num_heads=4, num_kv_heads=2, vocab_size=100)
NORM = "decoder.final_layernorm.weight"


@pytest.fixture
def source(tmp_path):
    return checkpoint(tmp_path / "source", with_optimizer(weights(TINY, torch.bfloat16)), TINY)


@pytest.mark.parametrize("arguments", [["--help"], ["verify", "--help"]])
def test_help_has_examples_and_needs_no_torch(arguments):
    program = (
        "import sys; sys.modules['torch'] = None\nfrom checkpoints_tools.cli import main\nmain(sys.argv[1:])"  # blocked
    )
    result = run_program(program, *arguments)
    assert result.returncode == 0, result.stderr
    assert "examples:" in result.stdout and "llm-convert verify runs/a" in result.stdout


@pytest.mark.parametrize("arguments", [[], ["a"], ["a", "b", "--to", "onnx"], ["a", "b", "--tensor", "two"]])
def test_wrong_arguments_exit_with_2(arguments):
    with pytest.raises(SystemExit) as stopped:
        convert(*arguments)
    assert stopped.value.code == 2


def test_layout_options_without_meaning_are_refused(source, tmp_path, capsys):
    assert convert(source, tmp_path / "out", "--to", "hf", "--virtual-pipeline", 2) == 2
    assert "--virtual-pipeline has no meaning with --to hf" in capsys.readouterr().err
    assert convert(source, tmp_path / "out", "--to", "hf", "--shard-size", "big") == 2
    assert "--shard-size 'big' is not a size" in capsys.readouterr().err


def test_json_is_one_line_and_the_certificate_names_every_tensor(source, tmp_path, capsys):
    assert convert(source, tmp_path / "out", "--tensor", 2, "--json") == 0
    (line,) = capsys.readouterr().out.splitlines()
    facts = json.loads(line)
    made = torch.load(source / "common.pt"), with_optimizer(weights(TINY, torch.bfloat16))
    assert facts["total"] == {"tensors": len(made[1]), "bytes": sum(t.nbytes for t in made[1].values())}
    assert facts["layout"]["tensor"] == 2 and "tensors" not in facts
    entries = json.loads((tmp_path / "out" / "conversion.json").read_text())["tensors"]
    assert {entry["target"] for entry in entries} == made[1].keys()
    assert convert(source, tmp_path / "hf", "--to", "hf") == 0
    entries = {e["target"]: e for e in json.loads((tmp_path / "hf" / "conversion.json").read_text())["tensors"]}
    assert entries["model.layers.1.self_attn.k_proj.weight"]["sources"] == [
        "decoder.layers.self_attention.linear_qkv.weight[1]"
    ]
    assert convert(tmp_path / "hf", tmp_path / "back", "--from", "hf") == 0
    entries = {e["target"]: e for e in json.loads((tmp_path / "back" / "conversion.json").read_text())["tensors"]}
    assert entries["decoder.layers.mlp.linear_fc1.weight"]["sources"] == [
        "model.layers.*.mlp.gate_proj.weight",
        "model.layers.*.mlp.up_proj.weight",
    ]


def test_verify_names_what_differs(source, tmp_path, capsys):
    changed = with_optimizer(weights(TINY, torch.bfloat16))
    changed["decoder.layers.mlp.linear_fc2.weight"][1, 3, 5] += 1
    changed[NORM] = changed[NORM].float()
    del changed[f"optimizer.state.exp_avg.{NORM}"]
    other = checkpoint(tmp_path / "other", changed, TINY)
    assert convert("verify", source, other) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"optimizer.state.exp_avg.{NORM}: only in the first",
        "decoder.layers.mlp.linear_fc2.weight: values differ at [1, 3, 5]",
        f"{NORM}: bfloat16 [16] and float32 [16]",
        "3 differences; 35 compared, 112,160 bytes",
    ]
    assert convert("verify", other, source, "--weights", "--json") == 1
    facts = json.loads(capsys.readouterr().out)
    assert not facts["same"] and facts["compared"] == 9 and len(facts["different"]) == 2


def test_the_same_weights_with_other_settings_are_another_model(source, tmp_path, capsys):
    tensors = with_optimizer(weights(TINY, torch.bfloat16))
    checkpoint(tmp_path / "longer", tensors, replace(TINY, seq_length=512))
    checkpoint(tmp_path / "other", tensors, replace(TINY, rope_base=5e5))
    assert convert("verify", source, tmp_path / "longer") == 0
    assert convert("verify", source, tmp_path / "other") == 1
    assert "configuration, model.rope_base: 10000.0 and 500000.0" in capsys.readouterr().out


def test_verify_is_about_bits(tmp_path):
    """NaN equals itself; -0.0 is not 0.0."""
    values = {"x": torch.tensor([float("nan"), 0.0])}
    one, same = (checkpoint(tmp_path / name, values, TINY) for name in ("one", "same"))
    signed = checkpoint(tmp_path / "signed", {"x": torch.tensor([float("nan"), -0.0])}, TINY)
    assert convert("verify", one, same) == 0
    assert convert("verify", one, signed) == 1


def test_verify_across_formats(source, tmp_path, capsys):
    assert convert(source, tmp_path / "hf", "--to", "hf") == 0
    assert convert("verify", tmp_path / "hf", source) == 0
    said = capsys.readouterr()
    assert "bytes of optimizer state are only in" in said.err and "the same; 21 compared" in said.out
    path = tmp_path / "hf" / "model.safetensors"
    found = load_file(path)
    found["model.layers.1.self_attn.k_proj.weight"][2, 4] += 1
    save_file(found, path)
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    (tmp_path / "hf" / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-6}))
    assert convert("verify", source, tmp_path / "hf") == 1
    said = capsys.readouterr()
    assert "model.layers.1.self_attn.k_proj.weight: values differ at [2, 4]" in said.out
    assert "configuration, rms_norm_eps: 1e-05 and 1e-06" in said.out


def test_verify_against_the_certificate(source, tmp_path, capsys):
    assert convert("verify", source) == 2
    assert "has no conversion.json to be checked against" in capsys.readouterr().err
    assert convert(source, tmp_path / "out") == 0
    assert convert("verify", tmp_path / "out") == 0
    path = tmp_path / "out" / "conversion.json"
    facts = json.loads(path.read_text())
    facts["tensors"] = [{**e, "sha256": "0"} if e["target"] == NORM else e for e in facts["tensors"]][1:]
    path.write_text(json.dumps(facts))
    capsys.readouterr()
    assert convert("verify", tmp_path / "out") == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith(": only in the checkpoint") and lines[1] == f"{NORM}: content is not what was written"
    path.write_text("{}")
    assert convert("verify", tmp_path / "out") == 2


def test_two_huggingface_folders(tmp_path, capsys):
    one, other = samples.llama(tmp_path / "one"), samples.llama(tmp_path / "other", shard_size="50KB")
    assert convert("verify", one, other) == 0
    for folder in (one, other):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "model_type": "unheard_of"}))
    assert convert("verify", one, other) == 0
    assert "model_type 'unheard_of' is unknown here" in capsys.readouterr().err
