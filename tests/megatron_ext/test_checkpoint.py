"""Stop, resume, change the layout, damage: what a checkpoint promises."""

from __future__ import annotations

import contextlib
import json
import shutil

import pytest
import torch

from megatron_ext import checkpoint
from megatron_ext.config import rundir
from megatron_ext.runtime.fork import run_ranks
from tests.megatron_ext.training import curve, make_run, tensors, train

DENSE_LAYOUTS = {
    "tp2": ["parallel.tensor=2"],
    "pp2": ["parallel.pipeline=2"],
    "pp2 vpp2": ["parallel.pipeline=2", "parallel.virtual_pipeline=2"],
    "dp2 buckets": ["parallel.data=2", "parallel.bucket_size=3001", "parallel.overlap_grad_reduce=true"],
    "tp2 pp2": ["parallel.tensor=2", "parallel.pipeline=2", "parallel.sequence=true"],
    "dp2 plain": ["parallel.data=2", "parallel.distributed_optimizer=false"],
}
MOE = ["model=mixtral_tiny", "model.moe.num_experts=4", "model.moe.expert_ffn_size=36"]
MOE_LAYOUTS = {
    "ep1": [],
    "ep2": ["parallel.data=2", "parallel.expert=2"],
    "ep2 tp2": ["parallel.data=2", "parallel.expert=2", "parallel.tensor=2", "parallel.sequence=true"],
    "dp2 ep1": ["parallel.data=2"],
}


def exits(results):
    return [code for code, _ in results]


def stopped_at_4(tmp_path, name, *overrides):
    """A run of 8 steps that a signal stopped after 4."""
    run, folder = make_run(tmp_path, *overrides, name=name)
    results = train(run, folder, stop_after=4)
    assert exits(results) == [rundir.EXIT_STOPPED] * len(results), results
    assert rundir.read_verdict(folder)["state"] == "stopped"
    assert checkpoint.latest(rundir.checkpoints(folder)).name == "iter_0000004"
    return run, folder


@pytest.mark.parametrize("layout", ["tp2 pp2", "dp2 buckets", "pp2 vpp2"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_resume_in_the_same_layout_ends_with_the_same_bits(tmp_path, layout, precision):
    """Dropout on: the random generators must continue, too. Every tensor, moments and masters included, is equal."""
    settings = [*DENSE_LAYOUTS[layout], f"train.precision={precision}", "model.hidden_dropout=0.1"]
    settings.append("model.attention_dropout=0.1")
    whole, whole_folder = make_run(tmp_path, *settings, name="whole")
    assert set(exits(train(whole, whole_folder))) == {rundir.EXIT_DONE}
    run, folder = stopped_at_4(tmp_path, "halves", *settings)
    assert set(exits(train(run, folder))) == {rundir.EXIT_DONE}
    assert curve(folder) == curve(whole_folder)
    expected = tensors(rundir.checkpoints(whole_folder) / "iter_0000008")
    found = tensors(rundir.checkpoints(folder) / "iter_0000008")
    assert found.keys() == expected.keys()
    assert any(key.startswith("optimizer.state.exp_avg_sq.") for key in found)
    assert any(key.startswith("optimizer.state.param.") for key in found) == (precision == "bf16")
    assert all(torch.equal(found[key], expected[key]) for key in expected)


@pytest.mark.parametrize("after", [name for name in DENSE_LAYOUTS if name != "tp2 pp2"])
def test_resume_in_another_layout_goes_on_with_the_same_loss(tmp_path, after):
    whole, whole_folder = make_run(tmp_path, name="whole")
    train(whole, whole_folder)
    _, folder = stopped_at_4(tmp_path, "moved", *DENSE_LAYOUTS["tp2 pp2"])
    run, folder = make_run(tmp_path, *DENSE_LAYOUTS[after], name="moved")
    assert set(exits(train(run, folder))) == {0}
    _assert_close(curve(folder), curve(whole_folder))


@pytest.mark.parametrize(
    "before, after", [("ep2", "ep1"), ("ep1", "ep2"), ("ep2 tp2", "dp2 ep1"), ("dp2 ep1", "ep2 tp2")]
)
def test_experts_move_between_layouts_with_their_optimizer_state(tmp_path, before, after):
    """megatron-core 0.16.1 cannot carry expert optimizer state between EP 1 and EP 2 (KeyError 'optimizer')."""
    whole, whole_folder = make_run(tmp_path, *MOE, name="whole")
    train(whole, whole_folder)
    stopped_at_4(tmp_path, "moved", *MOE, *MOE_LAYOUTS[before])
    run, folder = make_run(tmp_path, *MOE, *MOE_LAYOUTS[after], name="moved")
    assert set(exits(train(run, folder))) == {0}
    _assert_close(curve(folder), curve(whole_folder))


def _assert_close(found, expected):
    assert [row[0] for row in found] == [row[0] for row in expected]
    for (step, loss, norm), (_, right_loss, right_norm) in zip(found, expected):
        assert loss == pytest.approx(right_loss, abs=5e-6), step
        assert norm == pytest.approx(right_norm, rel=1e-4), step


def test_saved_optimizer_state_is_the_same_in_every_layout(tmp_path):
    """After 3 steps with several padded buckets of odd sizes the moments equal the single rank's: nothing is misplaced.

    megatron-core 0.16.1's fully_reshardable format corrupts them when a bucket but the last ends in padding.
    """
    states = {}
    for name, settings in {"one": [], **DENSE_LAYOUTS}.items():
        run, folder = make_run(tmp_path, *settings, "train.steps=3", name=name.replace(" ", "_"))
        train(run, folder)
        states[name] = tensors(rundir.checkpoints(folder) / "iter_0000003")
    for name, state in states.items():
        assert state.keys() == states["one"].keys()
        for key, value in state.items():
            torch.testing.assert_close(value, states["one"][key], rtol=2e-4, atol=2e-7, msg=f"{name} {key}")


def test_learning_rate_of_a_resumed_run_follows_its_configuration(tmp_path):
    """megatron-core's scheduler goes on with the rate of the checkpoint when another one is asked for."""
    stopped_at_4(tmp_path, "run", "optim.schedule=constant", "optim.lr=6e-4")
    run, folder = make_run(tmp_path, "optim.schedule=constant", "optim.lr=3e-4", name="run")
    train(run, folder)
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    rates = {line["step"]: line["learning_rate"] for line in lines}
    assert rates[4] == 6e-4 and rates[5] == 3e-4


def test_a_damaged_checkpoint_is_passed_over_and_the_one_before_taken(tmp_path):
    run, folder = make_run(tmp_path, "train.save_every=2", name="run")
    train(run, folder)
    saved = rundir.checkpoints(folder)
    assert sorted(p.name for p in saved.glob("iter_*")) == [
        "iter_0000004",
        "iter_0000006",
        "iter_0000008",
    ]  # keep_last 3
    newest = saved / "iter_0000008"
    data = next(newest.glob("*.distcp"))
    data.write_bytes(data.read_bytes()[:1000])
    assert "bytes" in checkpoint.damage(newest)
    assert checkpoint.latest(saved).name == "iter_0000006"
    (saved / "iter_0000006" / "metadata.json").unlink()
    assert "never finished" in checkpoint.damage(saved / "iter_0000006")
    next((saved / "iter_0000004").glob("*.distcp")).unlink()
    assert "missing" in checkpoint.damage(saved / "iter_0000004")
    assert checkpoint.latest(saved) is None
    assert curve(folder)[-1][0] == 8 and set(exits(train(run, folder))) == {
        0
    }  # starts anew, loses nothing that was whole


@pytest.fixture
def small_disk(tmp_path):
    """A real disk of 1.2 MB under the run's checkpoints/."""
    import subprocess

    saved = tmp_path / "run" / "checkpoints"
    saved.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1200k", "tmpfs", str(saved)], check=True)
    yield saved
    subprocess.run(["umount", str(saved)], check=True)


def test_a_full_disk_fails_the_save_and_leaves_the_last_checkpoint(tmp_path, small_disk):
    run, folder = make_run(tmp_path, "train.save_every=4", name="run")
    results = train(run, folder)
    assert exits(results) == [rundir.EXIT_FAILED]
    assert "No space left" in results[0][1] and "checkpoint of step 8 was not written" in results[0][1]
    assert [p.name for p in small_disk.iterdir() if p.is_dir()] == ["iter_0000004"]
    assert checkpoint.damage(small_disk / "iter_0000004") is None
    assert (small_disk / rundir.LATEST).read_text() == "4\n"
    assert rundir.read_verdict(folder)["state"] == "failed"


def test_a_disk_that_is_full_from_the_start_fails_all_ranks_at_once(tmp_path, small_disk):
    """The first rank alone writes common.pt; the others must not wait for it in a collective."""
    with contextlib.suppress(OSError), open(small_disk / "full", "wb") as file:
        while True:
            file.write(bytes(4096))
            file.flush()
    run, folder = make_run(tmp_path, "parallel.data=2", "train.steps=1", name="run")
    results = train(run, folder, timeout=60)  # a collective would wait for half an hour
    assert exits(results) == [rundir.EXIT_FAILED] * 2
    assert "No space left" in results[0][1] and "another rank failed" in results[1][1]


def test_pruning_keeps_what_was_just_written_although_damaged_ones_are_newer(tmp_path):
    run, folder = make_run(tmp_path, "train.save_every=2", "train.keep_last=2", name="run")
    train(run, folder)
    saved = rundir.checkpoints(folder)
    (saved / "iter_0000008" / "metadata.json").unlink()
    run, folder = make_run(tmp_path, "train.keep_last=1", "train.steps=7", name="run")
    assert set(exits(train(run, folder))) == {0}  # from 6 to 7
    assert [p.name for p in sorted(saved.glob("iter_*"))] == ["iter_0000007"]
    assert len(list(saved.glob("damaged_iter_0000008_*"))) == 1
    assert checkpoint.latest(saved).name == "iter_0000007"


def test_a_checkpoint_of_another_model_is_refused(tmp_path):
    stopped_at_4(tmp_path, "run")
    run, folder = make_run(tmp_path, "model.num_layers=2", name="run")
    ((code, said),) = train(run, folder)
    assert code == rundir.EXIT_BAD_INPUT
    assert "model.num_layers 4 -> 2" in said and "Traceback" not in said


def test_weights_alone_start_another_run(tmp_path):
    source, source_folder = make_run(tmp_path, name="source")
    train(source, source_folder)
    run, folder = make_run(
        tmp_path,
        f"train.init_from={source_folder}",
        "parallel.pipeline=2",
        "optim.lr=1e-9",
        "optim.min_lr=0",
        "optim.weight_decay=0",
        "train.steps=1",
        name="next",
    )
    assert set(exits(train(run, folder))) == {0}
    before, after = (tensors(checkpoint.latest(rundir.checkpoints(f))) for f in (source_folder, folder))
    key = "decoder.layers.mlp.linear_fc1.weight"
    torch.testing.assert_close(after[key], before[key], rtol=0, atol=1e-7)
    explicit = ["model.head_dim=8", "model.num_kv_heads=2", "model.seq_length=64"]  # the same model, said aloud, longer
    longer = make_run(tmp_path, f"train.init_from={source_folder}", *explicit, "train.steps=1", name="longer")
    assert set(exits(train(*longer))) == {0}
    ((code, said),) = train(*make_run(tmp_path, "train.init_from=/nowhere", name="third"))
    assert code == rundir.EXIT_BAD_INPUT and "/nowhere" in said


def test_another_batch_size_on_resume_neither_repeats_nor_skips_samples(tmp_path):
    _, folder = stopped_at_4(tmp_path, "run")  # 4 steps of 8
    run, folder = make_run(tmp_path, "train.global_batch_size=16", "train.steps=6", name="run")
    assert set(exits(train(run, folder))) == {0}  # 2 steps of 16
    state = torch.load(rundir.checkpoints(folder) / "iter_0000006" / "common.pt", weights_only=True)
    assert (state["step"], state["consumed_samples"]) == (6, 4 * 8 + 2 * 16)
    assert run_ranks(1, _samples_of_step, run, 4, 32)[0] == list(range(32, 48))


def _samples_of_step(run, step, consumed):
    from megatron_ext.data.loader import Loader
    from megatron_ext.runtime import parallel

    loader = Loader(run, parallel.start(run), "train", step, consumed)
    return [index for indices in loader._samples(step) for index in indices]


def test_leftovers_of_a_killed_save_are_cleared(tmp_path):
    run, folder = make_run(tmp_path, name="run")
    saved = rundir.checkpoints(folder)
    (saved / ".iter_0000003.tmp").mkdir(parents=True)
    (saved / ".iter_0000003.tmp" / "__0_0.distcp").write_bytes(b"half")
    train(run, folder)
    assert sorted(p.name for p in saved.iterdir()) == ["iter_0000008", rundir.LATEST]
    shutil.rmtree(folder)
