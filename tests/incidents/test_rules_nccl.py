"""Hand-made evidence of NCCL jobs, by an author who had not read the rules: which rank is named, and the kind."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.faults.nccl_evidence import BUSY, INCIDENTS, Job
from holdfast.incidents import judge


@pytest.mark.parametrize(
    ("name", "culprits", "kinds", "why", "job"), INCIDENTS, ids=[each[0] for each in INCIDENTS]
)
def test_judge_nccl_incident_as_its_author(name, culprits, kinds, why, job) -> None:  # type: ignore[no-untyped-def]
    verdict = judge(job.fragments()).verdict
    assert verdict.rank in culprits and verdict.kind in kinds, f"{why} It said: {verdict.sentence}"


def test_judge_names_what_the_culprit_missed_first() -> None:
    """Its data-parallel all-reduce is missing too, because it never came that far."""
    jobs = {name: job for name, _, _, _, job in INCIDENTS}
    assert "(sequence 90211)" in judge(jobs["sleeps_upstream"].fragments()).verdict.sentence
    group = judge(jobs["uneven_all_to_all"].fragments()).verdict.sentence
    assert group.startswith("Ranks 8-15 wait in all_to_all") and "others wait for them" in group


@pytest.mark.parametrize("state", ["scheduled", "completed"])
def test_judge_takes_an_old_collective_of_gloo_for_no_wait(state: str) -> None:
    """Its recorder does not always show completion: without that it says nothing, also beside NCCL's."""
    job = Job(nodes=2)
    last: dict[str, Any] = {
        "operation": "nccl:all_reduce",
        "group": "1",
        "members": [*job.everyone],
        "sizes": "[[8]]",
    }
    last |= {"dtype": "Float", "sequence": 41, "state": "completed", "ago": 601.0, "backend": "nccl"}
    of_gloo = last | {"group": "2", "ago": 900.0, "backend": "gloo", "state": state}
    for rank in job.everyone:
        pending = [] if rank == 9 else [last | {"sequence": 42, "state": "scheduled", "ago": 600.0}]
        job.ranks[rank]["collectives"] = [of_gloo, last, *pending]
    job.sits(9, BUSY, "train/loop.py:202 Trainer.collect")
    verdict = judge(job.fragments()).verdict
    assert (verdict.rank, verdict.kind, verdict.confidence) == (9, "user_code", "high"), verdict.sentence
