"""The real trainer, on the real cluster: what a person who launches on Slurm relies on.

    llm-launch cluster=test_slurm parallel=tp2_pp2_dp2 model=llama_tiny data=demo train.steps=...

The run that is preempted ends with the bits of the one that is not.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Iterator

import pytest

from tests.cluster.cluster import Cluster
from tests.slurm.conftest import REPOSITORY, Launcher, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quiet_cluster")]

TINY = ["model=llama_tiny", "data=demo", "model.vocab_size=256", "model.seq_length=64", "train.precision=fp32"]
EIGHT_RANKS = [*TINY, "cluster=test_slurm", "parallel=tp2_pp2_dp2", "train.steps=16"]

WRITE_SHARD = """
import sys
from megatron_ext.runtime import device
device.install()
import numpy, torch
from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder
random, prefix = numpy.random.default_rng(0), sys.argv[1]
builder = IndexedDatasetBuilder(prefix + ".bin", dtype=DType.optimal_dtype(256))
for _ in range(300):
    builder.add_item(torch.from_numpy(random.integers(1, 255, size=int(random.integers(5, 300)))))
    builder.end_document()
builder.finalize(prefix + ".idx")
"""

COMPARE = """
import json, pickle, sys
import torch
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

def read(path):
    reader = FileSystemReader(path)
    kinds = reader.read_metadata().state_dict_metadata
    tensors = {name: kind for name, kind in kinds.items() if isinstance(kind, TensorStorageMetadata)}
    state = {name: torch.empty(kind.size, dtype=kind.properties.dtype) for name, kind in tensors.items()}
    _load_state_dict(state, reader, no_dist=True)
    return state

a, b = read(sys.argv[1]), read(sys.argv[2])
assert a.keys() == b.keys()
print(json.dumps([sum(torch.equal(a[k], b[k]) for k in a), len(a)]))
"""


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    """A launcher with a shard that holds data."""
    folder = tmp_path_factory.mktemp("training")
    subprocess.run([sys.executable, "-c", WRITE_SHARD, str(folder / "shard")], cwd=REPOSITORY, check=True)
    (folder / "shard.json").write_text(json.dumps({"tokenizer": {"vocab_size": 256, "sha256": "0"}}))
    launcher = Launcher(folder / "runs", folder / "shard")
    yield launcher
    launcher.end()


@pytest.fixture(scope="module")
def undisturbed(slurm_cluster: Cluster, trainer: Launcher) -> Path:
    answer = trainer.run("undisturbed", *EIGHT_RANKS)
    assert answer.returncode == 0, answer.stderr + trainer.log("undisturbed")
    assert "done at step 16" in answer.stdout
    return trainer.folder("undisturbed")


def losses(run: Path) -> list[tuple[int, float, float]]:
    lines: list[dict[str, Any]] = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], line["loss"], line["grad_norm"]) for line in lines]


def test_trains_on_two_nodes_of_four_tasks(undisturbed: Path, trainer: Launcher) -> None:
    heads = [trainer.log("undisturbed", rank).splitlines()[0] for rank in range(8)]
    nodes = [head.split(" on ")[1].split(",")[0] for head in heads]
    assert len(set(nodes[:4])) == len(set(nodes[4:])) == 1 and nodes[0] != nodes[4]
    steps = [step for step, _, _ in losses(undisturbed)]
    assert steps == list(range(1, 17))
    assert (undisturbed / "checkpoints" / "iter_0000016" / "metadata.json").exists()


def test_preempted_run_is_saved_requeued_and_ends_with_the_same_bits(undisturbed: Path, trainer: Launcher) -> None:
    process = trainer.start("preempted", *EIGHT_RANKS)
    run = trainer.folder("preempted")
    wait_until("four steps", lambda: "step       4/16" in trainer.log("preempted"))
    subprocess.run(
        ["srun", "--partition=high", "--nodes=4", "--exclusive", "--time=2", "true"],
        check=True,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=120,
    )
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert "stopped, saved at step" in out and "resumed from" in out and "pending (BeginTime)" in err
    assert losses(run) == losses(undisturbed)
    same, tensors = compare_checkpoints(
        run / "checkpoints" / "iter_0000016", undisturbed / "checkpoints" / "iter_0000016"
    )
    assert (same, tensors) == (27, 27)  # nine weights, and two of Adam's averages of each


def compare_checkpoints(a: Path, b: Path) -> tuple[int, int]:
    """-> how many tensors are bit-equal, and how many there are: weights and the optimizer's state."""
    answer = subprocess.run([sys.executable, "-c", COMPARE, str(a), str(b)], capture_output=True, text=True, check=True)
    same, tensors = json.loads(answer.stdout.splitlines()[-1])
    return same, tensors


def test_killed_rank_fails_the_job_at_once(trainer: Launcher) -> None:
    """Nothing is told to the trainer: one of its processes gets SIGKILL, as the kernel does when memory is short."""
    more = ["cluster=test_slurm", "parallel=tp2_pp2", "cluster.ranks_per_node=2", "train.steps=9999"]
    process = trainer.start("killed", *TINY, *more)
    wait_until("two steps", lambda: "step       2/" in trainer.log("killed"))
    os.kill(process_of_rank(trainer.folder("killed"), 3), signal.SIGKILL)
    killed = time.monotonic()
    out, err = process.communicate(timeout=60)
    assert time.monotonic() - killed < 15
    assert process.returncode == 1
    assert "rank 3 failed" in err and "killed by SIGKILL" in err


def process_of_rank(run: Path, rank: int) -> int:
    """The nodes have process namespaces of their own, but this machine sees them all."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_text().split("\0")
            environment = (folder / "environ").read_text().split("\0")
        except OSError:
            continue
        if "megatron_ext.train" in command and str(run) in command and f"RANK={rank}" in environment:
            return int(folder.name)
    raise AssertionError(f"no process of rank {rank}")
