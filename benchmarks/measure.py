"""A command, and what it cost: processor time of all its processes, wall time, greatest memory."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Optional

import psutil

_POLL_S = 0.1


@dataclass(frozen=True)
class Cost:
    """cpu_s: user and system, children included. peak_mb: of the summed PSS, where shared pages count once."""

    cpu_s: float
    wall_s: float
    peak_mb: float


def own_peak() -> int:
    """Greatest resident memory of this process since its program began, bytes. getrusage's ru_maxrss is no answer: it
    starts at what the process that forked held, so under a large parent nothing ever seems to grow."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def run(command: List[str], folder: Path, log: Path, environment: Optional[Dict[str, str]] = None) -> Cost:
    """In `folder`; what it says goes to `log`. Raises RuntimeError, with the end of what it said, when the command
    fails."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", **(environment or {})}
    began = time.perf_counter()
    with open(log, "wb") as out:
        process = subprocess.Popen(command, cwd=folder, env=variables, stdout=out, stderr=subprocess.STDOUT)
        watch = _Peak(process.pid)
        watch.start()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    wall = time.perf_counter() - began
    watch.stop()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {log.read_text(errors='replace')[-2000:]}")
    return Cost(usage.ru_utime + usage.ru_stime, wall, watch.peak / 1e6)


class _Peak(threading.Thread):
    """Looks at a process and its children until told to stop."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._process, self._over, self.peak = psutil.Process(pid), threading.Event(), 0

    def run(self) -> None:
        while not self._over.wait(_POLL_S):
            self.peak = max(self.peak, self._now())

    def stop(self) -> None:
        self._over.set()
        self.join()

    def _now(self) -> int:
        total = 0
        try:
            for one in [self._process, *self._process.children(recursive=True)]:
                total += one.memory_full_info().pss
        except psutil.Error:  # one of them has just ended
            pass
        return total
