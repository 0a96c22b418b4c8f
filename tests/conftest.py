"""One thread a process, repeatable hypothesis runs, a small shard: what all tests share."""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before anything imports torch: many ranks share a few cores
os.environ["CUDA_VISIBLE_DEVICES"] = ""  # ranks are forked, and compared with each other, on the CPU

import hypothesis
import pytest

from tests.cluster import fixture

# Derandomised: the same examples in every run. The first example of a test may import torch, so no deadline.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("repeatable")

SHARD_VOCABULARY = 120
slurm_cluster = fixture.slurm_cluster  # here, so that the whole session has one: the machine has no second


@pytest.fixture(scope="session")
def shard(tmp_path_factory):
    """Prefix of a shard of 80 documents with ids below SHARD_VOCABULARY."""
    from benchmarks.equivalence import write_shard

    prefix = tmp_path_factory.mktemp("shard") / "shard"
    write_shard(prefix, SHARD_VOCABULARY, documents=80)
    return str(prefix)


@pytest.fixture(scope="session")
def megatron_core():
    """For tests that use megatron-core in this very process: what it needs without a GPU must precede its import."""
    from megatron_ext.runtime import device

    device.install()
