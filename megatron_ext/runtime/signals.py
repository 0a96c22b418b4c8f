"""Signals that ask a run to save and stop: a handler only sets a flag, the step loop asks all ranks about it."""

from __future__ import annotations

import signal
from typing import Any, List

# TERM: Slurm's end of the grace time, and people. USR1 and USR2: what schedulers send ahead of it; which of the two
# depends on the site. CONT follows them under Slurm and means nothing to us.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


class StopFlag:
    """Installed before anything slow is imported, so that a signal during start-up is not lost."""

    def __init__(self) -> None:
        self.received: List[str] = []
        for number in STOP_SIGNALS:
            signal.signal(number, self._note)

    def _note(self, number: int, frame: Any) -> None:
        self.received.append(signal.Signals(number).name)

    def __bool__(self) -> bool:
        return bool(self.received)


def ignore_stop_signals() -> None:
    """For the way out: what is to be saved is saved, and nothing is left to stop."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
