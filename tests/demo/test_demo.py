"""The demonstration at small size, and that it says so when a stage does not do what it promises."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from demo import __main__ as demo
from demo import plan as stages
from demo.chart import Curve, draw
from demo.journal import ROOT, Journal, StageFailed
from megatron_ext.config import load, rundir

SMALL = [
    "data.tokenizer.train_vocab_size=300",
    "model.vocab_size=300",
    "model.vocab_multiple=4",
    "model.hidden_size=32",
    "model.ffn_size=64",
    "model.seq_length=64",
    "train.steps=120",
    "train.eval_every=60",
    "train.eval_batches=1",
]


@pytest.fixture
def text(tmp_path):
    """80 short documents, a few kilobytes."""
    path = tmp_path / "text.jsonl"
    words = "the module returns a list of names and raises an error for each file that it cannot open".split()
    with open(path, "w") as file:
        for number in range(80):
            body = " ".join(words[(number * k + k) % len(words)] for k in range(1, 120))
            file.write(json.dumps({"id": str(number), "text": f"Document {number}. {body}."}) + "\n")
    return path


def run_demo(*arguments):
    command = [sys.executable, "-m", "demo", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.slow
def test_every_stage_on_a_small_text(tmp_path, text):
    """All eight commands run; then the report, and the whole once more over what the first has left. Sixty steps after
    the half, so that the signal finds the run still at work however fast the machine is."""
    folder = tmp_path / "demo"
    arguments = ["--folder", folder, "--bar", "6.5", f"data.source.inputs=[{text}]", *SMALL]
    answer = run_demo(*arguments)
    assert answer.returncode == 0, answer.stdout[-3000:] + answer.stderr[-3000:]
    record = json.loads((folder / "stages.json").read_text())
    assert [entry["name"] for entry in record["stages"]] == [
        "preprocess", "train", "resume", "convert", "export", "verify", "logits", "generate",
    ]  # fmt: skip
    assert [entry["exit_code"] for entry in record["stages"]] == [0, 75, 0, 0, 0, 0, 0, 0]
    for entry in record["stages"]:
        assert f"$ {entry['command']}\n" in answer.stdout
    facts = {entry["name"]: entry["figures"] for entry in record["stages"]}
    assert 60 <= facts["train"]["stopped_at"] < 120 and facts["resume"]["steps"] == 120
    assert facts["logits"]["largest_difference"] < stages.LOGITS_LIMIT
    page = (folder / "report.html").read_text()
    assert "http" not in page.replace("http-equiv", "")  # nothing is fetched
    assert f"stopped after step {facts['train']['stopped_at']}" in page
    again = run_demo(*arguments, "--bar", "1.0")  # afresh; and a bar that cannot be met is a failure, by name
    assert again.returncode == rundir.EXIT_FAILED
    assert "not below 1.0" in again.stderr
    assert not (folder / "report.html").exists()
    assert not (folder / "lock.json").exists()


def test_a_bad_override_is_refused_before_anything_is_written(tmp_path):
    answer = run_demo("--folder", tmp_path / "demo", "train.stepz=3")
    assert answer.returncode == rundir.EXIT_BAD_INPUT
    assert "train.steps" in answer.stderr and "Traceback" not in answer.stderr
    assert not (tmp_path / "demo").exists()


def test_a_folder_in_use_is_refused_and_left_alone(tmp_path):
    folder = tmp_path / "demo"
    (folder / "train").mkdir(parents=True)
    lock = rundir.Lock(folder / "train")
    lock.acquire()
    answer = run_demo("--folder", folder)
    assert answer.returncode == rundir.EXIT_BAD_INPUT
    assert "in use" in answer.stderr
    assert (folder / "train" / "lock.json").exists()


def test_a_stage_that_fails_is_named_and_recorded(tmp_path):
    journal = Journal(tmp_path / "stages.json", 2)
    with pytest.raises(StageFailed, match=r"stage 1 \(look\) ended with exit code 3"):
        journal.run("look", "Look", ["sh", "-c", "exit 3"])
    assert json.loads((tmp_path / "stages.json").read_text())["stages"][0]["exit_code"] == 3


def test_a_command_that_is_not_installed_says_what_installs_it(tmp_path):
    with pytest.raises(StageFailed, match="make venv"):
        Journal(tmp_path / "stages.json", 1).run("look", "Look", ["llm-nothing-of-the-kind"])


def test_a_command_is_stopped_by_sigterm_once(tmp_path, capfd):
    script = "trap 'echo stopping; exit 75' TERM; while true; do sleep 0.05; done"
    asked = []
    entry = Journal(tmp_path / "stages.json", 1).run(
        "train", "Train", ["bash", "-c", script], expected=75, stop_when=lambda: asked.append(1) or len(asked) > 2
    )
    assert entry["exit_code"] == 75
    assert len(asked) == 3
    assert capfd.readouterr().out.count("kill -TERM") == 1


class Told:
    """A journal whose commands have been run already."""

    def run(self, name, *rest, **named):
        return {"name": name, "seconds": 0.0}

    def tell(self, entry, says, figures):
        self.figures = figures


@pytest.fixture
def trained(tmp_path):
    """A plan over a run folder whose metrics a test writes itself."""
    run = load.compose(["train.steps=4"])
    (tmp_path / "train").mkdir()
    return stages.Plan(tmp_path, run, [], bar=5.0)


def write_metrics(plan, steps, validation, state="done"):
    rows = [{"step": step, "loss": 8.3 - step, "tokens_per_second": 100.0} for step in steps]
    rows.append({"step": steps[-1], "validation_loss": validation})
    rundir.metrics(plan.train).write_text("".join(json.dumps(row) + "\n" for row in rows))
    rundir.write_verdict(plan.train, state, steps[-1], "")


def test_a_loss_above_the_bar_fails(trained):
    write_metrics(trained, [1, 2, 3, 4], validation=5.0)
    with pytest.raises(StageFailed, match="5.000 after 4 steps, not below 5.0"):
        stages.train_on(trained, Told())


def test_a_step_lost_or_repeated_by_the_resume_fails(trained):
    for steps in ([1, 2, 4], [1, 2, 2, 3, 4]):
        write_metrics(trained, steps, validation=4.0)
        with pytest.raises(StageFailed, match="each of the 4 steps once"):
            stages.train_on(trained, Told())


def test_a_first_loss_that_is_no_guess_fails(trained):
    write_metrics(trained, [1, 2], validation=4.0, state="stopped")  # 7.3, where ln(4096) is 8.3
    with pytest.raises(StageFailed, match="first loss is 7.300"):
        stages.train_and_stop(trained, Told())


def test_a_growing_metrics_file_is_read_up_to_its_last_whole_line(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2, "lo')
    assert stages.read_metrics(tmp_path / "metrics.jsonl") == [{"step": 1}]
    assert stages.read_metrics(tmp_path / "none.jsonl") == []


@pytest.mark.parametrize("width", [400, 880])
def test_the_chart_shows_every_point_inside_its_frame(width):
    train = [(step, 8.3 - 3 * step / 100) for step in range(1, 101)]
    curve = Curve(train, [(50, 6.7), (100, 5.31)], 8.32, "blind guess", 5.6, 50)
    drawing = draw(curve, width, 300)
    lines = dict(re.findall(r'<polyline class="([\w-]+)" points="([^"]+)"', drawing))
    assert {name: len(points.split()) for name, points in lines.items()} == {"each": 100, "train": 100, "held-out": 2}
    for points in lines.values():
        for point in points.split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= width and 0 <= y <= 300
    ends = [float(y) for y in re.findall(r'<text class="label (?:train|held-out)" x="[^"]+" y="([^"]+)"', drawing)]
    assert abs(ends[0] - ends[1]) >= 17.9  # 5.30 and 5.31 are not written over each other


def test_the_folder_is_named_from_the_repository_where_it_lies_in_it():
    assert demo._from_root(ROOT / "runs" / "other") == demo.DEFAULT.parent / "other"
