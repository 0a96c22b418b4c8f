"""cluster.kind=slurm: the stages of a run as a chain of Slurm job arrays.

This process plans, submits and waits; killed, or with --detach, the chain goes on without it. The same command again
joins a chain that is under way, or submits what is left of one that failed.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Callable, Dict, List, Optional

from megatron_ext.config import load
from megatron_ext.config.schema import Run
from preprocess import plan, stages, work
from preprocess.manifest import Manifest
from preprocess.prepare import up_to_date
from preprocess.staging import held, write_atomically
from preprocess.task import MERGE
from slurm import array

_LOG_LINES = 15


def prepare(run: Run, say: Callable[[str], None], detach: bool = False) -> Optional[Manifest]:
    """-> the manifest, or None when detached. Raises ChildProcessError, with the end of a log, when a task failed."""
    planned = plan.make(run.data)
    if found := up_to_date(planned):
        return found
    folder = work.of(run.data.source.output)
    with held(folder.folder, run.data.source.output):
        jobs = _under_way(run, folder) or _submit(run, planned, folder, say)
    if detach:
        say(f"submitted as jobs {', '.join(jobs)}; the same command again waits for them")
        return None
    array.wait(jobs, _Teller(say))
    if found := up_to_date(plan.make(run.data)):
        if not run.data.source.keep_work:
            shutil.rmtree(folder.folder, ignore_errors=True)
        return found
    raise ChildProcessError(f"a task failed; the same command again does what is left\n{_last_words(_logs(folder))}")


def arrays(run: Run, planned: plan.Plan, folder: work.Work) -> List[array.Array]:
    """Of each stage that is not finished. More tasks than parts would have nothing to do."""
    python = run.cluster.python or sys.executable
    found = []
    for stage in stages.stages(planned):
        unknown = (
            planned.recipe.encode is None and stage.number == planned.last
        )  # the tokenizer is part of their stamps
        todo = range(len(planned.parts)) if unknown else stages.unfinished(planned, folder, stage)
        tasks = 1 if stage.kind in ("train", "decide") else min(run.data.source.tasks, _all(planned, stage))
        if len(todo):
            found.append(_array(str(stage), python, folder, tasks))
    return [*found, _array(MERGE, python, folder, 1)]


def _all(planned: plan.Plan, stage: stages.Stage) -> int:
    if stage.kind == "map":
        return len(planned.parts)
    comparison = planned.recipe.passes[stage.number].comparison
    assert comparison is not None
    return comparison[1].searches


def _array(stage: str, python: str, folder: work.Work, tasks: int) -> array.Array:
    command = [python, "-m", "preprocess.task", str(_run_yaml(folder)), stage, "--of", str(tasks)]
    return array.Array(stage, command, tasks)


def _submit(run: Run, planned: plan.Plan, folder: work.Work, say: Callable[[str], None]) -> List[str]:
    load.freeze(run, _run_yaml(folder))
    chain = arrays(run, planned, folder)

    def note(jobs: List[str]) -> None:
        write_atomically(folder.folder / "jobs.json", json.dumps(jobs).encode())

    jobs = array.submit(chain, run.cluster, _logs(folder), note)
    for one, job in zip(chain, jobs):
        say(f"job {job}: {one.name}, {one.tasks} tasks")
    return jobs


def _under_way(run: Run, folder: work.Work) -> List[str]:
    jobs = folder.jobs()
    if not jobs or not array.alive(jobs):
        return []
    if load.read(_run_yaml(folder)) != run:
        raise ValueError(
            f"jobs {', '.join(jobs)} are making {run.data.source.output} with other settings ({_run_yaml(folder)}); "
            f"wait for them, or scancel them"
        )
    return jobs


def _run_yaml(folder: work.Work) -> Path:
    return folder.folder.resolve() / "run.yaml"


def _logs(folder: work.Work) -> Path:
    return folder.folder.resolve() / "slurm"


class _Teller:
    """Says how many tasks are in which state whenever that changes."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say, self._last = say, ""

    def __call__(self, states: Dict[str, int]) -> None:
        now = ", ".join(f"{number} {state.lower()}" for state, number in states.items())
        if now and now != self._last:
            self._last = now
            self._say(f"tasks: {now}")


def _last_words(logs: Path) -> str:
    """The end of each log that tells of a failure, newest first."""
    found = sorted(logs.glob("*.log"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in found:
        last_start = path.read_text(errors="replace").rsplit(": task ", 1)[-1]  # a requeued task appends to its log
        lines = last_start.splitlines()
        if any(line.startswith(("preprocess.task", "Traceback", "slurmstepd: error")) for line in lines):
            return "\n".join([f"{path}:", *lines[-_LOG_LINES:]])
    return f"logs are in {logs}"
