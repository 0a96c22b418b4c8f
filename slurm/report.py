"""How a run ended, for people and for scripts: its verdict file, or the traceback of the rank that failed first.

    python -m slurm.report RUN_FOLDER

Exit codes of Slurm, srun and torchrun are of no use here: they rewrite those of the ranks.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from datetime import datetime
from pathlib import Path
from typing import List, Optional

from megatron_ext.config import rundir

# A killed process leaves no traceback; its parent's note comes a moment after the peers have met a closed connection.
SILENT_DEATH_S = 1.0


@dataclasses.dataclass(frozen=True)
class Outcome:
    state: str  # done, stopped or failed
    step: Optional[int]
    reason: str  # for people; the traceback when a rank failed

    @property
    def exit_code(self) -> int:
        if self.state == "failed" and f"\n{rundir.WRONG_INPUT}" in self.reason:
            return rundir.EXIT_BAD_INPUT
        return {"done": rundir.EXIT_DONE, "stopped": rundir.EXIT_STOPPED}.get(self.state, rundir.EXIT_FAILED)


def rank_log(run: Path, rank: int) -> Path:
    return rundir.logs(run) / f"rank_{rank:05d}.log"


def outcome(run: Path, ended: str = "the ranks ended", starter_log: Optional[Path] = None) -> Outcome:
    """ended, starter_log: what is known from outside, for ranks that never came so far as to leave a word."""
    verdict = rundir.read_verdict(run)
    if verdict is not None and verdict["state"] in ("done", "stopped"):
        return Outcome(verdict["state"], verdict["step"], verdict["reason"])
    step = verdict["step"] if verdict and verdict["step"] >= 0 else None
    if failure := first_failure(run):
        return Outcome("failed", step, failure)
    reason = f"{verdict['reason']}; {ended}" if verdict else f"{ended} and wrote no verdict"
    words = last_lines(starter_log) if starter_log and starter_log.exists() else ""
    said = f"; {starter_log} ends with:\n{words}" if words else f"; output of the ranks: {rundir.logs(run)}"
    return Outcome("failed", step, reason + said)


def last_lines(path: Path, number: int = 20) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-number:])


def first_failure(run: Path) -> Optional[str]:
    """The earliest failure, since the others mostly follow from it: 'rank 3 failed at <time>' and its traceback."""
    found = []
    for path in rundir.failures(run).glob("rank_*.txt"):
        moment, _, trace = path.read_text(errors="replace").partition("\n")
        rank = int(path.stem.split("_")[1])
        late = SILENT_DEATH_S if trace.startswith(f"rank {rank} on ") else 0.0
        found.append((_seconds(moment) - late, path.stat().st_mtime, rank, moment, trace))
    if not found:
        return None
    _, _, rank, moment, trace = min(found)
    others = f"; {len(found) - 1} others followed" if len(found) > 1 else ""
    return f"rank {rank} failed at {moment}{others}\n{trace.rstrip()}"


def _seconds(moment: str) -> float:
    """An ISO time as seconds; a first line that is none, of a file cut off by a full disk, counts as late."""
    try:
        return datetime.fromisoformat(moment.strip().replace("Z", "+00:00")).timestamp()
    except ValueError:
        return float("inf")


def show(result: Outcome, run: Path) -> str:
    at = "" if result.step is None else f" at step {result.step}"
    hint = {"stopped": "; run the same command again to go on"}.get(result.state, "")
    return f"{run}: {result.state}{at}: {result.reason}{hint}"


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m slurm.report",
        description="How a run ended. Exit code: 0 done, 1 failed, 2 wrong input, 75 saved on a signal.",
        epilog="example: python -m slurm.report runs/first",
    )
    parser.add_argument("run", type=Path, help="run folder")
    run = parser.parse_args(arguments).run
    result = outcome(run)
    print(show(result, run), file=sys.stdout if result.exit_code == 0 else sys.stderr, flush=True)
    return result.exit_code


if __name__ == "__main__":
    sys.exit(main())
