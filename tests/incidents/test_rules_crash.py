"""Crashes: who ended first, with what, and who merely followed."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import Any

import pytest

from holdfast.incidents import classify
from holdfast.incidents import evidence as E
from holdfast.incidents.verdict import HIGH, LOW, MEDIUM
from tests.incidents.cases import ended, expect, judge, node, raised, rank

LOST = "[enforce fail at pair.cc:547] Connection closed by peer [127.0.0.1]:4711"
LATE = "[gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 30000ms for recv operation to complete"


def crash(*ranks: E.RankEvidence, **changes: object) -> E.Case:
    return E.Case((node(*ranks, **{"trigger": E.CRASH, **changes}),))


GONE = ended(1, -signal.SIGKILL)
LOST_IT = raised(0, "RuntimeError", LOST, ago=9.0, lost=True)
LOST_IT_NOW = raised(1, "RuntimeError", LOST, lost=True)
DEAD_WORKER = raised(1, "RuntimeError", "DataLoader worker (pid 88) is killed by signal: Killed.")
MISMATCH = "[enforce fail at pair.cc:446] op.preamble.length <= op.nbytes. 28 vs 16"
LOST_BOTH = [raised(number, "RuntimeError", LOST, lost=True) for number in (0, 1)]
PASSES = "Rank 1 failed to pass monitoredBarrier in 30000 ms"


def at_another_line() -> E.Case:
    """Rank 2 was in another collective; rank 0 raises, and the others lose it."""
    ranks = []
    for number in range(4):
        traceback = f'Traceback\n  File "/home/me/train.py", line {99 if number == 2 else 40}, in step\n'
        text = LOST if number else MISMATCH
        found = classify.raised("RuntimeError", text, traceback, 0.2, lost_peer=number != 0)
        ranks.append(ended(number, 1, raised=found))
    return crash(*ranks)


CRASHES: dict[str, tuple[E.Case, tuple[Any, ...]]] = {
    "an exception, and who followed": (
        crash(
            raised(0, "RuntimeError", LOST, ago=0.3, lost=True),
            raised(1, "ValueError", "bad batch", ago=0.5),
            raised(2, "RuntimeError", LOST, ago=0.2, lost=True),
        ),
        (1, "exception", HIGH, "", (0, 2)),
    ),
    "a connection is lost before the end of the other": (
        crash(raised(0, "RuntimeError", LOST, ago=0.9, lost=True), GONE),
        (1, "signal", HIGH),
    ),
    "a killed process with a GPU takes long to be gone": (crash(LOST_IT, GONE), (1, "signal", HIGH)),
    "a crash takes less long": (crash(LOST_IT, ended(1, -signal.SIGSEGV)), (1, "signal", MEDIUM)),
    "SIGSEGV": (crash(rank(0), ended(1, -signal.SIGSEGV)), (1, "signal", HIGH)),
    "SIGABRT, as torch itself where a peer sent something else": (
        crash(rank(0), ended(1, -signal.SIGABRT)),
        (1, "signal", MEDIUM),
    ),
    "SIGKILL": (crash(rank(0), GONE), (1, "signal", HIGH)),
    "SIGTERM": (crash(rank(0), ended(1, -signal.SIGTERM)), (1, "signal", HIGH)),
    "a signal as a shell reports it": (crash(rank(0), ended(1, 139)), (1, "signal", MEDIUM)),
    "an exit code": (crash(rank(0), ended(1, 3)), (1, "exit", HIGH)),
    "an exception that only the last lines show": (
        crash(rank(0), ended(1, 1, last_lines=("Traceback …", "KeyError: 'lr'"))),
        (1, "exception", MEDIUM),
    ),
    **{
        f"{kind} because memory ran out": (crash(rank(0), raised(1, kind, text)), (1, "out_of_memory", HIGH))
        for kind, text in (
            ("MemoryError", ""),
            ("torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB"),
            ("RuntimeError", "DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes"),
            ("OSError", "[Errno 12] Cannot allocate memory"),
        )
    },
    "the kernel's kill because memory ran out": (
        crash(rank(0), ended(1, -signal.SIGKILL, out_of_memory="memory.events counted an oom_kill")),
        (1, "out_of_memory", HIGH),
    ),
    "a counted kill because memory ran out": (
        crash(rank(0), GONE, faults=(E.NodeFault(E.NodeFaultKind.OOM_KILL),)),
        (1, "out_of_memory", MEDIUM),
    ),
    "a note is no count": (crash(rank(0), GONE, notes=("1 process was killed: oom_kill",)), (1, "signal")),
    "a dead worker of the loader": (crash(rank(0), DEAD_WORKER), (1, "exception", HIGH)),
    "a worker of the loader that was killed because memory ran out": (
        crash(rank(0), DEAD_WORKER, faults=(E.NodeFault(E.NodeFaultKind.OOM_KILL, pid=88),)),
        (1, "out_of_memory", HIGH),
    ),
    "a rank that was asked to end": (
        crash(ended(0, -signal.SIGTERM, ago=1.0, asked=True), raised(1, "KeyError", "x", ago=0.5)),
        (1, "exception", HIGH),
    ),
    "two at the same moment": (
        crash(raised(0, "ValueError", "x", ago=0.50), raised(1, "ValueError", "y", ago=0.45)),
        (0, "exception", MEDIUM),
    ),
    "a rank ended with 0, and others lost it": (
        crash(ended(0, 0), LOST_IT_NOW, ended(2, -15, asked=True)),
        (0, "early_exit", HIGH),
    ),
    "ranks that waited in vain for one that lives": (
        crash(raised(0, "RuntimeError", LATE), raised(1, "RuntimeError", LATE), rank(2, "queue")),
        (2, "lock", "", "", (0, 1)),
    ),
    "torch's barrier names the rank": (
        crash(raised(0, "RuntimeError", PASSES), rank(1, "sleep"), rank(2)),
        (1, "user_code"),
    ),
    "a peer of another node was lost": (
        crash(*LOST_BOTH, nodes=2, world_size=4),
        (None, "elsewhere", MEDIUM),
    ),
    "a node is lost": (
        crash(*LOST_BOTH, nodes=2, world_size=4, faults=(E.NodeFault(E.NodeFaultKind.NODE_LOST, "b"),)),
        (None, "node_lost"),
    ),
    "a peer was lost, and all nodes are seen": (crash(*LOST_BOTH), (0, "exception", LOW)),
    "who raises a mismatch need not be wrong": (
        crash(raised(0, "RuntimeError", MISMATCH), LOST_IT_NOW),
        (0, "mismatched_collective", LOW),
    ),
    "a mismatch is of the one at another line": (at_another_line(), (2, "mismatched_collective", MEDIUM)),
    "an exception of a process that does not get away": (
        crash(rank(0), replace(raised(1, "ValueError", "x", ago=20.0), exit=None)),
        (1, "exception", HIGH),
    ),
}


@pytest.mark.parametrize("name", CRASHES)
def test_crash_has_the_verdict(name: str) -> None:
    expect(*CRASHES[name])


def two_nodes(offset: float, *, aligned: bool) -> E.Case:
    """Rank 3 of node b fails 3.9 s before rank 0 of node a; the clock of b is ahead by `offset`."""
    start = 900.0 if aligned else 0.0
    early = crash(
        raised(3, "ValueError", "x", ago=9.0), name="b", node_rank=1, at=1005.0 + offset, nodes=2,
        cycle_start=start + offset if start else 0.0,
    )  # fmt: skip
    late = crash(raised(0, "KeyError", "y", ago=0.1), at=1000.0, nodes=2, cycle_start=start)
    both: tuple[E.NodeEvidence, ...] = (*late.nodes, *early.nodes)
    assert judge(E.Case(both)) == judge(E.Case(both[::-1]))
    return E.Case(both)


@pytest.mark.parametrize("offset", [0.0, 3600.0, -86400.0])
def test_nodes_are_compared_from_the_start_of_the_cycle(offset: float) -> None:
    expect(two_nodes(offset, aligned=True), (3, "exception", HIGH))


def test_wall_clocks_of_two_nodes_prove_no_order_within_ten_seconds() -> None:
    expect(two_nodes(0.0, aligned=False), (3, "exception", MEDIUM))
    expect(two_nodes(-3600.0, aligned=False), (3, "exception", HIGH))


# -- a node that is lost is the verdict, whatever the ranks of the others look like ----------------------------


def test_a_node_that_the_launchers_gave_up_is_to_blame() -> None:
    ranks = tuple(
        E.RankEvidence(n, n, 100 + n, "gpu-1", board=E.BoardFacts(connected=True, step=7, silent=20.0))
        for n in range(2)
    )
    left = E.NodeEvidence("gpu-1", E.ELSEWHERE, nodes=2, world_size=4, ranks=ranks)
    verdict = judge(E.Case((replace(left, lost_nodes=("gpu-2",)),)))
    assert (verdict.kind, verdict.rank, verdict.node, verdict.confidence) == (
        "node_lost",
        None,
        "gpu-2",
        "high",
    )
    assert verdict.followers == (0, 1)
    assert judge(E.Case((left,))).kind != "node_lost"


@pytest.mark.parametrize(
    ("nature", "nodes", "expected"),
    [
        (E.Nature.LOST_PEER, 2, ("elsewhere", None)),
        (E.Nature.LOST_PEER, 1, ("stopped", 1)),
        (E.Nature.TIMED_OUT, 2, ("stopped", 1)),
    ],
)
def test_a_lost_connection_accuses_no_living_rank_while_a_node_is_unseen(
    nature: E.Nature, nodes: int, expected: tuple[str, int | None]
) -> None:
    """A rank that lives has closed no connection; it may well be the one that another one waited for in vain."""
    failed = E.RankEvidence(
        0,
        0,
        100,
        "gpu-1",
        exit=E.Exit(1, "exit code 1", 0.1),
        raised=E.Raised("RuntimeError", "of gloo", 0.2, nature=nature),
    )
    stopped = E.RankEvidence(
        1,
        1,
        101,
        "gpu-1",
        process=E.Process(state="T"),
        board=E.BoardFacts(connected=True, step=7, silent=20.0),
    )
    seen = E.NodeEvidence("gpu-1", E.ELSEWHERE, nodes=nodes, world_size=2 * nodes, ranks=(failed, stopped))
    verdict = judge(E.Case((seen,)))
    assert (verdict.kind, verdict.rank) == expected
