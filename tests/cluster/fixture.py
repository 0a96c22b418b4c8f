"""`slurm_cluster`: one cluster for the whole test session, taken down at its end."""

from __future__ import annotations

from typing import Iterator

import pytest

from tests.cluster.cluster import Cluster, exclusive, temporary_root


@pytest.fixture(scope="session")
def slurm_cluster() -> Iterator[Cluster]:
    """A running cluster of four nodes; sets SLURM_CONF for the session. Waits for another session's cluster to end."""
    patch = pytest.MonkeyPatch()
    with exclusive(wait_s=900):
        cluster = Cluster(temporary_root())
        cluster.up()
        patch.setenv("SLURM_CONF", cluster.environment()["SLURM_CONF"])
        try:
            yield cluster
        finally:
            patch.undo()
            cluster.down()
