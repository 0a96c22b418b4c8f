"""Shared by the launcher's tests: shards that satisfy the checks, and the launcher as people start it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Iterator, List

import pytest

from tests.cluster.cluster import Cluster

REPOSITORY = Path(__file__).resolve().parents[2]
STANDIN = "--module=tests.slurm.standin"


class Launcher:
    """llm-launch in a process of its own, with run folders under `root` and stand-in shards."""

    def __init__(self, root: Path, shard: Path) -> None:
        self.root, self.shard = root, shard
        self._started: List[subprocess.Popen[str]] = []

    def folder(self, name: str) -> Path:
        return self.root / name

    def overrides(self, name: str, *more: str) -> List[str]:
        return [f"data.blend=[{self.shard}]", "data.tokenizer.path=''", f"root={self.root}", f"name={name}", *more]

    def start(self, name: str, *more: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "slurm.launch", *self.overrides(name, *more)]
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            text=True,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def end(self) -> None:
        """Leaves nothing running after a test that failed in the middle."""
        for process in self._started:
            if process.poll() is None:
                process.kill()
                process.communicate()

    def run(self, name: str, *more: str, timeout: float = 240) -> subprocess.CompletedProcess[str]:
        process = self.start(name, *more)
        out, err = process.communicate(timeout=timeout)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def log(self, name: str, rank: int = 0) -> str:
        path = self.folder(name) / "logs" / f"rank_{rank:05d}.log"
        return path.read_text() if path.exists() else ""


def wait_until(what: str, done: Callable[[], Any], seconds: float = 120) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := done()):
        assert time.monotonic() < deadline, f"no {what} after {seconds} s"
        time.sleep(0.2)
    return value


def write_order(folder: Path, rank: int, step: int, how: str) -> None:
    """Have the stand-in fail; see standin.py."""
    folder.mkdir(parents=True)
    (folder / "break.json").write_text(json.dumps({"rank": rank, "step": step, "how": how}))


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    """Its shard is empty: nothing reads it but the check before the start."""
    shard = tmp_path / "shard"
    for suffix in (".bin", ".idx"):
        shard.with_suffix(suffix).touch()
    shard.with_suffix(".json").write_text(json.dumps({"tokenizer": {"vocab_size": 100, "sha256": "0"}}))
    launcher = Launcher(tmp_path / "runs", shard)
    yield launcher
    launcher.end()


@pytest.fixture
def quiet_cluster(slurm_cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, on which a test that failed leaves no job to the next one."""
    yield slurm_cluster
    slurm("scancel", "--quiet", "--user=root")
    wait_until("empty queue", lambda: slurm("squeue", "-h") == "", 60)


def slurm(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout.strip()


@pytest.fixture
def fake_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """fake_slurm("scontrol", "exit 1"): a Slurm command of that name, first on PATH, as a shell script."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    def install(name: str, script: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)

    return install
