"""Injected slowness on four gloo ranks with DistributedDataParallel: the right rank, for the right reason, no other.

On a machine with fewer cores than ranks, too. `make test` has one kind and one seed, since a job takes its time; the
soak has the other kinds, and twenty seeds of each.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes import Spawner
from tests.straggler.injected.jobs import EXPECTED, run

SEEDS = (1,)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    "kind", ["busy", *(pytest.param(kind, marks=pytest.mark.variant) for kind in EXPECTED if kind != "busy")]
)
def test_the_rank_and_the_reason_are_named(spawn: Spawner, tmp_path: Path, kind: str, seed: int) -> None:
    job = run(spawn, tmp_path, kind, seed)
    assert job.found and not job.blamed_others, job.told()
    if kind == "gc":
        assert any(one["evidence"].startswith("garbage collection took ") for one in job.verdicts)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_rank_is_named_in_a_healthy_job(spawn: Spawner, tmp_path: Path, seed: int) -> None:
    job = run(spawn, tmp_path, "healthy", seed)
    assert len(job.reports) == 9 and not job.verdicts, job.told()
