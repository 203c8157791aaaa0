"""Twenty seeds of each injected slowness on four real ranks: at least 19 are found, and no other rank is blamed.

Some ten seconds each. Healthy jobs have no verdict at all.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.processes import Spawner
from tests.soak.conftest import promised
from tests.straggler.injected.jobs import EXPECTED, run

Row = Callable[[str, str, str], None]

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]


@pytest.mark.parametrize("kind", EXPECTED)
def test_the_rank_and_the_reason_are_named(spawn: Spawner, tmp_path: Path, kind: str, row: Row) -> None:
    seeds = promised(20)
    jobs = [run(spawn, tmp_path, kind, seed) for seed in range(seeds)]
    found, wrong = sum(job.found for job in jobs), [job for job in jobs if job.blamed_others]
    row(
        f"one of 4 gloo ranks slowed down: {kind}",
        f"{found} of {seeds} found, rank and kind",
        f"{len(wrong)} blamed another rank",
    )
    told = "\n\n".join(job.told() for job in jobs if job in wrong or not job.found)
    assert found >= seeds - seeds // 20 and not wrong, told


def test_no_rank_is_named_in_a_healthy_job(spawn: Spawner, tmp_path: Path, row: Row) -> None:
    seeds = promised(20)
    jobs = [run(spawn, tmp_path, "healthy", seed) for seed in range(seeds)]
    wrong = [job for job in jobs if job.verdicts]
    row(
        "healthy job of 4 gloo ranks",
        f"{len(wrong)} of {seeds} with a verdict",
        f"{len(jobs[0].reports)} reports each",
    )
    assert not wrong, "\n\n".join(job.told() for job in wrong)
