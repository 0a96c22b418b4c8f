"""cluster=local: the ranks on this machine, through torchrun.

torchrun's agent dies of SIGUSR1 and SIGUSR2 and hands none of them on, and its ranks live in sessions of their own. So
the launcher signals the ranks directly.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable, List

from megatron_ext.config import rundir
from megatron_ext.config.schema import Run, world_size
from slurm import folder as folders
from slurm import processes, report
from slurm.tail import Tail

Say = Callable[[str], None]
POLL_S = 0.1
PATIENCE_S = 5.0  # after a rank has failed the others get this long to end by themselves


def command(run: Run, folder: Path, module: str) -> List[str]:
    """The shell that does the set-up and becomes torchrun."""
    python = run.cluster.python or sys.executable
    torchrun = [python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world_size(run.parallel)}"]
    script = "\n".join([*folders.setup_lines(run, folder), 'exec "$@"'])
    return ["bash", "-c", script, "setup", *torchrun, "-m", "slurm.rank", str(folder), f"--module={module}"]


def start(run: Run, folder: Path, module: str, show: Callable[[str], None], say: Say) -> report.Outcome:
    """Runs to the end. SIGTERM, SIGINT, SIGUSR1 and SIGUSR2 have the run save and stop; a second SIGINT kills it."""
    relay = processes.Relay().listen(extra=[signal.SIGINT])
    tail = Tail(report.rank_log(folder, 0))
    agent_log = rundir.logs(folder) / "torchrun.log"
    for stale in rundir.failures(folder).glob("rank_*.txt"):  # of an earlier start; the shell below may be too late
        stale.unlink()
    with open(agent_log, "ab") as log:
        agent = subprocess.Popen(
            command(run, folder, module),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # else the terminal's Ctrl-C reaches the agent too, which would not let them save
            preexec_fn=lambda: processes.die_with_parent(signal.SIGTERM),
        )
    told, failed_at = 0, None
    while agent.poll() is None:
        show(tail.read())
        ranks = processes.children(agent.pid)
        relay.deliver(ranks)
        for number in relay.noted[told:]:
            say(f"{number.name}: the run saves and stops{'; again to kill it' if number == signal.SIGINT else ''}")
        told = len(relay.noted)
        if failed_at is None and any(rundir.failures(folder).glob("rank_*.txt")):
            failed_at = time.monotonic()
        gave_up = failed_at is not None and time.monotonic() - failed_at > PATIENCE_S
        if gave_up or relay.noted.count(signal.SIGINT) > 1:
            for pid in ranks:
                processes.send(pid, signal.SIGKILL)
        time.sleep(POLL_S)
    show(tail.read())
    return report.outcome(folder, f"torchrun ended with code {agent.returncode}", agent_log)
