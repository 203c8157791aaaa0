"""The clusters of the Slurm tests: one for each test process, emptied after each test, or one of a test's own."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import REQUIRED, Cluster, missing, running


def cluster_or_skip(*, accounting: bool = False, **kinds: int) -> Iterator[Cluster]:
    """Body of a session fixture: a cluster, or a skip that says what is missing; a failure where it must be there."""
    reason = missing(accounting)
    if reason and os.environ.get(REQUIRED) == "1":
        pytest.fail(f"{REQUIRED}=1, but {reason}")
    if reason:
        pytest.skip(reason)
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    folder.chmod(0o755)
    with running(folder, accounting=accounting, **kinds) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def shared_cluster(_private_places: None) -> Iterator[Cluster]:
    yield from cluster_or_skip()


@pytest.fixture(scope="session")
def accounting_cluster(_private_places: None) -> Iterator[Cluster]:
    yield from cluster_or_skip(accounting=True, nodes=2)


@pytest.fixture
def own_cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A cluster for one test alone, which may kill daemons and start them again (0.5 s more than the shared one)."""
    for cluster in cluster_or_skip(node_timeout=10):
        for name, value in cluster.environ.items():
            monkeypatch.setenv(name, value)
        yield cluster
    shutil.rmtree(cluster.settings.folder)


@pytest.fixture
def cluster(shared_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """The cluster with no job in it and SLURM_CONF set; all jobs are ended after the test."""
    for name, value in shared_cluster.environ.items():
        monkeypatch.setenv(name, value)
    yield shared_cluster
    shared_cluster.clear()
