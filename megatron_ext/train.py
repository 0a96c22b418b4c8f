"""What each rank runs: the frozen run.yaml -> build -> loop. Read this first.

    python -m megatron_ext.train RUN_FOLDER

Started by llm-launch, torchrun or srun with RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT set. Resumes by
itself from the newest complete checkpoint. Ends with a verdict in RUN_FOLDER/verdict.json and an exit code: 0 done,
75 saved on a signal and wants to go on, 2 the input is wrong, 1 failed.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import sys
import time
import traceback
import warnings
from datetime import datetime
from pathlib import Path
from typing import Any, List, Optional, Tuple

from megatron_ext.config import load as config
from megatron_ext.config import rundir
from megatron_ext.config.schema import Run
from megatron_ext.runtime.signals import StopFlag, ignore_stop_signals

log = logging.getLogger("megatron_ext.train")  # not __name__, which is __main__ on a rank

_BAD_STEPS = 5  # this many updates in a row without a finite gradient: the run is lost, stop it


def main(arguments: Optional[List[str]] = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print(
            "usage: python -m megatron_ext.train RUN_FOLDER   (holds the run.yaml that llm-launch froze)",
            file=sys.stderr,
        )
        return rundir.EXIT_BAD_INPUT
    stop, folder, rank = StopFlag(), Path(arguments[0]), int(os.environ.get("RANK", "0"))
    _set_up_logging(rank)
    lock = rundir.Lock(folder)
    try:
        run = config.read(rundir.run_yaml(folder))
        if rank == 0:
            lock.acquire()
    except ValueError as error:  # nothing is written into a folder that is not ours
        print(f"rank {rank}: {error}", file=sys.stderr, flush=True)
        return rundir.EXIT_BAD_INPUT
    try:
        return train(run, folder, stop)
    except ValueError as error:  # the user's input
        return _failed(folder, rank, error, rundir.EXIT_BAD_INPUT)
    except Exception as error:
        return _failed(folder, rank, error, rundir.EXIT_FAILED)
    finally:
        if rank == 0:
            lock.release()


def train(run: Run, folder: Path, stop: StopFlag) -> int:
    """-> exit code. Every rank calls it; all return the same."""
    from megatron_ext.data.loader import Loader
    from megatron_ext.model.build import build
    from megatron_ext.model.spec import check_packs
    from megatron_ext.optim.adamw import AdamW
    from megatron_ext.runtime import parallel
    from megatron_ext.step import Stepper

    grid = parallel.start(run)
    chunks = build(run, grid)
    optimizer = AdamW(chunks, run, grid)
    begin = _restore(run, folder, chunks, optimizer, grid)
    loader = Loader(run, grid, "train", begin.step, begin.consumed_samples)
    loader.compare(begin.data)
    if loader.packed:
        check_packs(run)
    validation = Loader(run, grid, "validation") if run.train.eval_every else None
    loop = Loop(run, folder, grid, Stepper(run, grid, chunks, optimizer), (loader, validation), stop)
    last = loop.go(begin.step)
    loop.save(last)
    done = last >= run.train.steps
    if grid.rank == 0:
        reason = "all steps made" if done else f"stopped by {', '.join(stop.received) or 'a signal on another rank'}"
        rundir.write_verdict(folder, "done" if done else "stopped", last, reason)
        print(f"{'done' if done else 'stopped, saved'} at step {last}: {reason}", flush=True)
    parallel.stop()
    return rundir.EXIT_DONE if done else rundir.EXIT_STOPPED


class Loop:
    """Steps, and what happens between them."""

    def __init__(
        self, run: Run, folder: Path, grid: Any, stepper: Any, loaders: Tuple[Any, Any], stop: StopFlag
    ) -> None:
        self.run, self.folder, self.grid, self.stepper, self.stop = run, folder, grid, stepper, stop
        self.loader, self.validation = loaders
        self.bad_steps = 0

    def go(self, first: int) -> int:
        """Update from number `first` on until all are made or a signal is agreed on; -> updates made in all."""
        from megatron_ext.runtime import device
        from megatron_ext.runtime.parallel import any_rank
        from megatron_ext.watch.metrics import Metrics

        metrics = Metrics(self.run, self.folder, first) if self.grid.rank == 0 else None
        step = first
        # Signals reach ranks at different steps; the vote makes all of them leave after the same one.
        while step < self.run.train.steps and not any_rank(bool(self.stop), self.grid.device):
            began = time.perf_counter()
            outcome = self.stepper.train(step, self.loader)
            device.synchronize()
            step += 1
            self._check(step, outcome)
            if metrics:
                metrics.step(step, outcome, time.perf_counter() - began)
            self._between_steps(step, metrics)
        if metrics:
            metrics.close()
        return step

    def save(self, step: int) -> None:
        from megatron_ext import checkpoint

        progress = checkpoint.Progress(step, self.loader.position(step), self.loader.fingerprint)
        stepper, folder = self.stepper, rundir.checkpoints(self.folder)
        checkpoint.save(self.run, folder, progress, stepper.chunks, stepper.optimizer, self.grid)

    def _between_steps(self, step: int, metrics: Any) -> None:
        train = self.run.train
        if self.validation and step % train.eval_every == 0:
            loss = self.stepper.evaluate(self.validation)
            if metrics:
                metrics.evaluation(step, loss)
        if train.save_every and step % train.save_every == 0 and step < train.steps:
            self.save(step)

    def _check(self, step: int, outcome: Any) -> None:
        """Updates with a gradient that is not finite are skipped; several in a row end the run, on all ranks alike."""
        if math.isfinite(outcome.grad_norm):
            self.bad_steps = 0
            return
        self.bad_steps += 1
        log.warning("step %d: gradient norm is %s, weights not updated", step, outcome.grad_norm)
        if self.bad_steps >= _BAD_STEPS:
            raise FloatingPointError(
                f"{_BAD_STEPS} steps in a row without a finite gradient, the last with loss {outcome.loss} at step "
                f"{step}; resume from the newest checkpoint with a lower optim.lr, or look at the data of these steps"
            )


def _restore(run: Run, folder: Path, chunks: List[Any], optimizer: Any, grid: Any) -> Any:
    """-> checkpoint.Progress of the run's own newest checkpoint; else none, with train.init_from's weights if given."""
    import torch.distributed as dist

    from megatron_ext import checkpoint

    found: List[Any] = [None, None]
    if grid.rank == 0:  # one look at the disk: ranks on slow mounts might see different ones
        found[0] = checkpoint.latest(rundir.checkpoints(folder))
        if found[0] is None and run.train.init_from:
            found[1] = checkpoint.resolve(run.train.init_from)
    dist.broadcast_object_list(found, src=0)
    own, source = found
    if own is not None:
        progress = checkpoint.load(run, own, chunks, optimizer, grid)
        log.info("resumed from %s", own)
        return progress
    if source is not None:
        checkpoint.load_weights(run, source, chunks, optimizer, grid)
        log.info("weights from %s", source)
    return checkpoint.Progress()


def _set_up_logging(rank: int) -> None:
    level = logging.INFO if rank == 0 else logging.ERROR
    logging.basicConfig(level=level, format=f"%(asctime)s rank {rank} %(levelname)s %(name)s: %(message)s")
    for chatty in ("megatron", "torch"):  # their progress notes; warnings stay
        logging.getLogger(chatty).setLevel(max(level, logging.WARNING))
    # torch announces the future of functions that only megatron-core calls; nobody who trains can act on that.
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", message="full scope is deprecated")  # megatron-core's own default
    warnings.filterwarnings("ignore", message=".*(Transformer ?Engine|[Aa]pex).*")


def _failed(folder: Path, rank: int, error: Exception, code: int) -> int:
    """Leave word where the launcher finds it, then die at once: peers may be waiting in a collective."""
    # One clear message for the user's mistakes; a traceback for ours.
    text = f"{rundir.WRONG_INPUT}{error}\n" if code == rundir.EXIT_BAD_INPUT else traceback.format_exc()
    print(f"rank {rank}: {text}", file=sys.stderr, flush=True)
    failures = rundir.failures(folder)
    with contextlib.suppress(OSError):  # the disk may be what failed
        failures.mkdir(parents=True, exist_ok=True)
        rundir.write_atomically(failures / f"rank_{rank:05d}.txt", f"{datetime.now().isoformat()}\n{text}")
    if rank == 0:
        with contextlib.suppress(OSError):
            rundir.write_verdict(folder, "failed", -1, f"{type(error).__name__}: {error}")
    return code


if __name__ == "__main__":
    status = main()
    ignore_stop_signals()  # Python's shutdown restores their defaults, and torchrun ends the slower ranks with SIGTERM
    sys.stdout.flush()
    sys.stderr.flush()
    if status in (rundir.EXIT_FAILED, rundir.EXIT_BAD_INPUT):
        os._exit(status)  # not sys.exit: process groups would wait for peers on the way out
    sys.exit(status)
