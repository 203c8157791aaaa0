"""Hangs: the rank that is not in the collective, or cannot run, is named, with what it does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from holdfast.incidents import evidence as E
from holdfast.incidents.rules.signatures import activity
from holdfast.incidents.verdict import HIGH, LOW, MEDIUM, Verdict
from tests.incidents.cases import (
    PYTHON,
    STACKS,
    board,
    case,
    ended,
    entry,
    expect,
    frames,
    judge,
    limit,
    process,
    rank,
)

_WAITS = """
all_reduce barrier all_gather_object monitored_barrier backward ddp_forward ddp_init fsdp init new_group dcp_save
"""
KINDS = {
    "user_code": "sleep busy read pipe asyncio",
    "lock": "event join queue future lock flock",
    "child": "mp_queue child",
    "network": "http socket",
    "data_loading": "loader dataset",
    "checkpoint_io": "torch_save torch_load",
    "startup": "importing own_import",
    "shutdown": "exit atexit",
}
DOES = {place: kind for kind, places in KINDS.items() for place in places.split()}
AMBIGUOUS = {"pipe", "read", "asyncio", "event", "join", "queue", "future"}
"""Native waits of the program's own lines: what the kernel sees has more than one meaning. And locks within the
process: what they are waited for is not in the evidence."""
GUESSED = {"lock"}
"""A futex alone: a lock, or a wait for a peer."""


def one_outside(where: str, wait: str = "all_reduce") -> Verdict:
    others = [rank(number, wait) for number in (0, 1, 3)]
    return judge(case(*others, rank(2, where), world_size=4))


@pytest.mark.parametrize("where", DOES)
def test_the_one_rank_outside_of_the_collective_is_named_with_what_it_does(where: str) -> None:
    verdict = one_outside(where)

    assert (verdict.rank, verdict.kind) == (2, DOES[where])
    assert verdict.confidence == (LOW if where in GUESSED else MEDIUM if where in AMBIGUOUS else HIGH)
    assert verdict.followers == (0, 1, 3) and verdict.node == "a"


@pytest.mark.parametrize("wait", _WAITS.split())
def test_each_way_to_wait_for_peers_is_recognised(wait: str) -> None:
    verdict = one_outside("sleep", wait)

    assert (verdict.rank, verdict.kind, verdict.confidence) == (2, "user_code", HIGH)


@pytest.mark.parametrize("where", ["all_reduce", "sleep", "loader", "atexit", ""])
@pytest.mark.parametrize("state", ["T", "t"])
def test_a_stopped_rank_is_to_blame_wherever_it_is(where: str, state: str) -> None:
    stopped = rank(1, where, process=process("sleep", state=state))

    expect(case(rank(0), stopped, rank(2, "sleep")), (1, "stopped", HIGH))


@pytest.mark.parametrize("source", [E.StackSource.SIGNAL, E.StackSource.PY_SPY])
@pytest.mark.parametrize("where", ["busy", "sleep", "all_reduce"])
def test_a_rank_whose_helper_does_not_answer_holds_the_interpreter_lock(
    where: str, source: E.StackSource
) -> None:
    silent = rank(1, where, stacks_from=source, no_collectives=E.Missing.NO_ANSWER)

    expect(case(rank(0), silent, rank(2)), (1, "gil", MEDIUM if where == "busy" else HIGH))


def beside(where: str, **changes: Any) -> E.Case:
    """Rank 1 is there, and rank 0 in the all_reduce."""
    return case(rank(0), rank(1, where, **changes))


def reading(**changes: Any) -> E.Case:
    """Rank 1 is in state D in a read."""
    return beside("read", process=process("read", state="D", **changes))


def in_section(where: str, *names: str) -> E.Case:
    """Rank 1 is in these sections."""
    return beside(where, board=board(sections=tuple(E.OpenSection(name, 31.0) for name in names)))


def importing(function: str) -> E.Case:
    """Rank 1 imports `torch.distributed`, which calls no collective."""
    stack = f"{function} (torch/distributed/distributed_c10d.py:250)\n" + STACKS["own_import"]
    return case(rank(0, "init"), rank(1, "busy", stacks=(E.Thread("MainThread", frames(stack), main=True),)))


KILLED = E.Exit(-9, ago=0.1, asked=True)
DEAD = (E.Child(71, "python", "Z"),)
LIVES, STOPPED = E.Child(88, "python", "S"), E.Child(89, "python", "T")
BLOCKED = E.Child(89, "pt_data_worker", "D", "nfs_wait_bit_killable")
LEFT = (E.KernelThread(4001, "python", "Z"), E.KernelThread(4002, "python", "S"))
SHARED_PIPE = E.SystemCall("read", E.Target.CHILD_PIPE, "pipe:[77]", pid=71)
SLOW = [rank(number, "sleep", collectives=(entry(90 + number, ago=0.05),)) for number in range(3)]
NFS = E.SystemCall("read", E.Target.FILE, "/nfs/part-7 (nfs4)")
WATCHER = frames(f"ThreadedChildWatcher._do_waitpid ({PYTHON}asyncio/unix_events.py:1401)")
FOR_A_CHILD: dict[str, dict[str, Any]] = {
    "an event loop": {
        "process": process("asyncio", system_call=E.SystemCall("epoll_wait", E.Target.PROCESS, pid=71))
    },
    "a thread of an event loop": {
        "stacks": (*rank(2, "asyncio").stacks, E.Thread("asyncio-waitpid-0", WATCHER))
    },
}
HTTPS = E.SystemCall("epoll_wait", E.Target.SOCKET, "socket:[9]", "10.0.0.7:443")
QUIET = board(silent=2.0)
HANGS: dict[str, tuple[E.Case, tuple[Any, ...]]] = {
    "blocked in the kernel": (reading(system_call=NFS), (1, "uninterruptible", HIGH, "/nfs/part-7")),
    "one sample in state D": (reading(sampled_over=0.0), (1, "uninterruptible", MEDIUM)),
    "starts a process, which is in the kernel": (
        reading(system_call=E.SystemCall("clone3")),
        (1, "child", HIGH, "waits in the kernel for a process that it is just starting (clone3)"),
    ),
    "its child is dead": (
        beside("pipe", process=process("pipe", system_call=SHARED_PIPE, children=DEAD)),
        (1, "child", HIGH, "its child process 71 is dead"),
    ),
    **{
        f"a worker of the loader in state {each.state}": (
            beside("loader", process=process("loader", children=(LIVES, each))),
            (1, "data_loading", HIGH),
        )
        for each in (STOPPED, BLOCKED)
    },
    "a future, and a child that is stopped": (
        beside("future", process=process("future", children=(LIVES, STOPPED))),
        (1, "child", HIGH, "its child process 89 is stopped (state T)"),
    ),
    "the main thread has ended alone": (
        beside("", process=process(state="Z", threads=LEFT), pid=4001),
        (1, "exit", MEDIUM, "and 1 of its other threads run on"),
    ),
    "Python has ended, and its process not": (
        case(
            ended(0, 0),
            rank(
                1, "", board=board(finished=True), process=process("lock"), no_collectives=E.Missing.NO_ANSWER
            ),
        ),
        (1, "shutdown"),
    ),
    "no helper answers, the machine may have no time for them": (
        case(
            rank(0, stacks_from=E.StackSource.PY_SPY),
            rank(1, "busy", stacks_from=E.StackSource.PY_SPY, no_collectives=E.Missing.NO_ANSWER),
        ),
        (1, "gil", MEDIUM),
    ),
    **{
        f"{where}, without an answer of its own": (
            beside(where, stacks_from=E.StackSource.PY_SPY),
            (1, "user_code", MEDIUM),
        )
        for where in ("sleep", "busy")
    },
    "computes, without a helper thread": (
        beside("busy", stacks_from=E.StackSource.SIGNAL, no_collectives=E.Missing.NO_HELPER),
        (1, "user_code"),
    ),
    "threads, and no main thread": (
        case(rank(0), rank(1, stacks=(E.Thread("loader", frames(STACKS["event"])),)), rank(2, stacks=())),
        (1, "shutdown"),
    ),
    "a pipe shared with a child": (
        beside("pipe", process=process("pipe", system_call=SHARED_PIPE)),
        (1, "child"),
    ),
    "a sleep in a checkpoint": (in_section("sleep", "checkpointing"), (1, "user_code")),
    "a read in a checkpoint": (in_section("read", "checkpointing"), (1, "checkpoint_io")),
    **{
        f"a section named {name}": (
            in_section("sleep", "step", name),
            (1, "user_code", HIGH, f"in section '{name}'"),
        )
        for name in ("data_loading", "ckpt", "fetch_batch")
    },
    "a native wait that the recorder knows": (
        case(
            rank(0, "async", collectives=(entry(4, state="completed", ago=40.0), entry(5))), rank(1, "lock")
        ),
        (1, "lock"),
    ),
    "most ranks at one native wait": (
        case(*(rank(number, "async") for number in range(3)), rank(3, "sleep")),
        (3, "user_code"),
    ),
    "a native wait beside a sleep, without a recorder": (
        case(rank(0, "async"), rank(1, "sleep")),
        (1, "user_code", MEDIUM),
    ),
    "the holder of a file lock sleeps": (
        case(rank(0, "sleep", pid=4711), rank(1, "flock"), rank(2)),
        (0, "user_code", MEDIUM, "", (1, 2)),
    ),
    "the holder of a file lock at an unknown place": (
        case(rank(0, "", pid=4711), rank(1, "flock"), rank(2)),
        (0, "lock"),
    ),
    "the holder of a file lock waits in the collective": (
        case(rank(0, pid=4711), rank(1, "flock"), rank(2)),
        (1, "lock", MEDIUM),
    ),
    "the holder of the file lock for which all others wait is in the collective": (
        case(rank(0, pid=4711), rank(1, "flock"), rank(2, "flock")),
        (0, "lock", MEDIUM, "", (1, 2)),
    ),
    "two outside, one a step behind": (
        case(rank(0), rank(1, "sleep", board=board(9)), rank(2, "busy")),
        (1, "user_code", MEDIUM),
    ),
    "the last rank does not end": (case(ended(0, 0), ended(1, 0), rank(2, "exit")), (2, "shutdown", HIGH)),
    "a rank computes at its exit, on a busy machine": (
        case(rank(0), rank(1), rank(2, "exit", process=process("busy"))),
        (2, "shutdown", MEDIUM),
    ),
    "a rank ended with 0, the others wait for it": (
        case(rank(0), ended(1, 0), rank(2), rank(3)),
        (1, "early_exit", HIGH, "", (0, 2, 3)),
    ),
    "native waits for a rank that ended": (
        case(rank(0, "async"), ended(1, 0, ago=30.0), rank(2, "async")),
        (1, "early_exit", MEDIUM),
    ),
    "one waits for ranks that are done": (
        case(ended(0, 0), ended(1, 0), rank(2), ended(3, 0)),
        (2, "mismatched_collective"),
    ),
    "the monitor has ended both": (case(rank(0, exit=KILLED), rank(1, "queue", exit=KILLED)), (1, "lock")),
    "one still imports": (
        case(rank(0, "init"), rank(1, "importing", board=None), rank(2, "init")),
        (1, "startup"),
    ),
    "one imports torch.distributed": (importing("<module>"), (1, "startup")),
    "one imports a class of torch.distributed": (importing("Backend"), (1, "startup")),
    "a node has told nothing": (case(rank(0), rank(1), nodes=2, world_size=4), (None, "elsewhere", MEDIUM)),
    "no stack of one": (case(rank(0), rank(1, "", process=None), rank(2)), (1, "missing_collective", MEDIUM)),
    "no stack of any, one sleeps": (
        case(rank(0, ""), rank(1, "", process=process("sleep")), rank(2, "")),
        (1, "user_code", MEDIUM),
    ),
    "nothing but boards, one a step behind": (
        case(*(rank(number, "", process=None, board=board(10 - (number == 1))) for number in range(3))),
        (1, "behind", MEDIUM),
    ),
    "one rank alone": (case(rank(0, "queue", passed=limit())), (0, "lock", MEDIUM)),
    "all compute": (case(rank(0, "busy", passed=limit()), rank(1, "busy")), (None, "slow")),
    "the limit was too short": (
        case(rank(0, "sleep", board=board(moved=True), passed=limit()), rank(1, board=board(moved=True))),
        (None, "slow"),
    ),
    "all come to one collective after another": (
        case(replace(SLOW[0], passed=limit()), *SLOW[1:]),
        (None, "slow", MEDIUM),
    ),
    "all in the same collective": (case(rank(0), rank(1)), (None, "unknown", LOW)),
    "no node": (E.Case(), (None, "unknown")),
    "asked for, silent for long": (
        case(rank(0), rank(1, "sleep"), trigger=E.DIAGNOSE, accused=None),
        (1, "user_code", MEDIUM),
    ),
    **{
        f"asked for, {name}": (
            case(rank(0, board=facts), rank(1, "sleep", board=facts), trigger=E.DIAGNOSE, accused=None),
            (1, "user_code", LOW),
        )
        for name, facts in (("without boards", None), ("silent for a moment", QUIET))
    },
    "an early sign of a stopped rank": (
        case(rank(0, board=QUIET), rank(1, process=process(state="T"), board=QUIET), trigger=E.EARLY),
        (1, "stopped", HIGH),
    ),
    "a process is gone": (
        case(rank(0), rank(1, "", process=process(state="gone")), trigger=E.CRASH),
        (1, "exit", MEDIUM),
    ),
    "an event loop waits for a connection": (
        case(rank(0), rank(1), rank(2, "asyncio", process=process("asyncio", system_call=HTTPS))),
        (2, "network", MEDIUM, "10.0.0.7:443"),
    ),
    **{
        f"{which} waits for its child": (
            case(rank(0), rank(1), rank(2, "asyncio", **changes)),
            (2, "child", MEDIUM, "waits in its event loop for its child process"),
        )
        for which, changes in FOR_A_CHILD.items()
    },
}


@pytest.mark.parametrize("name", HANGS)
def test_hang_has_the_verdict(name: str) -> None:
    expect(*HANGS[name])


@pytest.mark.parametrize(
    "changes",
    [
        {"collectives": (entry(90, ago=31.0),)},
        {"collectives": ()},
        {"board": board(silent=0.3)},
        {"process": process(state="T")},
    ],
    ids=["stands", "tells nothing", "has given a sign", "is stopped"],
)
def test_one_of_whom_that_cannot_be_said_is_enough_to_look_further(changes: dict[str, Any]) -> None:
    assert judge(case(*SLOW[:2], replace(SLOW[2], **changes))).kind != "slow"


# -- what keeps the process of a rank that is at its exit, from its stacks and children ------------------------


LIB = "/usr/lib/python3.11"
SHUTDOWN = (E.Frame("_shutdown", f"{LIB}/threading.py", 1590),)
JOIN = (
    E.Frame("wait", f"{LIB}/multiprocessing/popen_fork.py", 43),
    E.Frame("_exit_function", f"{LIB}/multiprocessing/util.py", 360),
)
UPLOAD = (E.Frame("upload", "/job/train.py", 12), E.Frame("run", f"{LIB}/threading.py", 982))


def main(*frames: E.Frame) -> E.Thread:
    return E.Thread("MainThread", frames, main=True)


@pytest.mark.parametrize(
    ("threads", "children", "expected"),
    [
        (
            [main(*SHUTDOWN), E.Thread("up", UPLOAD, daemon=False), E.Thread("log", UPLOAD, daemon=True)],
            (),
            "is at its exit: it waits for thread 'up', which is in job/train.py:12 upload()",
        ),
        (
            [main(*JOIN)],
            (E.Child(71, "python worker.py"),),
            "is at its exit: it waits for its child process 71 (python worker.py)",
        ),
        (
            [main(*SHUTDOWN), *(E.Thread(str(n), UPLOAD, daemon=False) for n in range(5))],
            (),
            "is at its exit: it waits for "
            + ", ".join(f"thread '{n}', which is in job/train.py:12 upload()" for n in range(3))
            + " and 2 more",
        ),
        ([main(*SHUTDOWN)], (), "is at its exit, in python3.11/threading.py:1590 _shutdown()"),
        ([main(*UPLOAD)], (), "is in job/train.py:12 upload()"),
        ([main()], (), "is at its exit: no Python frame is left"),
        ([], (), "is at an unknown place"),
    ],
)
def test_kept_by_is_named(threads: list[E.Thread], children: tuple[E.Child, ...], expected: str) -> None:
    rank = E.RankEvidence(0, 0, 7, "a", process=E.Process(children=children), stacks=tuple(threads))
    assert activity(rank).text == expected
