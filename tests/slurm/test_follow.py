"""Which states of a job are its end. squeue is faked: it says one line of a script at each question."""

from __future__ import annotations

from pathlib import Path
from typing import Callable, List

import pytest

from slurm import follow
from slurm.tail import Tail


@pytest.fixture
def squeue_says(
    tmp_path: Path, fake_slurm: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> Callable[[List[str]], None]:
    monkeypatch.setattr(follow, "POLL_S", 0.0)

    def says(lines: List[str]) -> None:
        (tmp_path / "lines").write_text("\n".join(lines) + "\n")
        fake_slurm(
            "squeue",
            f"line=$(head -1 {tmp_path}/lines); sed -i 1d {tmp_path}/lines\n"
            'case "$line" in error*) echo "$line" >&2; exit 1;; *) echo "$line";; esac',
        )

    return says


def followed(tmp_path: Path) -> tuple[str, List[str]]:
    said: List[str] = []
    return follow.follow("7", Tail(tmp_path / "log"), lambda text: None, said.append), said


def test_restarts_are_not_the_end(tmp_path: Path, squeue_says: Callable[[List[str]], None]) -> None:
    states = ["PENDING|(Priority)", "RUNNING|n1", "PREEMPTED|n1", "COMPLETING|n1", "PENDING|(BeginTime)", "RUNNING|n2"]
    states += ["NODE_FAIL|n2", "REQUEUED|", "PENDING|(BeginTime)", "RUNNING|n3", "COMPLETED|n3"]
    squeue_says(states)
    last, said = followed(tmp_path)
    assert last == "COMPLETED"
    assert said[0] == "job 7: pending (Priority)" and len(said) == len(states)


@pytest.mark.parametrize("state", sorted(follow.ENDED))
def test_ends(tmp_path: Path, squeue_says: Callable[[List[str]], None], state: str) -> None:
    squeue_says(["RUNNING|n1", f"{state}|n1"])
    assert followed(tmp_path)[0] == state


def test_node_failure_without_requeue_is_the_end_after_a_while(
    tmp_path: Path, squeue_says: Callable[[List[str]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "UNSETTLED_S", 0.05)
    squeue_says(["RUNNING|n1"] + ["NODE_FAIL|n1"] * 200)
    assert followed(tmp_path)[0] == "NODE_FAIL"


def test_absent_controller_is_waited_for(tmp_path: Path, squeue_says: Callable[[List[str]], None]) -> None:
    squeue_says(["RUNNING|n1", "error: Unable to contact slurm controller", "RUNNING|n1", "COMPLETED|n1"])
    assert followed(tmp_path)[0] == "COMPLETED"


def test_forgotten_job_has_ended(tmp_path: Path, squeue_says: Callable[[List[str]], None]) -> None:
    squeue_says(["RUNNING|n1", "error: Invalid job id specified"])
    assert followed(tmp_path)[0] == "RUNNING"


def test_tail_gives_each_byte_once_and_whole_characters(tmp_path: Path) -> None:
    path = tmp_path / "log"
    tail = Tail(path)
    assert tail.read() == ""
    path.write_bytes("a\nü".encode()[:-1])
    assert tail.read() == "a\n"
    path.write_bytes("a\nüb".encode())
    assert tail.read() == "üb"
    assert Tail(path).read() == ""  # starts at the end: an earlier start's output is not repeated
