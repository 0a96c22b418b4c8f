"""llm-launch: compose a run, check it, freeze it into its folder, start it here or on Slurm, tell how it ended."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Callable, List, Optional

from megatron_ext.config import load, rundir, validate
from megatron_ext.config.schema import ClusterKind, Run, world_size
from slurm import folder as folders
from slurm import follow, local, report, submit
from slurm.rank import TRAINER
from slurm.tail import Tail

EXAMPLE = """\
examples:
  llm-launch model=llama_tiny data=demo parallel=tp2_pp2 cluster=local train.steps=100
  llm-launch name=big model=llama3_8b parallel=gpu64_8b cluster=slurm cluster.partition=gpu --detach

The same name again continues that run. Exit codes: 0 done, 1 failed, 2 wrong input, 75 saved on a signal and stopped.
"""
EXIT_INTERRUPTED = 130


def main(arguments: Optional[List[str]] = None) -> int:
    parsed = _parser().parse_intermixed_args(arguments)
    try:
        run = _composed(parsed.overrides)
        if parsed.dry_run:
            return _dry_run(run, parsed.module)
        if parsed.freeze_only:
            return _freeze_only(run)
        return _launch(run, parsed)
    except ValueError as error:  # ConfigError and its kind: something the user can put right
        print(f"llm-launch: {error}", file=sys.stderr)
        return rundir.EXIT_BAD_INPUT


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="llm-launch",
        description="Train: check the configuration, freeze it in runs/<name>, start the ranks.",
        epilog=f"{EXAMPLE}\n{load.usage()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("overrides", nargs="*", metavar="group=choice or field=value")
    parser.add_argument("--dry-run", action="store_true", help="print what would be frozen and started; write nothing")
    parser.add_argument("--detach", action="store_true", help="on Slurm: submit and return, do not wait for the end")
    parser.add_argument(
        "--json", action="store_true", help="the result as one JSON object on stdout, the rest on stderr"
    )
    parser.add_argument(
        "--freeze-only", action="store_true", help="inside a job script: freeze, and print shell lines to eval"
    )
    parser.add_argument("--module", default=TRAINER, help="what each rank runs (default: %(default)s)")
    return parser


def _composed(overrides: List[str]) -> Run:
    run = load.compose(overrides)
    validate.check(run)
    return run


def _dry_run(run: Run, module: str) -> int:
    folder = rundir.folder(run.root, run.name).resolve()
    print(load.to_yaml(run))
    if run.cluster.kind == ClusterKind.slurm:
        print(submit.sbatch_text(run, folder))
    else:
        print(shlex.join(local.command(run, folder, module)))
    return 0


def _freeze_only(run: Run) -> int:
    """For slurm/pretrain.sbatch. Raises ValueError when the job is not what the run needs."""
    tasks, world = os.environ.get("SLURM_NTASKS"), world_size(run.parallel)
    if tasks is not None and int(tasks) != world:
        raise ValueError(f"the job has {tasks} tasks for {world} ranks; sbatch with nodes x ntasks-per-node = {world}")
    cpus, threads = int(os.environ.get("SLURM_CPUS_PER_TASK", "1")), run.cluster.threads_per_rank
    if tasks is not None and cpus < threads:
        raise ValueError(
            f"the job has {cpus} cpus a task, cluster.threads_per_rank={threads}; sbatch --cpus-per-task={threads}"
        )
    folder = rundir.folder(run.root, run.name).resolve()
    if os.environ.get("SLURM_RESTART_COUNT", "0") != "0" and rundir.run_yaml(folder).exists():
        run = load.read(rundir.run_yaml(folder))  # a requeued job goes on with what it began with, whatever was edited
    folder = folders.prepare(run, _say)
    print("\n".join([f"RUN={shlex.quote(str(folder))}", *folders.setup_lines(run, folder)]))
    return 0


def _launch(run: Run, parsed: argparse.Namespace) -> int:
    if run.cluster.kind == ClusterKind.local:
        if parsed.detach:
            raise ValueError("--detach needs cluster.kind=slurm; on this machine put the command into the background")
        return _launch_here(run, parsed)
    return _launch_on_slurm(run, parsed)


def _launch_here(run: Run, parsed: argparse.Namespace) -> int:
    place = rundir.folder(run.root, run.name)
    place.mkdir(parents=True, exist_ok=True)
    # Until rank 0 has the run's own lock another launcher could clear our files, and its ranks be taken for ours.
    lock = rundir.Lock(place, "launch.json")
    lock.acquire()
    try:
        folder = folders.prepare(run, _say)
        _say(f"{world_size(run.parallel)} ranks on this machine; their output: {rundir.logs(folder)}")
        result = local.start(run, folder, parsed.module, _shower(parsed.json), _say)
        return _tell(result, folder, None, parsed.json)
    finally:
        lock.release()


def _launch_on_slurm(run: Run, parsed: argparse.Namespace) -> int:
    place = rundir.folder(run.root, run.name).resolve()
    submit.executor(run, place)  # refuses a machine without Slurm before anything is written
    if job := submit.waiting_job(place):
        raise ValueError(
            f"run folder {place} has job {job} in the queue; wait for it, scancel {job}, or choose name=..."
        )
    folder = folders.prepare(run, _say)
    tail = Tail(report.rank_log(folder, 0))
    job = submit.submit(run, folder, parsed.module)
    _say(f"job {job} submitted; output of the ranks: {rundir.logs(folder)}")
    if parsed.detach:
        print(json.dumps({"run": str(folder), "job": job}) if parsed.json else job, flush=True)
        return 0
    try:
        state = follow.follow(job, tail, _shower(parsed.json), _say)
    except KeyboardInterrupt:
        _say(f"job {job} goes on without this launcher; stop it with: scancel {job}")
        return EXIT_INTERRUPTED
    result = report.outcome(folder, f"Slurm says {state} of job {job}", submit.log_of(folder, job))
    return _tell(result, folder, job, parsed.json)


def _tell(result: report.Outcome, folder: Path, job: Optional[str], as_json: bool) -> int:
    if as_json:
        facts = {"run": str(folder), "job": job, "state": result.state, "step": result.step, "reason": result.reason}
        print(json.dumps(facts), flush=True)
    else:
        print(report.show(result, folder), file=sys.stderr if result.exit_code else sys.stdout, flush=True)
    return result.exit_code


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _shower(as_json: bool) -> Callable[[str], None]:
    """Rank 0's output goes to stdout, unless that is kept for the JSON."""
    stream = sys.stderr if as_json else sys.stdout

    def show(text: str) -> None:
        if text:
            stream.write(text)
            stream.flush()

    return show


if __name__ == "__main__":
    sys.exit(main())
