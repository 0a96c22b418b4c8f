"""Layout to layout: bit for bit, optimizer included, and the trainer goes on from it as from its own."""

from __future__ import annotations

import json

import pytest
import torch

from checkpoints_tools.formats import torch_dist
from megatron_ext.config import load, rundir
from megatron_ext.config.schema import Model, Parallel
from tests.checkpoints_tools.samples import assert_same, checkpoint, convert, run_program, weights, with_optimizer
from tests.megatron_ext.training import curve, make_run, tensors, train

TP2_PP2 = ["parallel.tensor=2", "parallel.pipeline=2", "parallel.data=2"]
TP2_PP2 += ["parallel.sequence=true", "parallel.bucket_size=3001", "parallel.overlap_grad_reduce=true"]
DROPOUT = ["model.hidden_dropout=0.1", "model.attention_dropout=0.1", "train.precision=bf16"]
TINY = Model(num_layers=4, hidden_size=16, ffn_size=24, num_heads=4, num_kv_heads=2, vocab_size=100)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on eight gloo ranks, stopped after 4 of 8 steps: bf16, ZeRO fragments, dropout."""
    folder = tmp_path_factory.mktemp("trained")
    run, run_folder = make_run(folder, *TP2_PP2, *DROPOUT, name="source")
    results = train(run, run_folder, stop_after=4)
    assert {code for code, _ in results} == {rundir.EXIT_STOPPED}, results
    return run_folder


def test_there_and_back_is_bitwise_and_there_differs_in_its_files(trained, tmp_path, capsys):
    source = rundir.checkpoints(trained) / "iter_0000004"
    assert convert(trained, tmp_path / "one", "--data", 1, "--tensor", 1, "--pipeline", 1) == 0
    assert "belong to the layout that saved them (data 2, tensor 2, pipeline 2)" in capsys.readouterr().err
    assert_same(tensors(tmp_path / "one"), tensors(source))
    assert [path.name for path in (tmp_path / "one").glob("*.distcp")] == ["__0_0.distcp"]
    was, moved = load.read(source / "run.yaml"), load.read(tmp_path / "one" / "run.yaml")
    assert moved.model == was.model and (moved.parallel.tensor, moved.parallel.sequence) == (1, False)
    assert convert(tmp_path / "one", tmp_path / "back", "--data", 2, "--tensor", 2, "--pipeline", 2) == 0
    assert "random generators: kept" in capsys.readouterr().err
    assert_same(tensors(tmp_path / "back"), tensors(source))
    assert len(list((tmp_path / "back").glob("*.distcp"))) == 8  # every rank has a share of the optimizer state
    assert convert("verify", source, tmp_path / "one") == 0
    certificates = [json.loads((tmp_path / name / "conversion.json").read_text()) for name in ("one", "back")]
    hashes = [{entry["target"]: entry["sha256"] for entry in found["tensors"]} for found in certificates]
    assert hashes[0] == hashes[1] and len(hashes[0]) == len(tensors(source))
    objects = [set(torch_dist.Reader(folder).objects) for folder in (source, tmp_path / "one", tmp_path / "back")]
    assert objects[0] == objects[1] == objects[2]


@pytest.mark.slow
def test_the_trainer_resumes_from_a_converted_checkpoint_with_the_same_bits(trained, tmp_path):
    """Loaded by dist_checkpointing at its default strictness, in the new layout and, converted back, in the old one."""
    straight, straight_folder = make_run(tmp_path, *TP2_PP2, *DROPOUT, name="straight")
    assert {code for code, _ in train(straight, straight_folder)} == {0}
    source = trained
    for name, sizes, settings in (
        ("one", [1, 1, 1], DROPOUT),
        ("back", [2, 2, 2], [*TP2_PP2, *DROPOUT]),
    ):
        run, folder = make_run(tmp_path, *settings, name=name)
        target = rundir.checkpoints(folder) / "iter_0000004"
        options = [part for pair in zip(("--data", "--tensor", "--pipeline"), sizes) for part in pair]
        assert convert(source, target, *options) == 0
        source = target
        results = train(run, folder)
        assert {code for code, _ in results} == {0}, results
        assert [row[0] for row in curve(folder)] == [5, 6, 7, 8]
    found = tensors(rundir.checkpoints(folder) / "iter_0000008")
    assert_same(found, tensors(rundir.checkpoints(straight_folder) / "iter_0000008"))


@pytest.mark.parametrize(
    "sizes",
    [{"tensor": 4}, {"tensor": 2, "pipeline": 2, "virtual-pipeline": 2}, {"pipeline": 4, "data": 3}, {}],
    ids=str,
)
def test_any_legal_layout_keeps_every_tensor(tmp_path, sizes):
    """TP 4 is more than the two key-value heads. The source has one box a tensor, over all layers."""
    made = with_optimizer(weights(TINY, torch.bfloat16))
    checkpoint(tmp_path / "source", made, TINY)
    options = [part for name, size in sizes.items() for part in (f"--{name}", size)]
    assert convert(tmp_path / "source", tmp_path / "target", *options) == 0
    assert_same(tensors(tmp_path / "target"), made)


@pytest.mark.parametrize(
    "sizes, message",
    [
        (["--tensor", 3], "model.num_heads=4 is not a multiple of parallel.tensor=3"),
        (["--pipeline", 3], "model.num_layers=4 is not a multiple of parallel.pipeline=3"),
        (["--virtual-pipeline", 2], "parallel.virtual_pipeline=2 with parallel.pipeline=1"),
        (["--expert", 2], "parallel.expert=2"),
        (["--data", 0], "parallel.data=0"),
    ],
)
def test_layouts_that_the_model_does_not_allow_are_refused(tmp_path, capsys, sizes, message):
    checkpoint(tmp_path / "source", weights(TINY, torch.bfloat16), TINY)
    assert convert(tmp_path / "source", tmp_path / "target", *sizes) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_corrupt_masters_are_refused(tmp_path, capsys):
    """As Megatron-LM pull request 5077 has them: shifted by some elements, the tail zero. Weights still export."""
    made = with_optimizer(weights(TINY, torch.bfloat16))
    key = "optimizer.state.param.decoder.layers.mlp.linear_fc2.weight"
    shifted = made[key].flatten().roll(-96)
    shifted[-96:] = 0
    made[key] = shifted.view_as(made[key])
    checkpoint(tmp_path / "source", made, TINY)
    assert convert(tmp_path / "source", tmp_path / "target") == 2
    error = capsys.readouterr().err
    assert "does not round to the weight for decoder.layers.mlp.linear_fc2.weight:" in error
    assert not (tmp_path / "target").exists()
    assert convert(tmp_path / "source", tmp_path / "target", "--to", "hf") == 0


def test_unknown_tensors_are_kept_and_said(tmp_path, capsys):
    made = {**weights(TINY, torch.float32), "adapter.scale": torch.tensor(3.0), "adapter.w": torch.ones(3, 2).t()}
    checkpoint(tmp_path / "source", made, TINY)
    assert convert(tmp_path / "source", tmp_path / "target", "--tensor", 2) == 0
    assert "adapter.scale: nothing is known of how it is divided" in capsys.readouterr().err
    assert_same(tensors(tmp_path / "target"), made)


@pytest.mark.slow
def test_neither_megatron_nor_a_process_group_is_needed(tmp_path):
    checkpoint(tmp_path / "source", with_optimizer(weights(TINY, torch.bfloat16)), TINY, Parallel())
    program = (
        "import sys; sys.modules['megatron'] = None\n"
        "from checkpoints_tools.cli import main\n"
        "code = main(sys.argv[1:])\n"
        "import torch.distributed as dist\n"
        "assert not dist.is_initialized()\n"
        "names = [name for name, module in sys.modules.items() if module]\n"
        "assert not [name for name in names if name.startswith(('transformers', 'megatron.'))]\n"
        "sys.exit(code)\n"
    )
    for arguments in (["source", "two", "--tensor", "2"], ["two", "hf", "--to", "hf"], ["hf", "again", "--from", "hf"]):
        places = [tmp_path / name for name in arguments[:2]]
        result = run_program(program, *places, *arguments[2:])
        assert result.returncode == 0, result.stderr
