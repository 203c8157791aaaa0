"""Our judge and torch's own analyser of flight-recorder dumps, on the same dumps of NCCL's form.

Where torch's analyser has an answer, ours agrees, but for `DIFFERS`, which has the reason of each.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.incidents.verdict import HIGH, LOW
from tests.incidents.recorder_dumps import Answer, Groups, Recorder, analysed, judged

WORLD = Groups({"0:default_pg": range(4)})
PARALLEL = Groups({"0:default_pg": range(4), "1:tp": [0, 1], "2:tp": [2, 3], "3:dp": [0, 2], "4:dp": [1, 3]})
ONE_NAME = Groups({"0:default_pg": range(4), "7:tp": [0, 1], "8:tp": [2, 3]})
Jobs = list[Recorder]


def job(then: Callable[[Recorder, int], object], groups: Groups = WORLD, past: int = 3) -> Jobs:
    """Four ranks: some collectives of all, and then what each of them does."""
    found = []
    for rank in range(4):
        recorder = Recorder(rank, groups)
        for _ in range(past):
            recorder.call("all_reduce")
        then(recorder, rank)
        found.append(recorder)
    return found


def all_but(
    odd: int, otherwise: Callable[[Recorder], object] = lambda recorder: None
) -> Callable[[Recorder, int], object]:
    """All ranks are in an all_reduce, and one does something else."""
    return lambda recorder, rank: (
        otherwise(recorder) if rank == odd else recorder.call("all_reduce", "started")
    )


def ahead(recorder: Recorder, rank: int) -> None:
    """All but 1 have enqueued collectives ahead, each another number of them."""
    if rank != 1:
        recorder.call("all_reduce", "started")
        for _ in range(rank + 1):
            recorder.call("all_reduce", "scheduled")


def other_order(recorder: Recorder, rank: int) -> None:
    operations = ("broadcast", "all_reduce") if rank == 2 else ("all_reduce", "broadcast")
    recorder.call(operations[0], "started").call(operations[1], "scheduled")


def in_dp(recorder: Recorder, rank: int) -> None:
    """3 never came to its tensor-parallel collective; 2 waits for it there, and 0 and 1 for these in theirs."""
    tp, dp = ("1:tp" if rank < 2 else "2:tp"), ("3:dp" if rank % 2 == 0 else "4:dp")
    recorder.call("all_reduce", "completed", tp)
    if rank < 2:
        recorder.call("all_reduce", "completed", tp).call("all_reduce", "started", dp)
    elif rank == 2:
        recorder.call("all_reduce", "started", tp)


def in_one_of_two(recorder: Recorder, rank: int) -> None:
    """Both groups are called `tp`. 3 never came to the second collective of its own; 0 and 1 compute."""
    group = "7:tp" if rank < 2 else "8:tp"
    recorder.call("all_reduce", "completed", group)
    if rank < 2:
        recorder.call("all_reduce", "completed", group)
    elif rank == 2:
        recorder.call("all_reduce", "started", group)


def batch(recorder: Recorder, first: str = "all_reduce") -> None:
    recorder.call(first, "scheduled").call("all_reduce", "scheduled", batch=True)
    recorder.call("allreduce_coalesced", "started", batch=True)


def missing(*ranks: int) -> Answer:
    return Answer(missing=frozenset(ranks))


def errors(how: str, *ranks: int) -> Answer:
    return Answer(errors=frozenset((rank, how) for rank in ranks))


TYPE, SIZE = "COLLECTIVE_TYPE_MISMATCH", "SIZE_OR_SYNTAX_MISMATCH"
DTYPE, STATE = "COLLECTIVE_DTYPE_MISMATCH", "COLLECTIVE_STATE_MISMATCH"
AGREES: dict[str, tuple[Jobs, Answer, int, str]] = {
    "missing rank": (job(all_but(2)), missing(2), 2, "user_code"),
    "missing first rank": (job(all_but(0)), missing(0), 0, "user_code"),
    "missing rank, others ahead": (job(ahead), missing(1), 1, "user_code"),
    "operation": (
        job(all_but(2, lambda each: each.call("broadcast", "started"))), errors(TYPE, 2), 2, "mismatched_collective",
    ),
    "size": (
        job(all_but(1, lambda each: each.call("all_reduce", "started", sizes=[[8]]))), errors(SIZE, 1), 1,
        "mismatched_collective",
    ),
    "type": (
        job(all_but(1, lambda each: each.call("all_reduce", "started", dtype="Half"))), errors(DTYPE, 1), 1,
        "mismatched_collective",
    ),
    "order": (job(other_order), errors(TYPE, 2), 2, "mismatched_collective"),
    "GPU that never began": (
        job(all_but(3, lambda each: each.call("all_reduce", "scheduled"))), errors(STATE, 3), 3, "missing_collective",
    ),
    "one of two groups of one name": (job(in_one_of_two, ONE_NAME), missing(3), 3, "user_code"),
    "batch of collectives": (
        job(lambda each, rank: batch(each) if rank != 2 else None), missing(2), 2, "user_code",
    ),
    "operation in a batch": (
        job(lambda each, rank: batch(each, "broadcast" if rank == 2 else "all_reduce")), errors(TYPE, 2), 2,
        "mismatched_collective",
    ),
}  # fmt: skip
"""Name: the job, torch's answer, our culprit and kind."""


@pytest.mark.parametrize("name", AGREES)
def test_judge_and_torchs_analyser_agree(name: str) -> None:
    found, answer, culprit, kind = AGREES[name]
    verdict = judged(found).verdict

    assert analysed(found) == answer
    assert (verdict.rank, verdict.kind) == (culprit, kind)
    assert {verdict.rank} == answer.missing | {rank for rank, _ in answer.errors}


def chain(recorder: Recorder, rank: int) -> None:
    """A pipeline: each receives from the one before, and 0 never sends."""
    if rank:
        recorder.p2p("recv", rank - 1, "started")


def healthy_chain(recorder: Recorder, rank: int) -> None:
    if rank < 3:
        recorder.p2p("send", rank + 1, "completed")
    if rank:
        recorder.p2p("recv", rank - 1, "completed")


def ring(recorder: Recorder, rank: int) -> None:
    """Sends and receives in one batch; 2 never came."""
    if rank != 2:
        recorder.p2p("send", (rank + 1) % 4, "scheduled")
        recorder.p2p("recv", (rank - 1) % 4, "scheduled", batch=True).coalesced("started")


def wrong_ring(recorder: Recorder, rank: int) -> None:
    """2 sends to 1 in place of 3. The batches of 0 and 1 end, and these two wait for the others."""
    recorder.p2p("send", 1 if rank == 2 else (rank + 1) % 4, "scheduled")
    recorder.p2p("recv", (rank - 1) % 4, "scheduled", batch=True)
    recorder.coalesced("completed" if rank < 2 else "started")
    if rank < 2:
        recorder.call("all_reduce", "started")


NONE = Answer()
DIFFERS: dict[str, tuple[Jobs, Answer, int | None, str]] = {
    # torch compares all ranks with the first one; we take the majority
    "wrong first rank": (
        job(all_but(0, lambda each: each.call("broadcast", "started"))), errors(TYPE, 1, 2, 3), 0,
        "mismatched_collective",
    ),
    "first GPU that never began": (
        job(all_but(0, lambda each: each.call("all_reduce", "scheduled"))), errors(STATE, 1, 2, 3), 0,
        "missing_collective",
    ),
    # torch lists both; we name one as a guess
    "two of four missing": (
        job(lambda each, rank: rank < 2 and each.call("all_reduce", "started")), missing(2, 3), 2, "user_code",
    ),
    # torch names 2, which waits for 3 in another group; we follow the waits to their end
    "victim in another group": (job(in_dp, PARALLEL), missing(2), 3, "user_code"),
    # torch counts the rank as missing from the batch; we compare the operations of one number
    "operation beside a batch": (
        job(lambda each, rank: batch(each) if rank != 2 else each.call("broadcast", "started")), missing(2), 2,
        "mismatched_collective",
    ),
    # torch compares a receive with the receives of other ranks; we follow the peers
    "pipeline": (job(chain), errors(SIZE, 2, 3), 0, "user_code"),
    "healthy pipeline": (job(healthy_chain), errors(SIZE, 1, 2, 3), None, "slow"),
    # torch has no answer where a batch is missing
    "ring": (job(ring), NONE, 2, "user_code"),
    # the ranks wait for each other, and the number of the missing send is not known
    "wrong ring": (job(wrong_ring), missing(2, 3), None, "mismatched_collective"),
}  # fmt: skip
"""Name: the job, torch's answer, our culprit and kind."""


@pytest.mark.parametrize("name", DIFFERS)
def test_judge_and_torchs_analyser_differ_with_a_reason(name: str) -> None:
    found, answer, culprit, kind = DIFFERS[name]
    verdict = judged(found).verdict

    assert analysed(found) == answer
    assert (verdict.rank, verdict.kind) == (culprit, kind)


def test_of_two_that_are_missing_alike_one_is_a_guess() -> None:
    assert judged(DIFFERS["two of four missing"][0]).verdict.confidence == LOW


HEALTHY: dict[str, Jobs] = {
    "completed": job(lambda each, rank: each.call("all_reduce")),
    "all in it": job(lambda each, rank: each.call("all_reduce", "started")),
    "sizes of all to all": job(
        lambda each, rank: each.call("all_to_all", "started", sizes=[[8 * rank + 8]], out=[[20]])
    ),
    "scatter": job(
        lambda each, rank: each.call("scatter", "started", sizes=[[8]] if rank == 0 else [[]], out=[[2]])
    ),
    "ring": job(
        lambda each, rank: (
            each.p2p("send", (rank + 1) % 4, "scheduled")
            .p2p("recv", (rank - 1) % 4, "scheduled", batch=True)
            .coalesced("completed")
        )
    ),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_neither_accuses_a_rank_where_none_differs(name: str) -> None:
    assert analysed(HEALTHY[name]) == NONE
    assert judged(HEALTHY[name]).verdict.rank is None


def test_dump_of_one_rank_missing_leaves_both_undecided() -> None:
    """torch refuses unless it may be incomplete, and then has no answer; we say that the cause may be there."""
    found = job(lambda each, rank: each.call("all_reduce", "started"))[:3]
    with pytest.raises(AssertionError, match="Missing dump files"):
        analysed(found)
    assert analysed(found, incomplete=True) == NONE

    verdict = judged(found, world=4).verdict
    assert (verdict.rank, verdict.kind) == (None, "elsewhere")


def test_recorders_that_wrapped_at_other_entries_agree() -> None:
    """A ring of few entries: what all still have decides."""
    found = job(all_but(2), past=40)
    for each in found:
        each.entries = each.entries[20 + each.rank :]
    verdict = judged(found).verdict

    assert analysed(found) == missing(2)
    assert (verdict.rank, verdict.confidence) == (2, HIGH)
