"""Shell commands one after another: each printed before it runs, timed, and written to stages.json at its end."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

from megatron_ext.config.rundir import write_atomically

ROOT = Path(__file__).resolve().parents[1]  # commands run here: the paths in configs/ begin here
POLL_S = 0.2
PATIENCE_S = 120.0  # a command that is asked to end gets this long to save its work

Watch = Callable[[], bool]  # asked while a command runs; True once: stop it as a scheduler would


class StageFailed(RuntimeError):
    """A stage did not do what it is there to do; the message says which and why."""


class Journal:
    def __init__(self, path: Path, stages: int) -> None:
        self.path, self.stages = path, stages
        self.record: Dict[str, Any] = {"began": time.time(), "ended": None, "stages": []}
        self._write()

    def run(
        self, name: str, title: str, command: List[str], expected: int = 0, stop_when: Optional[Watch] = None
    ) -> Dict[str, Any]:
        """-> this stage's entry. Raises StageFailed when the exit code is not `expected`."""
        number = len(self.record["stages"]) + 1
        print(f"\n[{number}/{self.stages}] {title}\n$ {shlex.join(command)}", flush=True)
        began = time.time()
        code = _run(command, stop_when)
        entry = {
            "name": name,
            "title": title,
            "command": shlex.join(command),
            "began": began,
            "seconds": time.time() - began,
            "exit_code": code,
        }
        self.record["stages"].append(entry)
        self._write()
        if code != expected:
            wanted = "" if expected == 0 else f", not {expected}"
            raise StageFailed(f"stage {number} ({title.lower()}) ended with exit code {code}{wanted}")
        return entry

    def tell(self, entry: Dict[str, Any], says: str, figures: Dict[str, Any]) -> None:
        """What a stage has brought: one line on the terminal, numbers in the file."""
        entry.update(says=says, figures=figures)
        self._write()
        print(f"-> {says}, in {entry['seconds']:.0f} s", flush=True)

    def end(self, **facts: Any) -> None:
        self.record.update(facts, ended=time.time())
        self._write()

    def _write(self) -> None:
        write_atomically(self.path, json.dumps(self.record, indent=2) + "\n")


def environment() -> Dict[str, str]:
    """Commands and python are those installed beside the interpreter that runs this."""
    here = Path(sys.executable).parent
    path = os.pathsep.join([str(here), os.environ.get("PATH", os.defpath)])
    # Two cores, four ranks: more threads would only take turns. The Hugging Face folder is local, so nobody is asked.
    return {
        **os.environ,
        "PATH": path,
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONUNBUFFERED": "1",
    }


def _run(command: List[str], stop_when: Optional[Watch]) -> int:
    """-> exit code. Its output passes through; its progress bar too, when this is a terminal."""
    try:
        process = subprocess.Popen(command, cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        raise StageFailed(f"the command {command[0]} is not installed; `make venv` installs it") from None
    try:
        while process.poll() is None:
            if stop_when is not None and stop_when():
                print(f"$ kill -TERM {process.pid}   # as a scheduler does when the time is up", flush=True)
                process.send_signal(signal.SIGTERM)
                stop_when = None
            time.sleep(POLL_S)
        return process.returncode
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
