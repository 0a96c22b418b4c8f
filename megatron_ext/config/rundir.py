"""What a run folder holds and under which names; the one place that launcher, ranks and tools share.

    run.yaml          the frozen configuration           metrics.jsonl   one line a logged step
    verdict.json      how the last attempt ended         tensorboard/    event files
    lock.json         who is writing now                 checkpoints/    iter_0000100/ ... and the name of the latest
    failures/         one traceback per failed rank      logs/           output of the ranks

Standard library only: a login node reads it at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import subprocess
import time
from pathlib import Path
from typing import Any, Optional

LATEST = "latest_checkpointed_iteration.txt"  # Megatron's own name, so that its tools find our checkpoints

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_STOPPED = 75  # EX_TEMPFAIL: saved on a signal, wants to be started again

WRONG_INPUT = "wrong input: "  # so begins the note of a rank that refused, in the place of a traceback


def folder(root: str, name: str) -> Path:
    return Path(root) / name


def run_yaml(run: Path) -> Path:
    return run / "run.yaml"


def checkpoints(run: Path) -> Path:
    return run / "checkpoints"


def failures(run: Path) -> Path:
    return run / "failures"


def logs(run: Path) -> Path:
    return run / "logs"


def metrics(run: Path) -> Path:
    return run / "metrics.jsonl"


def write_atomically(path: Path, text: str) -> None:
    """Readers see the old content or the new one, never a part; survives a power loss."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)  # only after a failure is it still there
    descriptor = os.open(path.parent, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def write_verdict(run: Path, state: str, step: int, reason: str) -> None:
    """state: done, stopped (saved, wants to go on) or failed. srun rewrites exit codes; this file it does not."""
    write_atomically(run / "verdict.json", json.dumps({"state": state, "step": step, "reason": reason}) + "\n")


def read_verdict(run: Path) -> Optional[dict[str, Any]]:
    try:
        return json.loads((run / "verdict.json").read_text())
    except FileNotFoundError:
        return None


class Lock:
    """One writer per run folder. Taken by rank 0; a lock whose owner is gone is taken over.

    A hard link rather than flock: parallel file systems are often mounted without working flock. The link appears with
    its content or not at all, so nobody reads a lock that is being written.
    """

    SETTLING_S = 0.5  # longer than another process needs from reading a stale lock to moving it away

    def __init__(self, run: Path, name: str = "lock.json") -> None:
        self.path = run / name
        self.owner = {"host": socket.gethostname(), "pid": os.getpid(), **_job()}

    def acquire(self) -> None:
        """Raises ValueError, naming the owner, when another live job holds the folder."""
        own = self.path.with_name(f".lock.{secrets.token_hex(4)}.tmp")
        try:
            write_atomically(own, json.dumps(self.owner))
            self._link(own)
        finally:
            own.unlink(missing_ok=True)

    def _link(self, own: Path) -> None:
        took_over = False
        for _ in range(10):
            try:
                os.link(own, self.path)
            except FileExistsError:
                self._move_away_if_stale()
                took_over = True
                continue
            if took_over:  # someone who read the stale lock too may just now mistake ours for it
                time.sleep(self.SETTLING_S)
                if _content(self.path) != own.read_bytes():
                    break
            return
        raise ValueError(f"run folder {self.path.parent} is being taken by another job at this moment; try again")

    def _move_away_if_stale(self) -> None:
        judged = _content(self.path)
        if owner := lock_owner(self.path.parent, self.path.name):
            job = f" (job {owner['job']})" if owner["job"] else ""
            raise ValueError(
                f"run folder {self.path.parent} is in use by pid {owner['pid']} on {owner['host']}{job}; "
                f"wait for it, stop it, or choose another name=..."
            )
        grave = self.path.with_name(f".lock.{secrets.token_hex(4)}.tmp")
        try:
            os.rename(self.path, grave)
        except FileNotFoundError:
            return
        if grave.read_bytes() != judged:  # not what was judged: another was faster; give it back
            with contextlib.suppress(FileExistsError):
                os.link(grave, self.path)
        grave.unlink()

    def release(self) -> None:
        if _content(self.path) == json.dumps(self.owner).encode():
            self.path.unlink()


def _content(path: Path) -> Optional[bytes]:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _job() -> dict[str, str]:
    """Which start of which Slurm job this process belongs to."""
    return {"job": os.environ.get("SLURM_JOB_ID", ""), "restart": os.environ.get("SLURM_RESTART_COUNT", "0")}


def lock_owner(run: Path, name: str = "lock.json") -> Optional[dict[str, Any]]:
    """The live owner of the run folder, or None when it is free or its owner is gone."""
    try:
        owner = json.loads(_content(run / name) or b"")
        host, pid, job = owner["host"], owner["pid"], owner["job"]
    except (ValueError, TypeError, KeyError):
        return None
    here = _job()
    if job and job == here["job"] and owner.get("restart") != here["restart"]:
        return None  # an earlier attempt of this very job: Slurm requeues only when that one has ended
    if job and job != here["job"]:
        return owner if _job_is_alive(job) else None
    if host == socket.gethostname():
        return owner if pid != os.getpid() and Path(f"/proc/{pid}").exists() else None
    return owner  # another host without Slurm: we cannot know, so we do not overwrite


def _job_is_alive(job: str) -> bool:
    try:
        answer = subprocess.run(["squeue", "-h", "-j", job, "-o", "%T"], capture_output=True, text=True, timeout=60)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return True
    if answer.returncode and "Invalid job id" not in answer.stderr:
        return True  # the controller does not answer: we cannot know
    # Several lines when the number is also that of an array.
    alive = {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT"}
    return not alive.isdisjoint(answer.stdout.split())
