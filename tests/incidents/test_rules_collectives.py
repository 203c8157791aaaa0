"""All ranks wait in collectives: who is in another one, or has left one out; two nodes that end no exchange."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.faults.nccl_evidence import BUSY, INCIDENTS, Job
from holdfast.fault_tolerance.launcher.incident_report import Summary, judged_failure
from holdfast.incidents import evidence as E
from holdfast.incidents import judge as judge_fragments
from holdfast.incidents.evidence import Case, Collective, Frame, RankEvidence
from holdfast.incidents.report.text import report_lines
from holdfast.incidents.rules import judge as judgement
from holdfast.incidents.rules.recorder import breaks_its_pattern, odd
from holdfast.incidents.verdict import LOW, MEDIUM
from tests.incidents.cases import (
    INSTALLED,
    STACKS,
    board,
    case,
    entry,
    expect,
    frames,
    judge,
    limit,
    node,
    rank,
)


def nccl(operation: str, state: str = "started", sequence: int = 7, **changes: Any) -> Collective:
    return entry(sequence, f"nccl:{operation}", state=state, backend="nccl", **changes)


def of_all(state: str = "scheduled", sequence: int = 7) -> Collective:
    return nccl("all_reduce", state, sequence, members=(0, 1, 2, 3))


def rounds(count: int, last: Collective) -> tuple[Collective, ...]:
    """`count` rounds of a large all_reduce and a small one, and then `last`."""
    sizes = ["[[1024]]", "[[1]]"] * count
    past = [entry(at + 1, ago=60.0 - at, sizes=size) for at, size in enumerate(sizes)]
    return (*past, last)


def each_in(*entries: Collective) -> Case:
    """Each rank is in its collective."""
    return case(*(rank(number, collectives=(found,)) for number, found in enumerate(entries)))


def past_a_gather(ahead: int) -> Case:
    """Two ranks wait in a barrier; the others gave their part of a gather as these did, and continued."""
    past = entry(9, "gloo:gather", ago=31.5)
    waiting = [rank(number, "barrier", collectives=(past,)) for number in range(2)]
    others = [rank(2 + number, collectives=(past, entry(10, ago=31.0))) for number in range(ahead)]
    return case(*waiting, *others)


def circle() -> Case:
    """Rank 2 waits for rank 0 in a receive; rank 3 is in a sum of ranks 2 and 3, ranks 0 and 1 in one of all."""
    team: dict[str, Any] = {"group": "1", "members": (2, 3)}
    before, of_team = (replace(each, ago=40.0) for each in (of_all("completed", 8), of_all("completed", 4)))
    of_team = replace(of_team, **team)
    receive = replace(of_all(sequence=3), operation="nccl:recv 2<-0", ago=30.0, p2p=True, peer=0)
    off = rank(2, collectives=(before, of_team, receive))
    sums = [rank(number, collectives=(before, of_all(sequence=9))) for number in (0, 1)]
    return case(*sums, off, rank(3, collectives=(before, of_team, replace(of_all(sequence=5), **team))))


def in_synchronize(number: int, *entries: Collective) -> RankEvidence:
    """A rank that waits for its GPU, and uses a processor for that."""
    calls = frames(
        "synchronize (torch/cuda/__init__.py:1162)\ntrain_step (train.py:46)\n<module> (train.py:85)"
    )
    return rank(number, "busy", collectives=entries, stacks=(E.Thread("MainThread", calls, main=True),))


ALL_STARTED = nccl("all_reduce")


def without_members(odd: int | None) -> Case:
    """Four ranks in one collective; rank 0's long answer left out the members, and one may have another size."""
    found = [replace(ALL_STARTED, members=(0, 1, 2, 3) if number else ()) for number in range(4)]
    if odd is not None:
        found[odd] = replace(found[odd], sizes="[[8]]")
    return each_in(*found)


def read_in_part() -> Case:
    """Ranks wait in a gloo group whose numbers could not be compared on rank 2."""
    of_all = entry(5, "nccl:all_reduce", state="completed", ago=40.0, backend="nccl", members=(0, 1, 2))
    of_gloo = entry(9, group="cpu", members=(0, 1, 2), backend="gloo")
    part = rank(2, collectives=(of_all,), no_collectives=E.Missing.NOT_RECORDED)
    return case(*(rank(number, collectives=(of_all, of_gloo)) for number in range(2)), part)


MISMATCH = "mismatched_collective"
GOOD, BAD = entry(7, ago=5.0, sizes="[[1024]]"), entry(7, "gloo:barrier", ago=5.0, sizes="")
REDUCES = entry(50, "gloo:reduce", sizes="[[2]]")
BROADCASTS = entry(4, "gloo:broadcast", ago=31.5)
TWO_KINDS = (
    *(entry(at, sizes="[[8]]", ago=40.0 - at) for at in (1, 3)),
    replace(BROADCASTS, sequence=2, ago=38.0),
)
OF_THE_STEP = entry(4, ago=31.5, state="completed")
COLLECTIVES: dict[str, tuple[Case, tuple[Any, ...]]] = {
    "the odd one in the place that one of three has left": (
        case(
            rank(0, collectives=(entry(50, sizes="[[1]]"),)),
            rank(1, collectives=(REDUCES,)),
            rank(
                2, collectives=(replace(REDUCES, ago=31.5, state="completed"), replace(REDUCES, sequence=51))
            ),
        ),
        (0, MISMATCH, MEDIUM),
    ),
    "two ranks, one of which has left the place where the other waits": (
        case(
            rank(0, collectives=(*TWO_KINDS, entry(4, sizes="[[8]]"))),
            rank(1, "barrier", collectives=(*TWO_KINDS, BROADCASTS, entry(5, "gloo:barrier"))),
        ),
        (None, MISMATCH, LOW),
    ),
    "one of two leaves its pattern": (
        case(rank(0, collectives=rounds(3, GOOD)), rank(1, "barrier", collectives=rounds(3, BAD))),
        (1, MISMATCH, MEDIUM),
    ),
    "two without a pattern": (
        each_in(entry(9, sizes="[[1]]"), entry(9, sizes="[[2]]")),
        (None, MISMATCH, LOW),
    ),
    "half of them make a group": (
        case(*(rank(number, "new_group" if number < 2 else "all_reduce") for number in range(4))),
        (None, MISMATCH, LOW, "Ranks 0-1 wait in new_group, and ranks 2-3 wait in all_reduce"),
    ),
    "all have started the same one, and one is at another line": (
        case(
            *(rank(number, collectives=(ALL_STARTED,)) for number in range(3)),
            rank(3, "barrier", collectives=(ALL_STARTED,)),
        ),
        (None, "unknown", LOW),
    ),
    "an answer without members": (without_members(None), (None, "unknown", LOW)),
    "the odd size beside an answer without members": (without_members(2), (2, MISMATCH, MEDIUM)),
    "a recorder that was read in part": (read_in_part(), (None, "unknown", LOW)),
    "sizes of a gather may differ": (
        each_in(*(entry(9, "gloo:gather", sizes=f"[[{number}]]") for number in range(3))),
        (None, "unknown"),
    ),
    "an earlier sequence number": (each_in(entry(9), entry(8), entry(9)), (1, "missing_collective", MEDIUM)),
    "one is at its end": (case(rank(0), rank(1, "destroy"), rank(2)), (1, "missing_collective")),
    "one is steps ahead": (case(rank(0), rank(1, board=board(12)), rank(2)), (1, "missing_collective")),
    "another place, without a recorder": (
        case(rank(0), rank(1), rank(2, "barrier"), rank(3)),
        (2, MISMATCH, MEDIUM),
    ),
    "two at two places": (case(rank(0), rank(1, "barrier")), (None, MISMATCH, LOW)),
    "all make groups": (
        case(rank(0, "new_group"), rank(1, "new_group")),
        (None, MISMATCH, LOW, "in new_group: one may make other groups, or in another order"),
    ),
    "a circle": (circle(), (2, MISMATCH)),
    "a rank waits for its GPU": (
        case(rank(0, collectives=(OF_THE_STEP, entry(5))), in_synchronize(1, OF_THE_STEP)),
        (1, "missing_collective", "", "waits for its GPU in"),
    ),
    "the only rank waits for its GPU": (
        case(in_synchronize(0)),
        (0, "user_code", MEDIUM, "train.py:46 train_step()"),
    ),
}


@pytest.mark.parametrize("ahead", [1, 2])
def test_sentence_on_ranks_past_a_gather_does_not_deny_a_difference(ahead: int) -> None:
    expect(past_a_gather(ahead), (None, "unknown", LOW))
    assert "none differs" not in judge(past_a_gather(ahead)).sentence


@pytest.mark.parametrize("name", COLLECTIVES)
def test_wait_of_all_has_the_verdict(name: str) -> None:
    expect(*COLLECTIVES[name])


def test_an_odd_one_needs_a_majority() -> None:
    assert odd({0: "a", 1: "a", 2: "b"}) == (2,)
    assert odd({0: "a", 1: "b"}) == ()
    assert odd({0: "a", 1: "a", 2: "b", 3: "b"}) == ()
    assert odd({0: "a", 1: "a", 2: "b", 3: "c"}) == ()
    assert odd({0: "a", 1: "a"}) == ()


def test_a_pattern_needs_two_rounds() -> None:
    assert breaks_its_pattern(rounds(2, entry(5, sizes="[[1024]]"))) is False
    assert breaks_its_pattern(rounds(2, entry(5, sizes="[[7]]"))) is True
    assert breaks_its_pattern((entry(1), entry(2, sizes="[[9]]"))) is False
    assert breaks_its_pattern(()) is False


def test_a_rank_that_has_not_come_from_the_start_keeps_those_waiting_that_have() -> None:
    """Such as one with a wrong world size. A group that it makes later shows nothing: all ranks make those together."""
    starts = (Frame("init_process_group", INSTALLED + "torch/distributed/distributed_c10d.py", 1899),)
    off = replace(rank(1), stacks=(E.Thread("MainThread", (*starts, *frames(STACKS["sleep"])), main=True),))
    expect(case(rank(0, "barrier"), off), (1, "startup"))
    assert judge(case(rank(0, "barrier"), rank(1, "new_group"))).kind != "startup"


# -- two nodes that do not end an exchange between them: both are named, and neither is blamed


Entries = dict[int, list[Collective]]


def transfer(operation: str, peer: int, state: str = "started") -> Collective:
    return nccl(operation, state, p2p=True, peer=peer, group="pp")


def of_two(state: str = "started", sequence: int = 7) -> Collective:
    return nccl("all_gather", state, sequence, members=(1, 2), group="dp")


def two_nodes(entries: Entries, **changes: Any) -> Case:
    """Ranks 0 and 1 on node a, 2 and 3 on node b."""
    done = of_all("completed", 6)
    ranks = [rank(number, collectives=(done, *entries[number])) for number in range(4)]
    ranks[0] = replace(ranks[0], passed=limit())
    more = {"nodes": 2, "world_size": 4, **changes}
    return Case((node(*ranks[:2], **more), node(*ranks[2:], name="b", node_rank=1, **more)))


def neighbours(state: str = "started") -> Entries:
    """A pipeline of four stages: 1 and 2 are in one exchange, and their neighbours wait for them."""
    return {
        0: [transfer("send", 1)],
        1: [transfer("send", 2)],
        2: [transfer("recv", 1, state)],
        3: [transfer("recv", 2)],
    }


PAIRS: dict[str, Entries] = {
    "a send and a receive": neighbours(),
    "all others in a collective": {**neighbours(), 0: [of_all("started")], 3: [of_all("started")]},
    "a receive behind the send": {
        **neighbours(),
        1: [transfer("send", 2), replace(transfer("recv", 2, "scheduled"), sequence=8)],
    },
    "a collective of two": {0: [of_all()], 1: [of_two()], 2: [of_two()], 3: [of_all()]},
}
NO_PAIRS: dict[str, Entries] = {
    "the other end has not started": neighbours("scheduled"),
    "the other end is elsewhere": {**neighbours(), 2: [of_two()]},
    "one end waits for a third rank": {**neighbours(), 2: [transfer("recv", 1), transfer("send", 3)]},
    "two pairs": {
        0: [transfer("send", 3)],
        1: [transfer("send", 2)],
        2: [transfer("recv", 1)],
        3: [transfer("recv", 0)],
    },
    "a third rank has not come": {**neighbours(), 0: [of_all("started")], 3: [transfer("recv", 0)]},
    "a collective of all": {number: [of_all("started")] for number in range(4)},
    "another collective of the two": {0: [of_all()], 1: [of_two()], 2: [of_two(sequence=8)], 3: [of_all()]},
}


@pytest.mark.parametrize("name", PAIRS)
def test_judge_two_ends_of_an_exchange_names_the_pair(name: str) -> None:
    case = two_nodes(PAIRS[name])
    verdict = judge(case)
    assert (verdict.kind, verdict.confidence, verdict.rank, verdict.node) == ("network", "medium", None, "")
    assert verdict.pair == (1, 2)
    assert "ank 1 (node a) and rank 2 (node b)" in verdict.sentence
    assert verdict.sentence.endswith("one of them, or the link between them.")
    failure = judged_failure(case, verdict, Summary(0.0))
    assert (failure.node, failure.peers, failure.accused) == ("", ("a", "b"), frozenset())
    first, *lines = report_lines(case, judgement(case))
    assert first.startswith("HANG: ranks 1 and 2, or the link between them")
    assert any("Next step: Test the link between these two nodes" in line for line in lines)


@pytest.mark.parametrize("name", NO_PAIRS)
def test_judge_another_cause_names_no_pair(name: str) -> None:
    verdict = judge(two_nodes(NO_PAIRS[name]))
    assert verdict.pair == () and verdict.kind != "network"


def test_judge_exchanges_of_two_groups_accuse_neither_rank() -> None:
    """Each group has its own order: what is queued in one is not behind what has started in the other."""
    done, more = of_all("completed", 6), {"nodes": 2, "world_size": 2}
    ends = (
        (done, transfer("recv", 1), replace(transfer("send", 1, "scheduled"), group="other")),
        (done, transfer("send", 0), replace(transfer("recv", 0), group="other")),
    )
    here = node(rank(0, collectives=ends[0], passed=limit()), **more)
    there = node(rank(1, collectives=ends[1]), name="b", node_rank=1, **more)
    assert judge(Case((here, there))).rank is None


def test_sentence_names_a_collective_that_the_culprit_has_not_entered() -> None:
    """Rank 2 has completed the group's all-gather, which rank 1 still has pending."""
    waits = [of_all("started")]
    first, second = two_nodes({0: waits, 1: [of_two(), of_all()], 2: [], 3: waits}).nodes
    loading = rank(2, "loader", collectives=(of_all("completed", 6), of_two("completed")), node="b")
    verdict = judge(Case((first, replace(second, ranks=(loading, second.ranks[1])))))
    assert verdict.rank == 2 and "never reached the all_reduce" in verdict.sentence


def test_judge_pair_on_one_node_is_none() -> None:
    """No link between nodes is part of it."""
    entries = {0: [transfer("send", 1)], 1: [transfer("recv", 0)], 2: [of_all()], 3: [of_all()]}
    assert judge(two_nodes(entries)).pair == ()


def test_judge_pair_with_a_node_unseen_is_none() -> None:
    assert judge(two_nodes(neighbours(), nodes=3, world_size=6)).pair == ()


# -- NCCL jobs by an author who had not read the rules: which rank is named, and the kind


@pytest.mark.parametrize(
    ("name", "culprits", "kinds", "why", "job"), INCIDENTS, ids=[each[0] for each in INCIDENTS]
)
def test_judge_nccl_incident_as_its_author(name, culprits, kinds, why, job) -> None:  # type: ignore[no-untyped-def]
    verdict = judge_fragments(job.fragments()).verdict
    assert verdict.rank in culprits and verdict.kind in kinds, f"{why} It said: {verdict.sentence}"


def test_judge_names_what_the_culprit_missed_first() -> None:
    """Its data-parallel all-reduce is missing too, because it never came that far."""
    jobs = {name: job for name, _, _, _, job in INCIDENTS}
    assert "(sequence 90211)" in judge_fragments(jobs["sleeps_upstream"].fragments()).verdict.sentence
    group = judge_fragments(jobs["uneven_all_to_all"].fragments()).verdict.sentence
    assert group.startswith("Ranks 8-15 wait in all_to_all") and "others wait for them" in group


@pytest.mark.parametrize("state", ["scheduled", "completed"])
def test_judge_takes_an_old_collective_of_gloo_for_no_wait(state: str) -> None:
    """Its recorder does not always show completion: without that it says nothing, also beside NCCL's."""
    job = Job(nodes=2)
    last: dict[str, Any] = {"operation": "nccl:all_reduce", "group": "1", "members": [*job.everyone]}
    last |= {"sizes": "[[8]]", "dtype": "Float", "sequence": 41, "state": "completed", "ago": 601.0}
    last |= {"backend": "nccl"}
    of_gloo = last | {"group": "2", "ago": 900.0, "backend": "gloo", "state": state}
    for number in job.everyone:
        pending = [] if number == 9 else [last | {"sequence": 42, "state": "scheduled", "ago": 600.0}]
        job.ranks[number]["collectives"] = [of_gloo, last, *pending]
    job.sits(9, BUSY, "train/loop.py:202 Trainer.collect")
    verdict = judge_fragments(job.fragments()).verdict
    assert (verdict.rank, verdict.kind, verdict.confidence) == (9, "user_code", "high"), verdict.sentence
