"""A trainer's place-holder for the tests of the launcher: same protocol, no model, starts in seconds.

Each step is one gloo all-reduce, whose sum proves that every rank takes part. A file break.json in the run folder has
one rank fail: {"rank": 3, "step": 20, "how": "raise"}; how: raise, kill (SIGKILL) or exit (code 3, no traceback).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from datetime import datetime
from pathlib import Path

STOP: list[int] = []


def main() -> int:
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, lambda number, frame: STOP.append(number))
    rank, run = int(os.environ["RANK"]), Path(sys.argv[1])
    from megatron_ext.config import rundir

    try:
        return train(run, rank, int(os.environ["WORLD_SIZE"]))
    except Exception:
        rundir.failures(run).mkdir(exist_ok=True)
        text = f"{datetime.now().isoformat()}\n{traceback.format_exc()}"
        rundir.write_atomically(rundir.failures(run) / f"rank_{rank:05d}.txt", text)
        raise


def train(run: Path, rank: int, world: int) -> int:
    import torch
    import torch.distributed as dist

    from megatron_ext.config import load, rundir

    dist.init_process_group("gloo")
    saved = rundir.checkpoints(run) / "standin.json"
    saved.parent.mkdir(exist_ok=True)
    lock = rundir.Lock(run)
    if rank == 0:
        lock.acquire()
    step = json.loads(saved.read_text())["step"] if saved.exists() else 0
    hosts: list[str] = [""] * world
    dist.all_gather_object(hosts, os.uname().nodename)
    if rank == 0:
        print(f"start at step {step} on {' '.join(hosts)} by {os.environ['MASTER_ADDR']}", flush=True)
        print(f"NOTE={os.environ.get('NOTE')} GPUS={os.environ.get('CUDA_VISIBLE_DEVICES')}", flush=True)
    steps, state = load.read(rundir.run_yaml(run)).train.steps, "done"
    while step < steps and state == "done":
        break_if_told(run, rank, step)
        flags = torch.tensor([1.0, float(bool(STOP))])
        dist.all_reduce(flags)
        assert flags[0] == world
        time.sleep(0.1)
        step += 1
        if rank == 0 and step % 10 == 0:
            print(f"step {step}", flush=True)
        if flags[1] > 0:
            state = "stopped"
    if rank == 0:
        rundir.write_atomically(saved, json.dumps({"step": step}))
        rundir.write_verdict(run, state, step, f"signals seen by rank 0: {STOP}" if STOP else "all steps")
        lock.release()
    dist.barrier()
    dist.destroy_process_group()
    return rundir.EXIT_DONE if state == "done" else rundir.EXIT_STOPPED


def break_if_told(run: Path, rank: int, step: int) -> None:
    order = run / "break.json"
    if not order.exists():
        return
    told = json.loads(order.read_text())
    if (rank, step) != (told["rank"], told["step"]):
        return
    if told["how"] == "raise":
        raise RuntimeError(f"rank {rank} was told to fail")
    if told["how"] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(3)


if __name__ == "__main__":
    sys.exit(main())
