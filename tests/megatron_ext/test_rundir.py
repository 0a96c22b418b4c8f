"""One writer per run folder; verdicts; files that are whole or not there."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from megatron_ext.config import rundir
from megatron_ext.config.rundir import Lock, lock_owner, read_verdict, write_atomically, write_verdict


@pytest.fixture(autouse=True)
def outside_slurm(monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)


def write_lock(folder, **owner):
    owner = {"host": socket.gethostname(), "pid": os.getpid(), "job": "", **owner}
    (folder / "lock.json").write_text(json.dumps(owner))


@pytest.fixture
def sleeper():
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process.pid
    process.kill()
    process.wait()


def dead_pid():
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_a_free_folder_is_taken_and_given_back(tmp_path):
    assert lock_owner(tmp_path) is None
    lock = Lock(tmp_path)
    lock.acquire()
    assert json.loads((tmp_path / "lock.json").read_text())["pid"] == os.getpid()
    lock.release()
    assert not (tmp_path / "lock.json").exists()
    lock.release()  # a second time does no harm


def test_a_live_process_keeps_its_folder(tmp_path, sleeper):
    write_lock(tmp_path, pid=sleeper)
    with pytest.raises(ValueError) as caught:
        Lock(tmp_path).acquire()
    assert all(part in str(caught.value) for part in (str(tmp_path), f"pid {sleeper}", "name=", "wait"))
    assert json.loads((tmp_path / "lock.json").read_text())["pid"] == sleeper
    Lock(tmp_path).release()  # not ours: it stays
    assert (tmp_path / "lock.json").exists()


def test_the_folder_of_a_dead_process_is_taken_over(tmp_path):
    write_lock(tmp_path, pid=dead_pid())
    assert lock_owner(tmp_path) is None
    Lock(tmp_path).acquire()
    assert json.loads((tmp_path / "lock.json").read_text())["pid"] == os.getpid()


def test_another_host_without_slurm_may_be_alive(tmp_path):
    """Its process table cannot be seen from here: two writers would be worse than a question to the user."""
    write_lock(tmp_path, host="elsewhere", pid=dead_pid())
    with pytest.raises(ValueError, match="elsewhere"):
        Lock(tmp_path).acquire()


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", '{"host": "a"}', "3", "\x00\x00"])
def test_a_damaged_lock_is_taken_over(tmp_path, text):
    """A machine that lost power leaves such a file; its writer is gone with it."""
    (tmp_path / "lock.json").write_text(text)
    long_ago = time.time() - 3600
    os.utime(tmp_path / "lock.json", (long_ago, long_ago))
    assert lock_owner(tmp_path) is None
    lock = Lock(tmp_path)
    lock.acquire()
    lock.release()
    assert not (tmp_path / "lock.json").exists()


def test_a_lock_of_this_job_is_an_earlier_attempts(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    write_lock(tmp_path, host="elsewhere", job="17")
    assert lock_owner(tmp_path) is None
    Lock(tmp_path).acquire()


@pytest.mark.parametrize(
    "script, alive",
    [
        ("echo RUNNING", True),
        ("echo COMPLETING", True),
        ("echo SUSPENDED", True),
        ("echo PENDING; echo RUNNING", True),  # a task of an array whose number is the array's
        ("echo PENDING", False),
        ("true", False),
        ("echo slurm_load_jobs error: Invalid job id specified >&2; exit 1", False),
        ("echo Unable to contact slurm controller >&2; exit 1", True),  # unknown: no takeover
    ],
)
def test_a_lock_of_another_job_lives_as_long_as_slurm_says(tmp_path, monkeypatch, script, alive):
    squeue = tmp_path / "squeue"
    squeue.write_text(f"#!/bin/sh\n{script}\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    write_lock(tmp_path, host="elsewhere", job="18")
    assert (lock_owner(tmp_path) is not None) == alive
    if alive:
        with pytest.raises(ValueError, match=r"\(job 18\)"):
            Lock(tmp_path).acquire()


RACE = """
import pathlib, sys, time
from megatron_ext.config.rundir import Lock
folder = pathlib.Path(sys.argv[1])
lock = Lock(folder)
print("ready", flush=True)
sys.stdin.readline()
try:
    lock.acquire()
except ValueError as error:
    print("refused", error, flush=True)
else:
    print("taken", flush=True)
sys.stdin.readline()  # keep it until all have tried
"""


@pytest.mark.parametrize("before", ["free", "dead"])
def test_of_processes_that_race_exactly_one_wins(tmp_path, before):
    for attempt in range(4):
        folder = tmp_path / f"{before}{attempt}"
        folder.mkdir()
        if before == "dead":
            write_lock(folder, pid=dead_pid())
        racers = [
            subprocess.Popen(
                [sys.executable, "-c", RACE, str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=rundir.__file__.split("megatron_ext")[0],
            )
            for _ in range(4)
        ]
        for racer in racers:
            assert racer.stdout.readline() == "ready\n"
        for racer in racers:
            racer.stdin.write("\n")
            racer.stdin.flush()
        answers = [racer.stdout.readline().split()[0] for racer in racers]
        for racer in racers:
            racer.communicate("\n")
        assert sorted(answers) == ["refused"] * 3 + ["taken"]
        assert [path.name for path in folder.iterdir()] == ["lock.json"]


# --- verdicts and files ------------------------------------------------------------------------------------------


def test_verdicts(tmp_path):
    assert read_verdict(tmp_path) is None
    write_verdict(tmp_path, "stopped", 7, "SIGTERM, né")
    assert read_verdict(tmp_path) == {"state": "stopped", "step": 7, "reason": "SIGTERM, né"}
    write_verdict(tmp_path, "done", 9, "all steps made")
    assert read_verdict(tmp_path)["state"] == "done"
    assert [path.name for path in tmp_path.iterdir()] == ["verdict.json"]


def test_paths_of_a_run(tmp_path):
    folder = rundir.folder(str(tmp_path), "a")
    names = [rundir.run_yaml(folder), rundir.checkpoints(folder), rundir.failures(folder), rundir.logs(folder),
             rundir.metrics(folder)]  # fmt: skip
    assert folder == tmp_path / "a" and {path.parent for path in names} == {folder}
    assert len({path.name for path in names}) == 5


WRITER = """
import pathlib, sys
from megatron_ext.config.rundir import write_atomically
path = pathlib.Path(sys.argv[1])
number = 0
while True:
    number += 1
    write_atomically(path, f"{number} " * 20000)
"""


def test_a_file_is_whole_at_every_moment_and_after_a_kill(tmp_path):
    path = tmp_path / "file"
    write_atomically(path, "0 " * 20000)
    for _ in range(3):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], cwd=rundir.__file__.split("megatron_ext")[0]
        )
        deadline, seen = time.monotonic() + 30, set()
        while len(seen) < 20 and time.monotonic() < deadline:
            words = path.read_text().split()
            assert len(words) == 20000 and len(set(words)) == 1
            seen.add(words[0])
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        assert len(seen) >= 20
        words = path.read_text().split()
        assert len(words) == 20000 and len(set(words)) == 1
    write_atomically(path, "after")
    assert path.read_text() == "after"


def test_threads_of_one_process_do_not_mix_their_files(tmp_path):
    path = tmp_path / "file"
    texts = [letter * 10000 for letter in "abcd"]
    failures = []

    def write(text):
        try:
            for _ in range(20):
                write_atomically(path, text)
        except OSError as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and path.read_text() in texts


def test_a_write_that_fails_leaves_the_old_content(tmp_path):
    path = tmp_path / "file"
    write_atomically(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "\ud800")
    assert path.read_text() == "old" and [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_two_runs_of_one_slurm_job_exclude_each_other_and_a_requeued_one_takes_over(tmp_path, monkeypatch):
    """Both commands in one salloc have the same job id; only another start of the job may take over."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    holder = subprocess.Popen(
        [sys.executable, "-c", f"from pathlib import Path; from megatron_ext.config.rundir import Lock\n"
         f"Lock(Path({str(tmp_path)!r})).acquire(); print('held', flush=True); input()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(ValueError, match="in use"):
        rundir.Lock(tmp_path).acquire()
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    rundir.Lock(tmp_path).acquire()
    holder.communicate("\n")
