"""The trainer as a program: exit codes, verdicts, signals, what it writes, what it refuses."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from megatron_ext.config import rundir
from megatron_ext.runtime.fork import RankFailed, run_ranks
from tests.megatron_ext.training import _one_rank, curve, make_run, train

REPOSITORY = Path(__file__).resolve().parents[2]


def program(run_folder, **environment):
    """The real command, in its own process."""
    return subprocess.Popen(
        [sys.executable, "-m", "megatron_ext.train", str(run_folder)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=REPOSITORY,
        env={**os.environ, **environment},
    )  # fmt: skip


def test_a_whole_run(tmp_path, capsys):
    """Loss begins near ln(vocabulary) and falls; every sink tells the same story."""
    run, folder = make_run(tmp_path, "train.steps=30", "optim.lr=1e-2", "train.eval_every=10", "data.split='80,20,0'")
    ((code, said),) = train(run, folder)
    assert code == rundir.EXIT_DONE, said
    losses = [loss for _, loss, _ in curve(folder)]
    assert abs(losses[0] - math.log(120)) < 0.1 and losses[-1] < losses[0] - 0.5
    assert rundir.read_verdict(folder) == {"state": "done", "step": 30, "reason": "all steps made"}
    assert not (folder / "lock.json").exists()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    validation = {line["step"]: line["validation_loss"] for line in lines if "validation_loss" in line}
    assert list(validation) == [10, 20, 30] and validation[30] < validation[10]
    first = next(line for line in said.splitlines() if line.startswith("step"))
    for part in ("/30", "loss", "lr", "grad norm", "tokens/s", "ETA"):
        assert part in first
    assert _scalars(folder / "tensorboard", "loss") == pytest.approx(losses, rel=1e-6)


def _scalars(folder, name):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return [event.value for event in events.Scalars(name)]


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGUSR2"])
def test_a_signal_to_the_process_saves_and_asks_to_go_on(tmp_path, name):
    run, folder = make_run(tmp_path, "train.steps=100000")
    process = program(folder, OMP_NUM_THREADS="1")
    seen = _read_until(process, "step       3/")
    process.send_signal(signal.SIGCONT)  # Slurm sends it along; it must change nothing
    process.send_signal(getattr(signal, name))
    rest, _ = process.communicate(timeout=60)
    assert process.returncode == rundir.EXIT_STOPPED, seen + rest
    verdict = rundir.read_verdict(folder)
    assert verdict["state"] == "stopped" and name in verdict["reason"] and verdict["step"] >= 3
    assert (rundir.checkpoints(folder) / f"iter_{verdict['step']:07d}" / "metadata.json").is_file()


def test_signals_until_the_very_end_do_not_spoil_a_stop(tmp_path):
    """torchrun ends the slower ranks with SIGTERM when the first has left; Python may be shutting down by then."""
    run, folder = make_run(tmp_path, "train.steps=100000")
    process = program(folder, OMP_NUM_THREADS="1")
    _read_until(process, "step       2/")
    while process.poll() is None:
        process.send_signal(signal.SIGTERM)
        time.sleep(0.002)
    process.communicate()
    assert process.returncode == rundir.EXIT_STOPPED


def test_a_signal_during_start_up_is_not_lost(tmp_path):
    """torch is still being imported; the run saves at step 0 and stops, instead of dying."""
    run, folder = make_run(tmp_path, "train.steps=100000")
    process = program(folder, OMP_NUM_THREADS="1")
    _wait_for(lambda: "SigCgt" in Path(f"/proc/{process.pid}/status").read_text() and _catches_term(process.pid))
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == rundir.EXIT_STOPPED, said
    assert rundir.read_verdict(folder)["step"] <= 1


def _catches_term(pid):
    caught = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt"))
    return int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1


def _wait_for(condition, seconds=30.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def _read_until(process, text):
    seen = ""
    for line in process.stdout:
        seen += line
        if text in line:
            return seen
    raise AssertionError(f"ended without {text!r}:\n{seen}")


def test_a_signal_to_one_rank_stops_all_after_the_same_step(tmp_path):
    run, folder = make_run(tmp_path, "parallel.pipeline=2", "parallel.data=2", "train.steps=8")
    results = train(run, folder, stop_after=3)
    assert [code for code, _ in results] == [rundir.EXIT_STOPPED] * 4
    assert rundir.read_verdict(folder)["step"] == 3


def test_a_second_job_in_the_same_folder_is_refused_and_the_first_goes_on(tmp_path):
    run, folder = make_run(tmp_path, "train.steps=100000")
    first = program(folder, OMP_NUM_THREADS="1")
    _read_until(first, "step       2/")
    second = program(folder, OMP_NUM_THREADS="1")
    said, _ = second.communicate(timeout=60)
    assert second.returncode == rundir.EXIT_BAD_INPUT and "in use" in said and str(first.pid) in said
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=60)
    assert first.returncode == rundir.EXIT_STOPPED


@pytest.mark.parametrize(
    "damage, words",
    [
        (lambda folder: (folder / "shard.bin").unlink(), ["shard.bin", "does not exist", "llm-preprocess"]),
        (lambda folder: (folder / "shard.bin").write_bytes(b"12"), ["shard.bin", "has 2 bytes"]),
        (lambda folder: (folder / "shard.idx").write_bytes(b"nonsense" * 9), ["shard.idx", "not a Megatron index"]),
        (lambda folder: (folder / "run" / "run.yaml").unlink(), ["run.yaml", "llm-launch"]),
        (lambda folder: (folder / "run" / "run.yaml").write_text("model: [1"), ["run.yaml"]),
        (lambda folder: (folder / "run" / "run.yaml").write_text("modle: {}"), ["modle", "did you mean model"]),
    ],
    ids=["no shard", "short shard", "foreign index", "no run.yaml", "broken run.yaml", "unknown key"],
)
def test_bad_input_is_one_clear_message_and_exit_code_2(tmp_path, damage, words):
    run, folder = make_run(tmp_path)
    damage(tmp_path)
    ((code, said),) = run_ranks(1, _one_rank, folder, None)
    assert code == rundir.EXIT_BAD_INPUT
    assert all(word in said for word in words) and "Traceback" not in said, said
    assert not list(rundir.checkpoints(folder).glob("*"))


def test_token_ids_beyond_the_vocabulary_are_named(tmp_path):
    run, folder = make_run(tmp_path, "model.vocab_size=64")
    ((code, said),) = train(run, folder)
    assert code == rundir.EXIT_BAD_INPUT and "model.vocab_size=64" in said and "another tokenizer" in said


def test_the_wrong_number_of_ranks_is_named(tmp_path):
    run, folder = make_run(tmp_path, "parallel.data=2")
    ((code, said),) = run_ranks(1, _one_rank, folder, None)
    assert code == rundir.EXIT_BAD_INPUT and "1 ranks were started" in said and "needs 2" in said


def test_usage_without_a_folder():
    process = subprocess.run(
        [sys.executable, "-m", "megatron_ext.train"], capture_output=True, text=True, cwd=REPOSITORY
    )
    assert process.returncode == 2 and "usage" in process.stderr


def test_a_failed_rank_leaves_its_traceback(tmp_path):
    """Transformer Engine is not installed on this machine: to demand it fails on every rank."""
    run, folder = make_run(tmp_path, "model.implementation=transformer_engine", "parallel.data=2")
    results = train(run, folder)
    assert [code for code, _ in results] == [rundir.EXIT_BAD_INPUT] * 2
    notes = sorted(rundir.failures(folder).glob("rank_*.txt"))
    assert [note.name for note in notes] == ["rank_00000.txt", "rank_00001.txt"]
    assert "wrong input: model.implementation=transformer_engine" in notes[0].read_text()
    assert rundir.read_verdict(folder)["state"] == "failed"


def test_gradients_that_are_not_finite_leave_the_weights_alone_and_end_the_run(tmp_path):
    run, folder = make_run(tmp_path, "train.steps=20")
    code, said, changed = run_ranks(1, _with_broken_gradients, folder)[0]
    assert code == rundir.EXIT_FAILED and "5 steps in a row" in said and "lower optim.lr" in said
    assert not changed, "the weights were touched, or the run did not end at once"
    assert [step for step, _, _ in curve(folder)] == [1, 2, 3, 4]


def _with_broken_gradients(folder):
    """Every backward pass ends in a NaN, as a broken kernel or overflow would make it."""
    import torch

    from megatron_ext.optim.adamw import AdamW

    original, seen = AdamW.grad_norm, []

    def broken(self):
        self.shards[0].grad[0] = float("nan")
        seen.append(self.masters[0].clone())
        return original(self)

    AdamW.grad_norm = broken
    code, said = _one_rank(folder, None)
    return code, said, len(seen) != 5 or not torch.equal(seen[0], seen[-1])


def test_bf16_follows_fp32(tmp_path):
    losses = {}
    for precision in ("fp32", "bf16"):
        run, folder = make_run(tmp_path, f"train.precision={precision}", name=precision)
        train(run, folder)
        losses[precision] = [loss for _, loss, _ in curve(folder)]
    assert losses["bf16"] == pytest.approx(losses["fp32"], abs=0.02)
    assert losses["bf16"] != losses["fp32"]


def test_label_smoothing_raises_the_training_loss_only(tmp_path):
    found = {}
    for smoothing in (0.0, 0.2):
        settings = [f"train.label_smoothing={smoothing}", "train.eval_every=8", "train.steps=8", "optim.lr=1e-9"]
        settings += ["optim.min_lr=0", "data.split='80,20,0'"]
        run, folder = make_run(tmp_path, *settings, name=f"s{smoothing}")
        train(run, folder)
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        found[smoothing] = lines[-1]["validation_loss"]
    assert found[0.2] == pytest.approx(found[0.0], abs=1e-5)


def test_a_rank_that_dies_ends_the_others(tmp_path):
    with pytest.raises(RankFailed, match="rank 1"):
        run_ranks(2, _die_on_rank_one, timeout=60)


def _die_on_rank_one():
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def test_ranks_that_hang_time_out():
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"\[0, 1\]"):
        run_ranks(2, time.sleep, 60, timeout=1)
    assert time.monotonic() - began < 10
