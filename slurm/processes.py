"""Stop signals from whoever starts a run (a person, torchrun, Slurm) to the process that can save it.

A signal that arrives while a process still imports torch would kill it or be lost. So a process is started with these
signals ignored, and each signal is held back until the process has a handler for it. Linux only: reads /proc.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from pathlib import Path
from types import FrameType
from typing import Iterable, List, Optional, Set, Tuple

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
_PR_SET_PDEATHSIG = 1  # linux/prctl.h

# The same for a command line: what comes while python starts is ignored, and where `env` can block signals (coreutils
# 8.31, 2019) it is kept for `listen` instead, since Linux never discards a blocked signal. exec hands both on.
SHIELD_SCRIPT = (
    'trap "" TERM USR1 USR2; env --block-signal=TERM true 2>/dev/null && '
    'exec env --block-signal=TERM,USR1,USR2 "$@"; exec "$@"'
)
SHIELD = ["sh", "-c", SHIELD_SCRIPT, "shield"]


class Relay:
    """Notes stop signals by a handler that does nothing else; `deliver` passes each on, once to each process."""

    def __init__(self) -> None:
        self.noted: List[signal.Signals] = []
        self._delivered: Set[Tuple[int, signal.Signals]] = set()

    def listen(self, extra: Iterable[signal.Signals] = ()) -> "Relay":
        for number in (*STOP_SIGNALS, *extra):
            signal.signal(number, self._note)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)  # now comes what SHIELD has kept
        return self

    def _note(self, number: int, frame: Optional[FrameType]) -> None:
        self.noted.append(signal.Signals(number))

    def deliver(self, pids: Iterable[int]) -> None:
        """Call it again and again: what a process does not yet catch is kept for it."""
        for pid in pids:
            for number in [signal.SIGTERM if n == signal.SIGINT else n for n in self.noted]:
                if (pid, number) not in self._delivered and catches(pid, number):
                    self._delivered.add((pid, number))
                    send(pid, number)


def shielded() -> None:
    """For Popen's preexec_fn: ignore the stop signals until a handler is there, and die with the parent."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    die_with_parent(signal.SIGKILL)


def die_with_parent(how: signal.Signals) -> None:
    """Else a child outlives a parent that was killed, and goes on writing the run folder."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(how), 0, 0, 0)


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether the process has its own handler for the signal; False when the process is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    mask = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(mask, 16) >> (number - 1) & 1)


def children(pid: int) -> List[int]:
    """The living children of a process."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rsplit(")", 1)[1].split()[:2]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(parent) == pid and state != "Z":
            found.append(int(stat.parent.name))
    return sorted(found)


def send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # it may have ended by itself meanwhile
        os.kill(pid, number)
