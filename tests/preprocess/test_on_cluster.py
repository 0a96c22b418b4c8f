"""llm-preprocess as Slurm job arrays on a real cluster of four nodes, each with a network of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Iterator, List

import pytest

from preprocess import manifest
from preprocess.verify import problems
from tests.cluster.cluster import Cluster
from tests.preprocess.conftest import WORDS, content, nothing_made, write_jsonl
from tests.slurm import conftest as launching

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quiet_cluster")]
quiet_cluster = launching.quiet_cluster
wait_until, slurm = launching.wait_until, launching.slurm
SLOW = "{classifier: {path: 'tests.preprocess.steps:slow_score', threshold: 0}}"


@pytest.fixture
def overrides(tmp_path: Path, sentencepiece_model: str) -> List[str]:
    """Eight files, half of whose documents are in another file too."""
    for n in range(8):
        records = [{"id": f"{n}-{i}", "text": f"{i if i % 2 else (n, i)} {WORDS}"} for i in range(20)]
        write_jsonl(tmp_path / f"in{n}.jsonl", records)
    return [
        "data=demo",
        f"data.source.inputs=[{tmp_path}/in*.jsonl]",
        f"data.source.output={tmp_path}/out",
        f"data.source.steps=[{SLOW}, duplicates]",
        f"data.tokenizer.path={sentencepiece_model}",
        "data.tokenizer.train_vocab_size=0",
        "data.source.workers=1",
    ]


CLUSTER = ["cluster=test_slurm", "data.source.tasks=4"]


def start(overrides: List[str]) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "preprocess.cli", *overrides]
    root = launching.REPOSITORY
    return subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: "subprocess.Popen[str]", seconds: float = 200) -> str:
    out, err = process.communicate(timeout=seconds)
    assert process.returncode == 0, err
    return out


@pytest.fixture
def third_node(quiet_cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, whose third node comes back after the test."""
    yield quiet_cluster
    quiet_cluster.node("n3", "on")
    quiet_cluster.resume("n3")


def parts_done(folder: Path) -> List[Path]:
    return sorted((folder / "out.work/pass-0").glob("part-*.json"))


def test_power_loss_of_a_node_costs_the_part_in_work_and_no_byte(
    tmp_path: Path, overrides: List[str], third_node: Cluster
) -> None:
    """Tasks spread over nodes one each; the lost one is requeued, finished parts stay, the bytes are those of one
    process here."""
    process = start([*overrides, *CLUSTER, "cluster.exclusive=true"])
    wait_until("task on n3", lambda: "n3" in slurm("squeue", "-h", "-t", "R", "-o", "%N"))
    wait_until("finished part", lambda: parts_done(tmp_path))
    third_node.node("n3", "off")
    before = {path.name: path.stat().st_mtime_ns for path in parts_done(tmp_path)}
    kept = {}

    def follow() -> bool:
        kept.update({path.name: path.stat().st_mtime_ns for path in parts_done(tmp_path)})
        return process.poll() is not None

    wait_until("end of the run", follow, 200)
    finish(process)
    assert before and all(kept[name] == time for name, time in before.items()), "a finished part was made again"
    assert not list(problems(str(tmp_path / "out")))
    on_cluster = content(tmp_path)
    made = manifest.read(str(tmp_path / "out"))
    assert (made.read, made.kept, made.dropped) == (160, 90, {"duplicates: duplicate": 70})
    local = [one.replace("/out", "/here") if "output" in one else one for one in overrides]
    finish(start([*local, "data.source.workers=2"]))
    assert content(tmp_path, "here") == on_cluster and manifest.read(str(tmp_path / "here")).stamp == made.stamp


def test_a_task_that_fails_fails_the_run_and_the_same_command_goes_on(tmp_path: Path, overrides: List[str]) -> None:
    bad = tmp_path / "in5.jsonl"
    good = bad.read_text()
    bad.write_text("{broken\n" + good)
    process = start([*overrides, *CLUSTER])
    out, err = process.communicate(timeout=200)
    assert process.returncode == 1 and f"{bad}:1: " in err and "--max-bad-records" in err
    assert nothing_made(tmp_path) and slurm("squeue", "-h") == ""
    done = {path: path.stat().st_mtime_ns for path in parts_done(tmp_path) if "5" not in path.name}
    assert done
    bad.write_text(good)
    process = start([*overrides, *CLUSTER])
    wait_until("the part that was missing", lambda: (tmp_path / "out.work/pass-0/part-00005.json").exists())
    assert all(path.stat().st_mtime_ns == time for path, time in done.items() if path.exists())
    finish(process)
    assert not list(problems(str(tmp_path / "out")))


def test_the_chain_goes_on_without_the_command_and_the_same_command_joins_it(
    tmp_path: Path, overrides: List[str]
) -> None:
    assert "submitted as jobs" in start([*overrides, *CLUSTER, "--detach"]).communicate(timeout=60)[1]
    jobs = slurm("squeue", "-h", "-o", "%F", "-r").split()
    finish(start([*overrides, *CLUSTER]))
    assert set(slurm("squeue", "-h", "-t", "all", "-o", "%F", "-r").split()) >= set(jobs)
    assert len(set(jobs)) == 5, "map, search, decide, map, merge; none was submitted twice"
    assert not list(problems(str(tmp_path / "out")))


def test_a_request_that_slurm_refuses_is_wrong_input(tmp_path: Path, overrides: List[str]) -> None:
    process = start([*overrides, *CLUSTER, "cluster.partition=nowhere"])
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2 and "invalid partition" in err and slurm("squeue", "-h") == ""


def test_other_settings_do_not_join_a_chain_that_is_under_way(tmp_path: Path, overrides: List[str]) -> None:
    assert start([*overrides, *CLUSTER, "--detach"]).wait(60) == 0
    process = start([*overrides, *CLUSTER, "data.source.append_eod=false"])
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2 and "with other settings" in err and "scancel" in err
