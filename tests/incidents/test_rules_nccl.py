"""Hand-made evidence of NCCL jobs, by an author who had not read the rules: which rank is named, and the kind."""

from __future__ import annotations

import pytest

from benchmarks.faults.nccl_evidence import INCIDENTS
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
