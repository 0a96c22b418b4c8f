"""The run folder before a start: free, its configuration frozen, and the code that will run written down.

The same name again continues the run. Another model cannot continue it; every other change is made and told.
"""

from __future__ import annotations

import difflib
import os
import platform
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Callable, List

from megatron_ext.config import load, rundir
from megatron_ext.config.sameness import model_changes
from megatron_ext.config.schema import Run

Say = Callable[[str], None]
REPOSITORY = Path(__file__).resolve().parents[1]
SHOWN_VARIABLES = ("CUDA_", "NCCL_", "OMP_", "PYTORCH_", "SLURM_", "TORCH_", "MKL_")  # never all: some hold secrets


def prepare(run: Run, say: Say) -> Path:
    """-> the run folder, absolute, with run.yaml and code/. ValueError when it is in use or has another model."""
    folder = rundir.folder(run.root, run.name).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    refuse_if_in_use(folder)
    _freeze(run, folder, say)
    _record_code(folder / "code", say)
    for path in (rundir.logs(folder), rundir.failures(folder)):
        path.mkdir(exist_ok=True)  # Slurm starts nothing, and says nothing, when the folder of its log is missing
    return folder


def refuse_if_in_use(folder: Path) -> None:
    if owner := rundir.lock_owner(folder):
        job = f" (job {owner['job']})" if owner["job"] else ""
        raise ValueError(
            f"run folder {folder} is in use by pid {owner['pid']} on {owner['host']}{job}; "
            f"wait for it, stop it, or choose another name=..."
        )


def setup_lines(run: Run, folder: Path) -> List[str]:
    """Shell lines before the ranks start, at the first start and at every requeue."""
    exports = {**run.cluster.env, "OMP_NUM_THREADS": str(run.cluster.threads_per_rank)}
    quoted = shlex.quote(str(folder))
    return [
        *run.cluster.setup,
        *(f"export {name}={shlex.quote(value)}" for name, value in exports.items()),
        f"rm -f {quoted}/verdict.json {quoted}/failures/rank_*.txt",  # they speak of one start only
    ]


def _freeze(run: Run, folder: Path, say: Say) -> None:
    path = rundir.run_yaml(folder)
    if not path.exists():
        load.freeze(run, path)
        return
    former = load.read(path)
    changed = changes(former, run)
    if model := model_changes(former, run):
        raise ValueError(
            f"{folder} holds a run of another model:\n"
            + "\n".join(f"  {line}" for line in model)
            + "\nchoose another name=..., or set those fields back"
        )
    say(f"continues the run in {folder}")
    if changed:
        say("\n".join(["changed:"] + [f"  {line}" for line in changed]))
        _keep_old(path)
        load.freeze(run, path)


def changes(former: Run, run: Run) -> List[str]:
    """["train.steps: 100 -> 200", ...]"""
    old, new = load.flatten(former), load.flatten(run)
    return [f"{name}: {old[name]} -> {value}" for name, value in new.items() if old[name] != value]


def _keep_old(path: Path) -> None:
    """run.yaml -> run.1.yaml, run.2.yaml, ...: the highest number is the latest. A copy: run.yaml is never missing."""
    number = 1
    while (kept := path.with_name(f"{path.stem}.{number}{path.suffix}")).exists():
        number += 1
    rundir.write_atomically(kept, path.read_text())


def _record_code(folder: Path, say: Say) -> None:
    folder.mkdir(exist_ok=True)
    records = {"commit.txt": _commit(), "diff.patch": _diff(), "environment.txt": _environment()}
    for name, text in records.items():
        path = folder / name
        if path.exists() and path.read_text() != text:
            _keep_old(path)
            if name != "environment.txt":
                say(f"the code has changed since the last start: {path}")
        rundir.write_atomically(path, text)


def _commit() -> str:
    return _git("rev-parse", "HEAD") + "\n" + _git("status", "--porcelain", "--untracked-files=normal") + "\n"


def _diff() -> str:
    """Changes to tracked files since the commit, then the untracked source files whole: together the code that runs."""
    parts = [_git("diff", "--binary", "HEAD")]
    names = _git("ls-files", "--others", "--exclude-standard", "--", "*.py", "*.yaml", "*.sbatch").splitlines()
    for name in names:
        path = REPOSITORY / name
        if path.is_file():
            lines = path.read_text(errors="replace").splitlines()
            parts += difflib.unified_diff([], lines, "/dev/null", f"b/{name}", lineterm="")
    return "\n".join(parts) + "\n"


def _git(*arguments: str) -> str:
    try:
        answer = subprocess.run(["git", "-C", str(REPOSITORY), *arguments], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"unknown: {error}"
    return answer.stdout.rstrip("\n") if answer.returncode == 0 else f"unknown: {answer.stderr.strip()}"


def _environment() -> str:
    packages = sorted({f"{d.metadata['Name']}=={d.version}" for d in metadata.distributions()}, key=str.lower)
    variables = [f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith(SHOWN_VARIABLES)]
    machine = [f"python {platform.python_version()} {sys.executable}", f"host {platform.node()} {platform.platform()}"]
    return "\n".join([*machine, *variables, *packages]) + "\n"
