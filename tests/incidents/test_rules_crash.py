"""Crashes: who ended first, with what, and who merely followed; and what past failures make suspect."""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import Any

import pytest

from holdfast.incidents import classify
from holdfast.incidents import evidence as E
from holdfast.incidents.suspicions import Failure, Suspicions, suspicions
from holdfast.incidents.verdict import HIGH, LOW, MEDIUM
from tests.incidents.cases import board, ended, expect, judge, node, process, raised, rank

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

SYSTEM = "NCCL error in: NCCLUtils.hpp:268, unhandled system error\nncclSystemError: System call failed"
IN_USE = "The server socket has failed to listen on any local network address. port: 29500, code: -98, name: EADDRINUSE"
NO_CLIENT = "The client socket has timed out after 60000ms while trying to connect to (gpu-1, 29500)."


def at_another_line() -> E.Case:
    """Rank 2 was in another collective; rank 0 raises, and the others lose it."""
    ranks = []
    for number, line in enumerate((40, 40, 99, 40)):
        traceback = f'Traceback\n  File "/home/me/train.py", line {line}, in step\n'
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
        crash(rank(0), ended(1, -signal.SIGKILL, out_of_memory="kernel log: Killed process 4001 (python)")),
        (1, "out_of_memory", HIGH),
    ),
    "a kill in its control group, maybe of another process": (
        crash(rank(0), ended(1, -signal.SIGKILL, out_of_memory="memory.events counts 1 process")),
        (1, "out_of_memory", MEDIUM),
    ),
    "a counted kill because memory ran out": (
        crash(rank(0), GONE, faults=(E.NodeFault(E.NodeFaultKind.OOM_KILL),)),
        (1, "out_of_memory", MEDIUM),
    ),
    "a note is no count": (crash(rank(0), GONE, notes=("1 process was killed: oom_kill",)), (1, "signal")),
    "a dead worker of the loader": (crash(rank(0), DEAD_WORKER), (1, "exception", MEDIUM)),
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
    "a rank ended long before the others lost one": (
        crash(ended(0, 0, ago=60.0), LOST_IT_NOW, ended(2, -15, asked=True)),
        (0, "early_exit", MEDIUM),
    ),
    "a rank was finished at some time, and others lost one": (
        crash(rank(0, board=board(finished=True), process=process(state="gone")), LOST_IT_NOW),
        (0, "early_exit", MEDIUM),
    ),
    "ranks that waited in vain for one that lives": (
        crash(raised(0, "RuntimeError", LATE), raised(1, "RuntimeError", LATE), rank(2, "queue")),
        (2, "lock", "", "", (0, 1)),
    ),
    "a peer of another node was lost": (
        crash(*LOST_BOTH, nodes=2, world_size=4),
        (None, "elsewhere", MEDIUM),
    ),
    "a node is lost": (
        crash(*LOST_BOTH, nodes=2, world_size=4, faults=(E.NodeFault(E.NodeFaultKind.NODE_LOST, "b"),)),
        (None, "node_lost"),
    ),
    "a node is lost, and torch gives a survivor no cause": (
        crash(raised(0, "DistBackendError", SYSTEM), rank(1), nodes=2, world_size=4, lost_nodes=("b",)),
        (None, "node_lost", HIGH),
    ),
    "torch gives the first one no cause, and another raises one of its own": (
        crash(raised(0, "DistBackendError", SYSTEM, ago=0.5), raised(1, "ValueError", "x", ago=0.3)),
        (1, "exception", HIGH, "", (0,)),
    ),
    "torch gives no cause, and a rank is stopped": (
        crash(raised(0, "DistStoreError", "no text of today"), rank(1, process=E.Process(state="T"))),
        (1, "stopped"),
    ),
    "the store cannot listen, and others cannot connect": (
        crash(raised(0, "DistNetworkError", IN_USE), raised(1, "DistNetworkError", NO_CLIENT, ago=0.6)),
        (0, "exception", HIGH, "", (1,)),
    ),
    "all lost a peer, and all nodes are seen": (crash(*LOST_BOTH), (None, "unknown", LOW)),
    "one lost its peers after they had timed out": (
        crash(*(raised(number, "RuntimeError", LATE, ago=5.0) for number in (0, 2)), LOST_IT_NOW),
        (1, "missing_collective", LOW),
    ),
    "all are interrupted at one moment": (
        crash(*(raised(number, "KeyboardInterrupt", "") for number in range(3))),
        (None, "signal", MEDIUM),
    ),
    "the same exit code at one moment": (
        crash(ended(0, 1, last_lines=("CUDA out of memory.",)), ended(1, 1), rank(2)),
        (0, "out_of_memory", MEDIUM),
    ),
    "all are terminated at one moment": (
        crash(*(ended(number, -signal.SIGTERM) for number in range(3))),
        (None, "signal", MEDIUM, "", ()),
    ),
    "the same exception, half a second later too": (
        crash(
            *(raised(number, "ImportError", "no flash", ago) for number, ago in enumerate((1.0, 1.0, 0.5)))
        ),
        (None, "exception", MEDIUM, "Ranks 0-2 each raised ImportError", ()),
    ),
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


NATURES: dict[E.Nature, tuple[tuple[str, str], ...]] = {
    E.Nature.TIMED_OUT: (
        ("DistNetworkError", NO_CLIENT),
        ("DistStoreError", "Timed out after 61 seconds waiting for clients. 1/2 clients joined."),
        ("RuntimeError", "waitForInput: socket SocketImpl(fd=9) timed out after 300000ms"),
        ("DistNetworkError", "waitForInput: poll for socket 9 returned 0, likely a timeout"),
        ("RuntimeError", "Operation timed out!"),
    ),
    E.Nature.LOST_PEER: (
        ("RuntimeError", "Failed to send, sent 0 bytes. Connection was likely closed."),
        ("RuntimeError", "[gloo/transport/tcp/pair.cc:144] no error"),
        (
            "RuntimeError",
            "socketStartConnect: Connect to 10.0.0.7<41> failed : Software caused connection abort",
        ),
        ("RuntimeError", "socketPollConnect: connect to 10.0.0.7<41> returned No route to host"),
        ("DistBackendError", "NCCL error in: ProcessGroupNCCL.cpp:1331, remote process exited"),
        ("torch.distributed.DistBackendError", SYSTEM),
        ("torch.distributed.DistStoreError", "no text of today"),
    ),
    E.Nature.OUT_OF_MEMORY: (("DistBackendError", f"{SYSTEM}\nCuda failure 2 'out of memory'"),),
    E.Nature.OWN: (
        ("DistBackendError", "NCCL error in: NCCLUtils.cpp:77, unhandled cuda error"),
        ("DistBackendError", "NCCL error: invalid usage\nDuplicate GPU detected : rank 1 and rank 0"),
        ("torch.AcceleratorError", "CUDA error: an illegal memory access was encountered"),
        ("DistNetworkError", IN_USE),
        ("DistillationError", "no text of today"),
        ("RuntimeError", "No route to host of the licence"),
        ("TimeoutError", "feature store: wait for shard 7 timed out"),
    ),
}


@pytest.mark.parametrize("nature", NATURES)
def test_exceptions_have_their_nature(nature: E.Nature) -> None:
    found = {each: classify.nature_of_exception(*each) for each in NATURES[nature]}
    assert found == dict.fromkeys(NATURES[nature], nature)


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
    ranks = [rank(number, "", process=None) for number in range(2)]
    left: dict[str, Any] = {"trigger": E.ELSEWHERE, "nodes": 2, "world_size": 4}
    lost = crash(*ranks, **left, lost_nodes=("gpu-2",))
    expect(lost, (None, "node_lost", HIGH, "", (0, 1)))
    assert judge(lost).node == "gpu-2"
    assert judge(crash(*ranks, **left)).kind != "node_lost"


@pytest.mark.parametrize(
    ("nature", "nodes", "expected"),
    [
        (E.Nature.LOST_PEER, 2, (None, "elsewhere")),
        (E.Nature.LOST_PEER, 1, (1, "stopped")),
        (E.Nature.TIMED_OUT, 2, (1, "stopped")),
    ],
)
def test_a_lost_connection_accuses_no_living_rank_while_a_node_is_unseen(
    nature: E.Nature, nodes: int, expected: tuple[int | None, str]
) -> None:
    """A rank that lives has closed no connection; it may well be the one that another one waited for in vain."""
    failed = ended(0, 1, raised=E.Raised("RuntimeError", "of gloo", ago=0.0, nature=nature))
    stopped = rank(1, "", process=E.Process(state="T"))
    expect(crash(failed, stopped, trigger=E.ELSEWHERE, nodes=nodes, world_size=2 * nodes), expected)


# -- `suspicions`: what past failures make suspect, as a table of histories


BUG = "IndexError at train.py:88 step(): index # is out of range"


def failure(node: str, step: int | None, **more: Any) -> Failure:
    return Failure(**{"kind": "signal", "node": node, "confidence": HIGH, "step": step, **more})


def error(node: str, step: int, **more: Any) -> Failure:
    return failure(node, step, **{"kind": "exception", "signature": BUG, **more})


def disk(node: str, step: int) -> Failure:
    return error(node, step, signature="", hardware="OSError: Input/output error", may_be_shared=True)


def nodes(found: Suspicions) -> list[str]:
    return [each.what for each in found.nodes]


def judged(*history: Failure, now: float = 0.0) -> Suspicions:
    return suspicions(history, now)


HISTORIES: dict[str, tuple[list[Failure], list[str]]] = {
    "one crash": ([failure("a", 5)], []),
    "two crashes of one node": ([failure("a", 5), failure("a", 9)], ["a"]),
    "with another between them": ([failure("a", 5), failure("b", 7), failure("a", 9)], ["a"]),
    "with two others between them": ([failure(each, at) for at, each in enumerate("abca")], []),
    "at the same step": ([failure("a", 5), failure("a", 5)], []),
    "at unknown steps": ([failure("a", None), failure("a", None)], ["a"]),
    "not for sure": ([failure("a", 5), failure("a", 9, confidence=MEDIUM)], []),
    "the same exception": ([error("a", 5), error("a", 9)], []),
    "an exception and a crash": ([error("a", 5), failure("a", 9)], []),
    "two other exceptions": ([error("a", 5), error("a", 9, signature="ValueError")], []),
    "crashes at one place": ([failure("a", step, signature="loss.cu") for step in (5, 9)], []),
    "exceptions from outside of the program": ([error("a", step, signature="") for step in (5, 9)], ["a"]),
    "an exception that names hardware": ([error("a", 5, hardware="GPU 3 is lost")], ["a"]),
    "hardware by its text": ([failure("a", 5, hardware="uncorrectable memory error of GPU 3")], ["a"]),
    "hardware by its kind": ([failure("a", 5, kind="uninterruptible")], ["a"]),
    "hardware, but which node is not known": ([failure("a", 5, hardware="a link is down", peers=("b",))], []),
    "two nodes, twice": ([failure("a", 5, peers=("b",)), failure("a", 9, peers=("b",))], []),
    "two nodes accuse each other": ([failure("a", 5, peers=("b",)), failure("b", 9, peers=("a",))], []),
    "one node with two others": ([failure("a", 5, peers=("b",)), failure("c", 9, peers=("a",))], ["a"]),
    "a disk that fails": ([disk("a", 5)], ["a"]),
    "a disk that fails on two nodes": ([disk("a", 5), disk("b", 9), disk("b", 12)], []),
    "no culprit": ([Failure("unknown"), Failure("unknown")], []),
}


@pytest.mark.parametrize("name", HISTORIES)
def test_which_nodes_are_suspect(name: str) -> None:
    history, expected = HISTORIES[name]
    found = judged(*history)
    assert nodes(found) == expected
    assert all(each.what in each.facts for each in found.nodes)


def test_a_suspicion_ends_when_the_others_have_failed_without_it() -> None:
    history = [failure("a", 5), failure("a", 9)]
    assert nodes(judged(*history)) == ["a"]
    found = judged(*history, failure("b", 12, without=("a",)))
    assert nodes(found) == [] and found.times == {"a": 1}


def test_two_nodes_of_one_failure_domain_make_it_suspect() -> None:
    rack = [failure("a", 5, domain="rack 7"), failure("b", 9, domain="rack 7")]
    found = judged(*rack)
    assert [each.what for each in found.domains] == ["rack 7"] and not found.nodes
    assert not judged(rack[0], failure("a", 9, domain="rack 7")).domains
    assert not judged(rack[0], failure("b", 9, domain="rack 8")).domains
    assert not judged(failure("a", 5), failure("b", 9)).domains
    assert not judged(*rack, failure("c", 12, without=("rack 7",))).domains
    assert judged(*rack, failure("c", 12, without=("a",))).domains
    assert not judged(rack[0], failure("b", 5, domain="rack 7")).domains, "at one step"


def test_a_suspicion_ends_after_an_hour() -> None:
    history = [failure("a", 5, at=0.0), failure("a", 9, at=100.0)]
    assert nodes(judged(*history, now=3699.0)) == ["a"]
    assert nodes(judged(*history, now=3700.0)) == []


def loaded(path: str, attempt: int, **more: Any) -> Failure:
    return failure("a", 100, checkpoint=path, attempt=attempt, **{"took_steps": False, **more})


def test_a_checkpoint_after_which_two_attempts_fail_is_suspect() -> None:
    trained = loaded("step-50", 1, took_steps=True)
    found = judged(trained, loaded("step-100", 1), loaded("step-100", 2))
    (checkpoint,) = found.checkpoints
    assert checkpoint.what == "step-100" and "step-50 was trained from" in checkpoint.facts
    assert not judged(loaded("step-100", 1), loaded("step-100", 1)).checkpoints
    assert not judged(loaded("step-100", 1), loaded("step-100", 2, took_steps=True)).checkpoints
    assert not judged(*(loaded("step-100", each, hardware="GPU 3 is lost") for each in (1, 2))).checkpoints


def test_two_nodes_that_accuse_each_other_are_named_and_stay() -> None:
    found = judged(failure("a", 5, peers=("b",)), failure("b", 9, peers=("a",)))
    assert [each.what for each in found.pairs] == ["a and b"] and not found.nodes


def test_a_kind_that_no_verdict_has_is_refused() -> None:
    with pytest.raises(ValueError, match="no kind of verdict"):
        Failure("sunspots")
