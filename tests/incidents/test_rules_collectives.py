"""All ranks wait in collectives: who is in another one, or has left one out, by recorder, step or place."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from holdfast.incidents.evidence import Case, Collective, Frame, RankEvidence, Thread
from holdfast.incidents.rules.recorder import breaks_its_pattern, odd
from holdfast.incidents.verdict import LOW, MEDIUM
from tests.incidents.cases import INSTALLED, STACKS, board, case, entry, frames, judge, rank


def rounds(count: int, last: Collective) -> tuple[Collective, ...]:
    """`count` rounds of a large all_reduce and a small one, and then `last`."""
    sizes = ["[[1024]]", "[[1]]"] * count
    past = [entry(at + 1, ago=60.0 - at, sizes=size) for at, size in enumerate(sizes)]
    return (*past, last)


def test_the_odd_size_of_three_or_more_is_the_culprit() -> None:
    ranks = [rank(n, collectives=(entry(9, sizes="[[8]]" if n == 2 else "[[4]]"),)) for n in range(4)]
    verdict = judge(case(*ranks))

    assert (verdict.rank, verdict.kind, verdict.confidence) == (2, "mismatched_collective", MEDIUM)


def test_of_two_ranks_the_one_that_left_its_own_pattern_is_the_culprit() -> None:
    good = rounds(3, entry(7, ago=5.0, sizes="[[1024]]"))
    bad = rounds(3, entry(7, "gloo:barrier", ago=5.0, sizes=""))

    for ranks in (case(rank(0, collectives=good), rank(1, "barrier", collectives=bad)),):
        verdict = judge(ranks)
        assert (verdict.rank, verdict.kind, verdict.confidence) == (1, "mismatched_collective", MEDIUM)


def test_of_two_ranks_without_a_pattern_none_is_named() -> None:
    ranks = [rank(n, collectives=(entry(9, sizes=f"[[{n + 1}]]"),)) for n in range(2)]
    verdict = judge(case(*ranks))

    assert (verdict.rank, verdict.kind, verdict.confidence) == (None, "mismatched_collective", LOW)


def test_a_gather_may_have_other_sizes_on_each_rank() -> None:
    ranks = [rank(n, collectives=(entry(9, "gloo:gather", sizes=f"[[{n}]]"),)) for n in range(3)]

    assert judge(case(*ranks)).kind == "unknown"


def test_a_rank_that_gave_its_part_of_a_gather_and_went_on_is_not_accused() -> None:
    """Its entry of the gather is that of the others: they wait for one another, not for it."""
    past = entry(9, "gloo:gather", ago=31.5)
    waiting = [rank(n, "barrier", collectives=(past,)) for n in range(2)]
    for count in (1, 2):
        ahead = [rank(n, collectives=(past, entry(10, ago=31.0))) for n in range(2, 2 + count)]
        verdict = judge(case(*waiting, *ahead))
        assert (verdict.rank, verdict.kind, verdict.confidence) == (None, "unknown", LOW)
        assert "none differs" not in verdict.sentence


def test_the_one_at_an_earlier_sequence_number_never_came() -> None:
    ranks = [rank(n, collectives=(entry(8 if n == 1 else 9),)) for n in range(3)]
    verdict = judge(case(*ranks))

    assert (verdict.rank, verdict.kind, verdict.confidence) == (1, "missing_collective", MEDIUM)


def test_a_rank_at_its_end_has_left_out_the_collective_of_the_others() -> None:
    verdict = judge(case(rank(0), rank(1, "destroy"), rank(2)))

    assert (verdict.rank, verdict.kind) == (1, "missing_collective")


def test_a_rank_that_is_steps_ahead_has_left_out_one() -> None:
    verdict = judge(case(rank(0), rank(1, board=board(12)), rank(2)))

    assert (verdict.rank, verdict.kind) == (1, "missing_collective")


def test_without_a_recorder_the_one_at_another_place_is_the_culprit() -> None:
    verdict = judge(case(rank(0), rank(1), rank(2, "barrier"), rank(3)))

    assert (verdict.rank, verdict.kind, verdict.confidence) == (2, "mismatched_collective", MEDIUM)


def test_two_ranks_at_two_places() -> None:
    verdict = judge(case(rank(0), rank(1, "barrier")))

    assert (verdict.rank, verdict.kind, verdict.confidence) == (None, "mismatched_collective", LOW)


def test_an_odd_one_needs_a_majority() -> None:
    assert odd({0: "a", 1: "a", 2: "b"}) == (2,)
    assert odd({0: "a", 1: "b"}) == ()
    assert odd({0: "a", 1: "a", 2: "b", 3: "b"}) == ()
    assert odd({0: "a", 1: "a"}) == ()


def test_a_pattern_needs_two_rounds() -> None:
    assert breaks_its_pattern(rounds(2, entry(5, sizes="[[1024]]"))) is False
    assert breaks_its_pattern(rounds(2, entry(5, sizes="[[7]]"))) is True
    assert breaks_its_pattern((entry(1), entry(2, sizes="[[9]]"))) is False
    assert breaks_its_pattern(()) is False


def test_no_nodes_at_all() -> None:
    assert judge(Case()).kind == "unknown"


def test_in_a_circle_the_rank_is_named_for_which_all_others_wait_in_collectives() -> None:
    """Rank 2 waits for rank 0 in a receive; rank 3 is in a sum of ranks 2 and 3, ranks 0 and 1 in one of all."""
    everyone: dict[str, Any] = {"group": "0", "members": (0, 1, 2, 3), "backend": "nccl"}
    team = {**everyone, "group": "1", "members": (2, 3)}
    before = entry(8, "nccl:all_reduce", ago=40.0, state="completed", **everyone)
    of_team = entry(4, "nccl:all_reduce", ago=40.0, state="completed", **team)
    sums = [rank(n, collectives=(before, entry(9, "nccl:all_reduce", **everyone))) for n in (0, 1)]
    late = rank(3, collectives=(before, of_team, entry(5, "nccl:all_reduce", **team)))
    receive = entry(3, "nccl:recv 2<-0", ago=30.0, p2p=True, peer=0, **everyone)
    off = rank(2, collectives=(before, of_team, receive))
    verdict = judge(case(*sums, off, late))

    assert (verdict.rank, verdict.kind) == (2, "mismatched_collective")


def test_a_rank_that_has_not_come_from_the_start_keeps_those_waiting_that_have() -> None:
    """Such as one with a wrong world size. A group that it makes later shows nothing: all ranks make those together."""
    met = rank(0, "barrier")
    starts = (Frame("init_process_group", INSTALLED + "torch/distributed/distributed_c10d.py", 1899),)
    off = replace(rank(1), stacks=(Thread("MainThread", (*starts, *frames(STACKS["sleep"])), main=True),))
    verdict = judge(case(met, off))
    assert (verdict.rank, verdict.kind) == (1, "startup")
    assert judge(case(met, rank(1, "new_group"))).kind != "startup"


SYNCHRONIZES = frames(
    "synchronize (torch/cuda/__init__.py:1162)\ntrain_step (train.py:46)\n<module> (train.py:85)"
)


def in_synchronize(number: int) -> RankEvidence:
    """A rank that waits for its GPU, and uses a processor for that."""
    found = rank(number, "busy", collectives=(entry(4, ago=31.5, state="completed"),))
    return replace(found, stacks=(Thread("MainThread", SYNCHRONIZES, main=True),))


def test_a_rank_that_waits_for_its_gpu_is_named_with_its_place() -> None:
    waits = (entry(4, ago=31.5, state="completed"), entry(5))
    verdict = judge(case(rank(0, collectives=waits), in_synchronize(1)))

    assert (verdict.rank, verdict.kind) == (1, "missing_collective")
    assert "waits for its GPU in" in verdict.sentence and "train.py:46 train_step()" in verdict.sentence


def test_the_only_rank_of_a_job_waits_for_no_peer() -> None:
    verdict = judge(case(replace(in_synchronize(0), collectives=())))

    assert (verdict.rank, verdict.kind, verdict.confidence) == (0, "user_code", MEDIUM)
    assert "train.py:46 train_step()" in verdict.sentence
