"""The judge on simulated jobs of which the truth is known."""

from __future__ import annotations

from collections import Counter
from functools import cache

from holdfast.incidents import rules
from holdfast.incidents.verdict import HIGH, LOW, Verdict
from tests.incidents.simulated_jobs import KINDS, Truth, healthy, outcome, simulated

SEEDS = range(250)
HEALTHY_STEPS = 200


@cache
def judged() -> tuple[tuple[int, Verdict, Truth], ...]:
    """All jobs of these seeds whose fault is possible."""
    made = ((seed, simulated(seed)) for seed in SEEDS)
    return tuple((seed, rules.judge(found[0]).verdict, found[1]) for seed, found in made if found)


def test_simulation_of_all_seeds_has_every_fault() -> None:
    assert {truth.fault for _, _, truth in judged()} == set(KINDS)


def test_simulation_of_one_seed_is_repeatable() -> None:
    assert simulated(11) == simulated(11)


def test_judge_with_complete_evidence_finds_the_culprit() -> None:
    complete = [each for each in judged() if each[2].is_complete and each[2].is_determined]
    outcomes = Counter(outcome(verdict, truth) for _, verdict, truth in complete)
    right = sum(verdict.kind in truth.kinds for _, verdict, truth in complete)

    assert len(complete) > 100
    assert outcomes["found"] >= 0.95 * len(complete), outcomes
    assert right >= 0.9 * len(complete)


def test_judge_is_never_wrong_with_high_confidence() -> None:
    wrong = [
        (seed, truth, verdict)
        for seed, verdict, truth in judged()
        if outcome(verdict, truth) == f"wrong {HIGH}"
    ]
    assert wrong == []


def test_judge_of_healthy_steps_accuses_no_rank() -> None:
    done, seed = 0, 0
    while done < HEALTHY_STEPS:
        for found, steps in healthy(seed):
            verdict = rules.judge(found).verdict
            assert verdict.rank is None or verdict.confidence == LOW, (seed, verdict)
            done += steps
        seed += 1
