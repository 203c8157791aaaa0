"""The judge on simulated jobs of which the truth is known; thousands of seeds: `tests.incidents.simulated_jobs`."""

from __future__ import annotations

from collections import Counter
from functools import cache

from holdfast.incidents import rules
from holdfast.incidents.evidence import Case, Missing
from holdfast.incidents.verdict import HIGH, LOW, MEDIUM, Verdict
from tests.incidents.cases import board, case, ended, entry, judge, process, rank
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
    """More of them: `python -m tests.incidents.simulated_jobs --healthy 100000`."""
    done, seed = 0, 0
    while done < HEALTHY_STEPS:
        for found, steps in healthy(seed):
            verdict = rules.judge(found).verdict
            assert verdict.rank is None or verdict.confidence == LOW, (seed, verdict)
            done += steps
        seed += 1


# -- what the simulation has found -------------------------------------------------------------------------------


def nccl(unread: Missing) -> Case:
    """Four ranks spin: 0 and 1 wait for 3, whose recorder shows it, and that of 2 could not be read."""
    past, now = entry(5, "nccl:all_reduce", state="completed"), entry(6, "nccl:all_reduce", state="scheduled")
    ranks = [
        rank(number, "busy", process=process("busy"), collectives=(past, now) if number < 2 else (past,))
        for number in range(4)
    ]
    ranks[2] = rank(2, "busy", process=process("busy"), collectives=(), no_collectives=unread)
    return case(*ranks)


def test_rank_whose_recorder_is_unread_is_not_accused() -> None:
    for unread in (Missing.TOO_LATE, Missing.NOT_RECORDED, Missing.FAILED):
        verdict = judge(nccl(unread))
        assert (verdict.rank, verdict.kind) == (3, "user_code")


def test_rank_alone_with_an_unread_recorder_is_not_certain() -> None:
    """It computes, or it waits for its GPU as the others do: nothing shows that these wait for it."""
    now = entry(6, "nccl:all_reduce", state="scheduled", backend="nccl")
    ranks = [rank(number, "busy", process=process("busy"), collectives=(now,)) for number in range(3)]
    ranks[1] = rank(1, "busy", process=process("busy"), collectives=(), no_collectives=Missing.FAILED)
    verdict = judge(case(*ranks))

    assert verdict.rank in (1, None) and verdict.confidence == LOW


def test_edge_to_a_rank_with_an_unread_recorder_is_none() -> None:
    edges = rules.judge(nccl(Missing.TOO_LATE)).edges

    assert [edge.awaited for edge in edges if edge.via == "recorder"] == [(3,)]


def test_silence_before_the_first_sign_of_life_means_little() -> None:
    """A diagnosis on request: imports and the first step may take minutes."""
    quiet = board(step=None, silent=60.0, heartbeats=0, age=60.0, events=(), rhythm=0.0)
    ranks = [rank(0, board=quiet), rank(1, "loader", board=quiet)]

    assert judge(case(*ranks, trigger="diagnose", accused=None)).confidence == LOW


def test_silence_that_is_usual_for_other_ranks_means_little() -> None:
    """Steps are enqueued ahead, and at the first read of the loss no sign of life comes for a while."""
    waits = rank(0, board=board(silent=14.0, rhythm=0.1))
    computes = rank(1, "busy", process=process("busy"), board=board(silent=14.0, rhythm=0.1))
    ahead = rank(2, board=board(silent=0.3, rhythm=14.0))
    verdict = judge(case(waits, computes, ahead, trigger="diagnose", accused=None))

    assert (verdict.rank, verdict.confidence) == (1, LOW)


def test_native_waits_for_a_rank_that_ended_name_it() -> None:
    native = [rank(number, "async") for number in (0, 2)]
    verdict = judge(case(native[0], ended(1, 0, ago=30.0), native[1]))

    assert (verdict.rank, verdict.kind, verdict.confidence) == (1, "early_exit", MEDIUM)


def test_gpu_that_is_late_in_a_group_of_two_is_named() -> None:
    states = ("started", "scheduled")
    ranks = [
        rank(number, "busy", process=process("busy"), collectives=(entry(6, "nccl:all_reduce", state=state),))
        for number, state in enumerate(states)
    ]
    assert judge(case(*ranks)).rank == 1
