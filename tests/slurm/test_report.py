"""Verdict and failure files -> what people and scripts are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatron_ext.config import rundir
from slurm import report


def fail(run: Path, rank: int, moment: str, text: str) -> None:
    rundir.failures(run).mkdir(exist_ok=True)
    (rundir.failures(run) / f"rank_{rank:05d}.txt").write_text(f"{moment}\n{text}\n")


@pytest.mark.parametrize(("state", "code"), [("done", 0), ("stopped", 75), ("failed", 1)])
def test_exit_code_follows_the_verdict(tmp_path: Path, state: str, code: int) -> None:
    rundir.write_verdict(tmp_path, state, 7, "because")
    result = report.outcome(tmp_path)
    assert result.exit_code == code
    assert f"{state} at step 7: because" in report.show(result, tmp_path)


def test_silence_is_a_failure(tmp_path: Path) -> None:
    result = report.outcome(tmp_path, "Slurm says TIMEOUT")
    assert result.exit_code == 1
    assert "Slurm says TIMEOUT and wrote no verdict" in result.reason


def test_silence_is_explained_by_the_log_of_what_started_the_ranks(tmp_path: Path) -> None:
    log = tmp_path / "starter.log"
    log.write_text("first\n" * 50 + "python: not found\n")
    reason = report.outcome(tmp_path, "torchrun ended with code 127", log).reason
    assert reason.endswith("python: not found") and reason.count("first") == 19


def test_earliest_failure_is_told_and_the_others_counted(tmp_path: Path) -> None:
    fail(tmp_path, 0, "2030-01-01T00:00:02.5", "connection closed")
    fail(tmp_path, 5, "2030-01-01T00:00:02.1", "Traceback: the cause")
    fail(tmp_path, 7, "2030-01-01T00:00:02.7", "connection closed")
    rundir.write_verdict(tmp_path, "failed", -1, "rank 0: connection closed")
    reason = report.outcome(tmp_path).reason
    assert reason.startswith("rank 5 failed") and "the cause" in reason and "2 others followed" in reason


def test_killed_rank_goes_before_peers_that_met_its_closed_connection(tmp_path: Path) -> None:
    fail(tmp_path, 0, "2030-01-01T00:00:02.0", "Traceback: connection closed")
    fail(tmp_path, 5, "2030-01-01T00:00:02.2", "rank 5 on n2: killed by SIGKILL")
    assert "rank 5 failed" in report.outcome(tmp_path).reason


def test_rank_killed_long_after_is_not_the_cause(tmp_path: Path) -> None:
    fail(tmp_path, 0, "2030-01-01T00:00:02.0", "Traceback: the cause")
    fail(tmp_path, 5, "2030-01-01T00:00:09.0", "rank 5 on n2: killed by SIGKILL")
    assert "rank 0 failed" in report.outcome(tmp_path).reason


def test_damaged_failure_file_counts_as_late(tmp_path: Path) -> None:
    fail(tmp_path, 0, "", "")
    fail(tmp_path, 3, "2030-01-01T00:00:02", "Traceback: the cause")
    assert "rank 3 failed" in report.outcome(tmp_path).reason


def test_done_wins_over_failures_while_leaving(tmp_path: Path) -> None:
    """A rank that crashes in torch's destructors after the last step has lost nothing."""
    rundir.write_verdict(tmp_path, "done", 7, "all steps")
    fail(tmp_path, 3, "2030-01-01T00:00:02", "rank 3 on n2: killed by SIGSEGV")
    assert report.outcome(tmp_path).exit_code == 0


def test_a_rank_that_refused_its_input_is_the_users_mistake(tmp_path: Path) -> None:
    fail(tmp_path, 1, "2026-01-01T00:00:00.2", "Traceback ...\nConnectionError: peer closed")
    fail(tmp_path, 0, "2026-01-01T00:00:00.1", f"{rundir.WRONG_INPUT}shard a.bin does not exist")
    result = report.outcome(tmp_path)
    assert result.exit_code == rundir.EXIT_BAD_INPUT and "shard a.bin does not exist" in result.reason
