"""Stop signals reach a process that still starts, once, and do not kill it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from typing import Callable

import pytest

from slurm import processes
from tests.slurm.conftest import REPOSITORY, wait_until

SLOW_STARTER = """
import signal, sys, time
time.sleep(0.5)  # a long import
seen = []
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, lambda number, frame: seen.append(number))
print("ready", flush=True)
end = time.monotonic() + 0.7
while time.monotonic() < end:
    time.sleep(0.01)
print(seen, flush=True)
"""


def test_signal_is_held_until_the_process_catches_it() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_STARTER], stdout=subprocess.PIPE, text=True, preexec_fn=processes.shielded
    )
    relay = processes.Relay()
    relay.noted.append(signal.SIGUSR2)
    processes.send(process.pid, signal.SIGTERM)  # straight to it while it starts: must not kill it
    while process.poll() is None:
        relay.deliver([process.pid])
        time.sleep(0.05)
    assert process.stdout is not None
    assert process.stdout.read().split() == ["ready", f"[{int(signal.SIGUSR2)}]"]  # once, though offered many times
    assert process.returncode == 0


@pytest.mark.parametrize("name", ["TERM", "USR1", "USR2"])
def test_shell_shield_keeps_a_signal_until_the_program_listens(name: str) -> None:
    listener = """
import time
time.sleep(0.5)  # a long import
from slurm.processes import Relay
relay = Relay().listen()
time.sleep(0.1)
print([number.name for number in relay.noted])
"""
    process = subprocess.Popen(
        [*processes.SHIELD, sys.executable, "-c", listener], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True
    )
    time.sleep(0.3)
    process.send_signal(getattr(signal, f"SIG{name}"))
    assert process.communicate(timeout=20)[0] == f"['SIG{name}']\n"
    assert process.returncode == 0


def test_shell_shield_without_a_blocking_env_lets_the_program_live(fake_slurm: Callable[[str, str], None]) -> None:
    """Older coreutils: the signal is lost, the program is not."""
    fake_slurm("env", "exit 125")
    process = subprocess.Popen(
        [*processes.SHIELD, sys.executable, "-c", SLOW_STARTER], stdout=subprocess.PIPE, text=True
    )
    time.sleep(0.3)
    process.send_signal(signal.SIGUSR1)
    assert process.communicate(timeout=20)[0].split() == ["ready", "[]"]


def test_child_dies_with_a_killed_parent() -> None:
    """Else a rank goes on writing the run folder after Slurm has given its task up."""
    code = (
        "import subprocess, sys, time; from slurm.processes import shielded;"
        "c = subprocess.Popen(['sleep', '60'], preexec_fn=shielded); print(c.pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert processes.children(parent.pid) == [child]
    parent.kill()
    parent.wait()
    wait_until("end of the child", lambda: not _runs(child), seconds=5)


def _runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_gone_process_catches_nothing() -> None:
    assert not processes.catches(2**22 + 1, signal.SIGTERM)
    processes.send(2**22 + 1, signal.SIGTERM)  # and is no error
