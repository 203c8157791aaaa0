"""Crashes: who ended first, with what, and who merely followed."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from holdfast.incidents import classify
from holdfast.incidents.evidence import (
    CRASH,
    ELSEWHERE,
    BoardFacts,
    Case,
    Exit,
    Nature,
    NodeEvidence,
    NodeFault,
    NodeFaultKind,
    Process,
    Raised,
    RankEvidence,
)
from holdfast.incidents.verdict import HIGH, LOW, MEDIUM, Verdict
from tests.incidents.cases import ended, judge, node, raised, rank

LOST = "[enforce fail at pair.cc:547] Connection closed by peer [127.0.0.1]:4711"
LATE = "[gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 30000ms for recv operation to complete"


def crash(*ranks: RankEvidence, **changes: object) -> Case:
    return Case((node(*ranks, **{"trigger": CRASH, **changes}),))


def short(verdict: Verdict) -> tuple[int | None, str, str]:
    return verdict.rank, verdict.kind, verdict.confidence


def test_the_exception_first_and_who_merely_followed() -> None:
    verdict = judge(
        crash(
            raised(0, "RuntimeError", LOST, ago=0.3, lost=True),
            raised(1, "ValueError", "bad batch", ago=0.5),
            raised(2, "RuntimeError", LOST, ago=0.2, lost=True),
        )
    )

    assert short(verdict) == (1, "exception", HIGH)
    assert verdict.followers == (0, 2)


def test_a_lost_connection_may_be_earlier_than_the_end_of_the_rank_that_was_lost() -> None:
    killed = ended(1, -signal.SIGKILL, ago=0.1)
    verdict = judge(crash(raised(0, "RuntimeError", LOST, ago=0.9, lost=True), killed))

    assert short(verdict) == (1, "signal", HIGH)


def test_a_killed_process_with_a_gpu_takes_long_to_be_gone() -> None:
    lost = raised(0, "RuntimeError", LOST, ago=9.0, lost=True)

    assert judge(crash(lost, ended(1, -signal.SIGKILL))).confidence == HIGH
    assert judge(crash(lost, ended(1, -signal.SIGSEGV))).confidence == MEDIUM


@pytest.mark.parametrize(
    ("number", "sure"),
    [
        (signal.SIGSEGV, HIGH),
        (signal.SIGABRT, MEDIUM),  # torch itself aborts where a peer sent something else
        (signal.SIGBUS, HIGH),
        (signal.SIGKILL, HIGH),
        (signal.SIGTERM, HIGH),
    ],
)
def test_a_signal(number: int, sure: str) -> None:
    assert short(judge(crash(rank(0), ended(1, -number)))) == (1, "signal", sure)


def test_an_exit_code_as_a_shell_reports_a_signal() -> None:
    assert short(judge(crash(rank(0), ended(1, 139)))) == (1, "signal", MEDIUM)


def test_an_exit_code_without_an_exception() -> None:
    assert short(judge(crash(rank(0), ended(1, 3)))) == (1, "exit", HIGH)


def test_an_exception_that_only_the_last_lines_show() -> None:
    verdict = judge(crash(rank(0), ended(1, 1, last_lines=("Traceback …", "KeyError: 'lr'"))))

    assert short(verdict) == (1, "exception", MEDIUM)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("MemoryError", ""),
        ("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB"),
        ("RuntimeError", "DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes"),
        ("OSError", "[Errno 12] Cannot allocate memory"),
    ],
)
def test_an_exception_for_want_of_memory(kind: str, message: str) -> None:
    assert short(judge(crash(rank(0), raised(1, kind, message)))) == (1, "out_of_memory", HIGH)


def test_the_kernels_kill_for_want_of_memory() -> None:
    killed = ended(1, -signal.SIGKILL, out_of_memory="the cgroup's memory.events counted an oom_kill")

    assert short(judge(crash(rank(0), killed))) == (1, "out_of_memory", HIGH)


def test_a_counted_out_of_memory_kill_makes_it_likely() -> None:
    killed = ended(1, -signal.SIGKILL)
    counted = NodeFault(NodeFaultKind.OOM_KILL)

    assert short(judge(crash(rank(0), killed, faults=(counted,)))) == (1, "out_of_memory", MEDIUM)
    assert judge(crash(rank(0), killed, notes=("1 process was killed: oom_kill",))).kind == "signal"


def test_a_dead_loader_worker_is_the_exception_that_it_raised() -> None:
    message = "DataLoader worker (pid 88) is killed by signal: Killed."

    assert short(judge(crash(rank(0), raised(1, "RuntimeError", message)))) == (1, "exception", HIGH)
    killed = NodeFault(NodeFaultKind.OOM_KILL, pid=88)
    verdict = judge(crash(rank(0), raised(1, "RuntimeError", message), faults=(killed,)))
    assert short(verdict) == (1, "out_of_memory", HIGH)


def test_a_rank_that_was_told_to_end_is_no_cause() -> None:
    asked = ended(0, -signal.SIGTERM, ago=1.0, asked=True)

    assert short(judge(crash(asked, raised(1, "KeyError", "x", ago=0.5)))) == (1, "exception", HIGH)


def test_two_at_the_same_moment_are_not_told_apart_for_certain() -> None:
    verdict = judge(crash(raised(0, "ValueError", "x", ago=0.50), raised(1, "ValueError", "y", ago=0.45)))

    assert short(verdict) == (0, "exception", MEDIUM)


def two_nodes(offset: float, *, aligned: bool) -> Case:
    """Rank 3 of node b fails 3.9 s before rank 0 of node a; the clock of b is ahead by `offset`."""
    start = 900.0 if aligned else 0.0
    early = crash(
        raised(3, "ValueError", "x", ago=9.0), name="b", node_rank=1, at=1005.0 + offset, nodes=2,
        cycle_start=start + offset if start else 0.0,
    )  # fmt: skip
    late = crash(raised(0, "KeyError", "y", ago=0.1), at=1000.0, nodes=2, cycle_start=start)
    both: tuple[NodeEvidence, ...] = (*late.nodes, *early.nodes)
    assert judge(Case(both)) == judge(Case(both[::-1]))
    return Case(both)


@pytest.mark.parametrize("offset", [0.0, 3600.0, -86400.0])
def test_nodes_are_compared_from_the_start_of_the_cycle(offset: float) -> None:
    assert short(judge(two_nodes(offset, aligned=True))) == (3, "exception", HIGH)


def test_wall_clocks_of_two_nodes_prove_no_order_within_ten_seconds() -> None:
    assert short(judge(two_nodes(0.0, aligned=False))) == (3, "exception", MEDIUM)
    assert judge(two_nodes(-3600.0, aligned=False)).confidence == HIGH


def test_a_rank_that_ended_with_0_and_whom_the_others_lost() -> None:
    verdict = judge(crash(ended(0, 0), raised(1, "RuntimeError", LOST, lost=True), ended(2, -15, asked=True)))

    assert short(verdict) == (0, "early_exit", HIGH)


def test_ranks_that_waited_in_vain_lead_to_the_one_that_still_lives() -> None:
    verdict = judge(crash(raised(0, "RuntimeError", LATE), raised(1, "RuntimeError", LATE), rank(2, "queue")))

    assert (verdict.rank, verdict.kind, verdict.followers) == (2, "lock", (0, 1))


def test_torchs_barrier_names_the_rank() -> None:
    message = "Rank 1 failed to pass monitoredBarrier in 30000 ms"
    verdict = judge(crash(raised(0, "RuntimeError", message), rank(1, "sleep"), rank(2)))

    assert (verdict.rank, verdict.kind) == (1, "user_code")


def test_all_that_is_known_is_that_a_peer_was_lost() -> None:
    ranks = [raised(number, "RuntimeError", LOST, lost=True) for number in (0, 1)]

    assert short(judge(crash(*ranks, nodes=2, world_size=4))) == (None, "elsewhere", MEDIUM)
    lost = NodeFault(NodeFaultKind.NODE_LOST, "node b is lost")
    assert judge(crash(*ranks, nodes=2, world_size=4, faults=(lost,))).kind == "node_lost"
    assert judge(crash(*ranks)).confidence == LOW


def test_who_raises_a_mismatch_need_not_be_the_one_that_is_wrong() -> None:
    message = "[enforce fail at pair.cc:446] op.preamble.length <= op.nbytes. 28 vs 16"
    verdict = judge(crash(raised(0, "RuntimeError", message), raised(1, "RuntimeError", LOST, lost=True)))

    assert (verdict.kind, verdict.confidence) == ("mismatched_collective", LOW)


def test_a_mismatch_is_of_the_one_at_another_line() -> None:
    message = "[enforce fail at pair.cc:446] op.preamble.length <= op.nbytes. 28 vs 16"
    ranks = []
    for number in range(4):
        traceback = f'Traceback\n  File "/home/me/train.py", line {99 if number == 2 else 40}, in step\n'
        text = message if number == 0 else LOST
        found = classify.raised("RuntimeError", text, traceback, 0.2, lost_peer=number != 0)
        ranks.append(ended(number, 1, raised=found))
    verdict = judge(crash(*ranks))

    assert short(verdict) == (2, "mismatched_collective", MEDIUM)


def test_an_exception_is_known_though_its_process_does_not_get_away() -> None:
    leaving = replace(raised(1, "ValueError", "x", ago=20.0), exit=None)

    assert short(judge(crash(rank(0), leaving))) == (1, "exception", HIGH)


# -- a node that is lost is the verdict, whatever the ranks of the others look like ----------------------------


def test_a_node_that_the_launchers_gave_up_is_to_blame() -> None:
    ranks = tuple(
        RankEvidence(n, n, 100 + n, "gpu-1", board=BoardFacts(connected=True, step=7, silent=20.0))
        for n in range(2)
    )
    left = NodeEvidence("gpu-1", ELSEWHERE, nodes=2, world_size=4, ranks=ranks)
    verdict = judge(Case((replace(left, lost_nodes=("gpu-2",)),)))
    assert (verdict.kind, verdict.rank, verdict.node, verdict.confidence) == (
        "node_lost",
        None,
        "gpu-2",
        "high",
    )
    assert verdict.followers == (0, 1)
    assert judge(Case((left,))).kind != "node_lost"


@pytest.mark.parametrize(
    ("nature", "nodes", "expected"),
    [
        (Nature.LOST_PEER, 2, ("elsewhere", None)),
        (Nature.LOST_PEER, 1, ("stopped", 1)),
        (Nature.TIMED_OUT, 2, ("stopped", 1)),
    ],
)
def test_a_lost_connection_accuses_no_living_rank_while_a_node_is_unseen(
    nature: Nature, nodes: int, expected: tuple[str, int | None]
) -> None:
    """A rank that lives has closed no connection; it may well be the one that another one waited for in vain."""
    failed = RankEvidence(
        0,
        0,
        100,
        "gpu-1",
        exit=Exit(1, "exit code 1", 0.1),
        raised=Raised("RuntimeError", "of gloo", 0.2, nature=nature),
    )
    stopped = RankEvidence(
        1, 1, 101, "gpu-1", process=Process(state="T"), board=BoardFacts(connected=True, step=7, silent=20.0)
    )
    seen = NodeEvidence("gpu-1", ELSEWHERE, nodes=nodes, world_size=2 * nodes, ranks=(failed, stopped))
    verdict = judge(Case((seen,)))
    assert (verdict.kind, verdict.rank) == expected
