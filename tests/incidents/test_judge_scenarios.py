"""Jobs as users run them, as evidence written by hand before the rules were read: the truth of each is known.

NCCL (a rank that waits spins at 100 % CPU, its stack ends in its own line), several groups, pipelines, hooks on
autograd's thread, checkpoints written by a thread, arbitrary names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from holdfast.incidents import judge
from holdfast.incidents.classify import nature_of_lines
from holdfast.incidents.classify import raised as raised_as
from holdfast.incidents.evidence import (
    BoardFacts,
    Case,
    Child,
    Collective,
    Exit,
    Frame,
    KernelThread,
    Missing,
    NodeEvidence,
    PassedLimit,
    Process,
    RankEvidence,
    StackSource,
    SystemCall,
    Target,
    Thread,
    TriggerKind,
)

PYTHON = "/opt/conda/lib/python3.11"
PACKAGES = f"{PYTHON}/site-packages"
C10D = f"{PACKAGES}/torch/distributed/distributed_c10d.py"
LOADER = f"{PACKAGES}/torch/utils/data/dataloader.py"
THREADING = f"{PYTHON}/threading.py"
APP = "/workspace/aurora/trainer.py"
LINE = ("advance", APP, 212)
MAIN = ("<module>", "/workspace/aurora/run.py", 31)
BACKWARD = (
    ("_engine_run_backward", f"{PACKAGES}/torch/autograd/graph.py", 823),
    ("backward", f"{PACKAGES}/torch/autograd/__init__.py", 347),
    ("backward", f"{PACKAGES}/torch/_tensor.py", 581),
)
Call = tuple[str, str, int]


def frames(*calls: Call) -> tuple[Frame, ...]:
    return tuple(Frame(*call) for call in calls)


def thread(*calls: Call, name: str = "MainThread", tid: int = 0) -> Thread:
    return Thread(name, frames(*calls), main=name == "MainThread", tid=tid)


FOUR, EIGHT = list(range(4)), list(range(8))


def spinning() -> Process:
    kernel = KernelThread(1, "python", "R", "", 0.05, 2)
    return Process("R", cpu=0.05, switches=2, sampled_over=0.05, threads=(kernel,))


def waiting(name: str, channel: str = "", state: str = "S", **call: Any) -> Process:
    kernel = KernelThread(1, "python", state, channel)
    return Process(state, channel, system_call=SystemCall(name, **call), sampled_over=0.05, threads=(kernel,))


def entry(sequence: int, state: str, group: str, members: list[int], **more: Any) -> Collective:
    ago = more.pop("ago", 40.0 if state != "completed" else 41.0)
    found = Collective(sequence, "all_reduce", group, "[[4096]]", "BFloat16", state, ago, tuple(members))
    return replace(found, backend="nccl", **more)


def transfer(operation: str, peer: int, state: str = "started", sequence: int = 9) -> Collective:
    return entry(sequence, state, "pp", FOUR, operation=operation, p2p=True, peer=peer)


def rank(number: int, *calls: Call, **more: Any) -> RankEvidence:
    """One that lives; without calls it spins in its own line, under `.item()`."""
    found = RankEvidence(
        number, number % 8, 7000 + number, "n0",
        board=BoardFacts(connected=True, heartbeats=50, step=50, silent=40.0, age=300.0, rhythm=0.8),
        process=spinning(),
        stacks=(thread(*(calls or (LINE,)), MAIN),),
        stacks_from=StackSource.RANK,
    )  # fmt: skip
    return replace(found, **more)


def reached(number: int, sequence: int, state: str, *calls: Call, **more: Any) -> RankEvidence:
    """One of a job with one group, of which this is the newest collective."""
    members = more.pop("members", FOUR)
    entries = (entry(sequence, state, "0", members, **more.pop("changes", {})),)
    return rank(number, *calls, collectives=entries, **more)


def gone(number: int, status: int, ago: float, lines: tuple[str, ...] = (), **more: Any) -> RankEvidence:
    end = Exit(status, ago=ago, asked=more.pop("asked", False), oom_killed=more.pop("oom_killed", False))
    found = RankEvidence(number, number % 8, 7000 + number, "n0", exit=end, last_lines=lines)
    return replace(found, stderr=nature_of_lines(lines), **more)


def case(
    ranks: list[RankEvidence], trigger: TriggerKind = TriggerKind.HANG, passed: int | None = 0, **more: Any
) -> Case:
    """Of one node; rank `passed` is over its limit."""
    if passed is not None:
        limit = PassedLimit("heartbeat", 40.1, 40.0)
        ranks = [replace(each, passed=limit) if each.rank == passed else each for each in ranks]
    node = NodeEvidence(
        "n0", trigger, world_size=len(ranks), at=1e9, mono=1e4, accused=passed, ranks=tuple(ranks)
    )
    return Case((replace(node, **more),))


def two_nodes(ranks: list[RankEvidence], passed: int) -> Case:
    half, found = len(ranks) // 2, []
    for number, of_node in enumerate((ranks[:half], ranks[half:])):
        name, is_own = f"n{number}", passed in [each.rank for each in of_node]
        trigger = TriggerKind.HANG if is_own else TriggerKind.ELSEWHERE
        placed = [replace(each, node=name) for each in of_node]
        found += case(placed, trigger, passed if is_own else None, node=name, node_rank=number).nodes
    return Case(tuple(replace(each, nodes=2, world_size=len(ranks)) for each in found))


FUTEX = waiting("futex", "futex_wait_queue")
SLEEP = waiting("clock_nanosleep", "hrtimer_nanosleep")


def gloo(number: int, *calls: Call, **more: Any) -> RankEvidence:
    """One of a job without a flight recorder."""
    return rank(number, *calls, no_collectives=Missing.NOT_RECORDED, **more)


def tensor_and_data_parallel() -> Case:
    """Rank 5 waits for a lock of its own before the second all_reduce of its tensor group."""
    tensor = {number: [number - number % 2, number - number % 2 + 1] for number in range(8)}
    data = {number: list(range(number % 2, 8, 2)) for number in range(8)}
    ranks = []
    for number in range(8):
        name = f"tp{tensor[number][0]}"
        before = (
            entry(30, "completed", name, tensor[number]),
            entry(12, "completed", f"dp{number % 2}", data[number]),
        )
        if number == 5:
            emits = ("emit", "/workspace/aurora/telemetry/sink.py", 58)
            ranks.append(rank(5, emits, LINE, process=FUTEX, collectives=before))
        elif number == 4:
            ranks.append(rank(4, collectives=(*before, entry(31, "started", name, [4, 5]))))
        else:
            through = entry(31, "completed", name, tensor[number])
            pending = entry(13, "started", f"dp{number % 2}", data[number])
            ranks.append(rank(number, collectives=(through, before[1], pending)))
    return two_nodes(ranks, 6)


LOOKUP = ("lookup", "/workspace/aurora/vocab.py", 77)


def pipeline_disk() -> Case:
    """Stage 2 of 4 is blocked in the kernel in a read; its neighbours wait in transfers."""
    blocked = waiting("read", "nfs_wait_bit_killable", "D", target=Target.FILE, path="/mnt/vocab/merges.bin")
    return case([
        rank(0, collectives=(transfer("recv", 1),)),
        rank(1, collectives=(transfer("send", 2, sequence=10), transfer("recv", 2))),
        rank(2, LOOKUP, LINE, process=blocked, collectives=(transfer("recv", 1, "completed"),)),
        rank(3, collectives=(transfer("recv", 2),)),
    ])  # fmt: skip


def pipeline_spin() -> Case:
    """Stage 1 computes forever in its own code, on two nodes; stage 0 has passed the limit."""
    return two_nodes([
        rank(0, collectives=(transfer("recv", 1),)),
        rank(1, ("balance", "/workspace/aurora/router.py", 18), LINE, collectives=(transfer("recv", 0, "completed"),)),
        rank(2, collectives=(transfer("recv", 1),)),
        rank(3, collectives=(transfer("recv", 2),)),
    ], 0)  # fmt: skip


def posted_receive() -> Case:
    """Stage 0 has posted its next receive and waits for data, the others for it, on two nodes."""
    loads = ("_try_get_data", LOADER, 1285), ("_next_data", LOADER, 1490), LINE
    posted = (transfer("recv", 1),)
    zero = rank(0, *loads, process=waiting("poll", "do_sys_poll"), collectives=posted)
    return two_nodes(
        [zero, *(rank(number, collectives=(transfer("recv", number - 1),)) for number in (1, 2, 3))], 2
    )


def polls_for_its_gpu() -> Case:
    """Rank 0 waits for its GPU in poll(), below its own line; rank 1 has not come."""
    zero = reached(0, 7, "started", process=waiting("poll", "do_sys_poll"))
    one = reached(1, 6, "completed", ("throttle", "/workspace/aurora/limits.py", 12), LINE, process=SLEEP)
    return case([zero, one, reached(2, 7, "started")])


def posted_collective_is_innocent() -> Case:
    """Rank 0 logs over the network after it has enqueued a collective; rank 3 has not come to it."""
    logs = ("readinto", f"{PYTHON}/socket.py", 718), ("getresponse", f"{PYTHON}/http/client.py", 1395), LINE
    zero = reached(0, 7, "started", *logs, process=waiting("recvfrom", "sk_wait_data"))
    three = reached(3, 6, "completed", ("throttle", "/workspace/aurora/limits.py", 12), LINE, process=SLEEP)
    return case([zero, reached(1, 7, "started"), reached(2, 7, "started"), three])


def send_left_out() -> Case:
    """Rank 0 leaves out one send and is already in the reduction of the shared embedding, for which it needs rank 3."""
    return case([
        rank(0, collectives=(transfer("send", 1, "completed", sequence=8), entry(4, "started", "emb", [0, 3]))),
        rank(1, collectives=(transfer("recv", 0, sequence=9),)),
        rank(2, collectives=(transfer("recv", 1),)),
        rank(3, collectives=(transfer("recv", 2), entry(3, "completed", "emb", [0, 3]))),
    ], passed=3)  # fmt: skip


def gloo_receives() -> Case:
    """A chain of blocking receives, without a flight recorder; its end sleeps."""
    receives = [
        gloo(number, ("recv", C10D, 2600), LINE, process=FUTEX, peer=(number - 1) % 4) for number in (0, 2, 3)
    ]
    one = gloo(1, ("retry", "/workspace/aurora/rpc.py", 9), LINE, process=SLEEP)
    return case([receives[0], one, *receives[1:]])


def hook_on_autograd() -> Case:
    """Rank 3's hook, on autograd's thread, waits for an HTTP server."""
    hook = thread(
        ("readinto", f"{PYTHON}/socket.py", 718),
        ("getresponse", f"{PYTHON}/http/client.py", 1395),
        ("notify", "/workspace/aurora/hooks.py", 40),
        name="pt_autograd_0", tid=2,
    )  # fmt: skip
    kernel = (*FUTEX.threads, KernelThread(2, "pt_autograd_0", "S", "sk_wait_data"))
    threads = (thread(*BACKWARD, LINE, MAIN), hook)
    stuck = reached(3, 11, "completed", stacks=threads, process=replace(FUTEX, threads=kernel))
    return case([*(reached(number, 12, "started") for number in range(3)), stuck])


def checkpoint_thread() -> Case:
    """Rank 1 joins the thread that writes its checkpoint; that one is blocked by the disk."""
    writer = thread(
        ("write", f"{PACKAGES}/torch/serialization.py", 799),
        ("save", f"{PACKAGES}/torch/serialization.py", 944),
        ("drain", "/workspace/aurora/keeper.py", 66),
        name="keeper-0", tid=3,
    )  # fmt: skip
    joins = ("_wait_for_tstate_lock", THREADING, 1167), ("join", THREADING, 1147)
    main = thread(*joins, ("settle", "/workspace/aurora/keeper.py", 90), MAIN)
    kernel = (*FUTEX.threads, KernelThread(3, "python", "D", "nfs_wait_bit_killable"))
    one = reached(1, 6, "completed", stacks=(main, writer), process=replace(FUTEX, threads=kernel))
    return case([reached(0, 7, "started"), one, reached(2, 7, "started"), reached(3, 7, "started")])


def checkpoint_thread_is_innocent() -> Case:
    """Rank 0 writes a checkpoint in a thread and waits in the collective; rank 2 sleeps."""
    writes = (
        ("write", f"{PACKAGES}/torch/serialization.py", 799),
        ("save", f"{PACKAGES}/torch/serialization.py", 944),
    )
    zero = reached(0, 7, "started")
    zero = replace(zero, stacks=(*zero.stacks, thread(*writes, name="keeper-0", tid=3)))
    two = reached(2, 6, "completed", ("throttle", "/workspace/aurora/limits.py", 12), LINE, process=SLEEP)
    return case([zero, reached(1, 7, "started"), two, reached(3, 7, "started")])


def other_size() -> Case:
    """Rank 6 gathers with another size."""
    ranks = []
    for number in range(8):
        gather = {"operation": "_all_gather_base", "sizes": "[[2048]]" if number == 6 else "[[1024]]"}
        ranks.append(reached(number, 90, "started", members=EIGHT, changes=gather))
    return case(ranks)


def watchdog_aborts() -> Case:
    """NCCL's watchdog has ended the ranks that waited; rank 2 still sleeps in its own code."""
    lines = (
        "[rank0]:[E ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=88, OpType=ALLREDUCE, NumelIn=4096, NumelOut=4096, Timeout(ms)=600000) "
        "ran for 600020 milliseconds before timing out.",
        "terminate called after throwing an instance of 'c10::DistBackendError'",
    )
    two = rank(2, ("poll", "/workspace/aurora/license.py", 70), LINE, process=SLEEP)
    return case(
        [gone(0, -6, 0.4, lines), gone(1, -6, 0.2, lines), two, gone(3, -6, 0.1, lines)], TriggerKind.CRASH
    )


def illegal_access() -> Case:
    """A kernel of rank 1 reads where it must not; the others lose it."""
    text = "NCCL error in: ProcessGroupNCCL.cpp:1331, remote process exited or there was a network error"
    lost = [gone(number, 1, 0.1, raised=raised_as("DistBackendError", text, "", 0.1)) for number in (0, 2, 3)]
    error = raised_as(
        "torch.AcceleratorError", "CUDA error: an illegal memory access was encountered", "", 0.9
    )
    return case([lost[0], gone(1, 1, 0.6, raised=error), *lost[1:]], TriggerKind.CRASH)


def gil_on_the_other_node() -> Case:
    """A C extension of rank 5 keeps the GIL: only the signal shows its main thread."""
    ranks = [reached(number, 33, "started", members=EIGHT) for number in range(8)]
    five = rank(5, ("tokenize", "/workspace/aurora/fastpath.py", 14), LINE, no_collectives=Missing.NO_ANSWER)
    return two_nodes([*ranks[:5], replace(five, stacks_from=StackSource.SIGNAL), *ranks[6:]], 1)


def healthy_diagnosis() -> Case:
    """All step on."""
    board = BoardFacts(connected=True, heartbeats=50, step=50, silent=0.2, age=300.0, moved=True, rhythm=0.8)
    ranks = [reached(number, 6, "started", board=board, changes={"ago": 0.05}) for number in range(4)]
    return case(ranks, TriggerKind.DIAGNOSE, None)


def workers_blocked() -> Case:
    """A worker of rank 7's data loader is blocked by the disk."""
    loader = ("_try_get_data", LOADER, 1285), ("_next_data", LOADER, 1490), ("__next__", LOADER, 730), LINE
    workers = (
        Child(81, "pt_data_worker", "D", "nfs_wait_bit_killable"),
        Child(82, "pt_data_worker", "S", "pipe_read"),
    )
    process = replace(waiting("poll", "do_sys_poll"), children=workers)
    seven = reached(7, 32, "completed", *loader, members=EIGHT, process=process)
    return case([*(reached(number, 33, "started", members=EIGHT) for number in range(7)), seven])


def event_loop_loads() -> Case:
    """Rank 1 loads without workers through an event loop's thread (as fsspec does)."""
    main = thread(
        ("wait", THREADING, 359), ("wait", THREADING, 655), ("sync", f"{PACKAGES}/fsspec/asyn.py", 91),
        ("__getitem__", "/workspace/aurora/shards.py", 44), ("_next_data", LOADER, 788), ("__next__", LOADER, 730),
        LINE, MAIN,
    )  # fmt: skip
    polls = (
        ("select", f"{PYTHON}/selectors.py", 468),
        ("run_forever", f"{PYTHON}/asyncio/base_events.py", 608),
    )
    threads = (main, thread(*polls, name="fsspecIO", tid=4))
    one = reached(1, 2, "completed", members=[0, 1], stacks=threads, process=FUTEX)
    return case([reached(0, 3, "started", members=[0, 1]), one])


def misleading_names() -> Case:
    """Rank 1 sleeps in functions of its own that are named as torch's."""
    own = (
        ("barrier", "/workspace/load/save.py", 5),
        ("all_reduce", "/workspace/load/distributed_c10d_helpers.py", 8),
        ("backward", "/workspace/load/dataloader.py", 9),
    )
    waits = [gloo(number, ("all_reduce", C10D, 2500), LINE, process=FUTEX) for number in (0, 2, 3)]
    return case([waits[0], gloo(1, *own, process=SLEEP), *waits[1:]], passed=2)


def expert_groups() -> Case:
    """Rank 2 enters the all_to_all of its experts a step late because it waits for the file lock of a stranger."""
    locked = waiting(
        "flock", "locks_lock_inode_wait", target=Target.LOCK, path="/scratch/kernels/lock", pid=31337
    )
    ranks = []
    for number in range(4):
        expert = [0, 1] if number < 2 else [2, 3]
        dense = entry(20, "completed", "dp", FOUR)
        if number == 2:
            entries = (dense, entry(8, "completed", "ep2", expert))
            ranks.append(
                rank(
                    2, ("compile", "/workspace/aurora/jit.py", 120), LINE, process=locked, collectives=entries
                )
            )
        elif number == 3:
            ranks.append(
                rank(3, collectives=(dense, entry(9, "started", "ep2", expert, operation="all_to_all")))
            )
        else:
            entries = (entry(9, "completed", "ep0", expert), entry(21, "started", "dp", FOUR))
            ranks.append(rank(number, collectives=entries))
    return case(ranks)


def last_step_of_all() -> Case:
    """Rank 0 does not enter the barrier before the end: it uploads, in a child process."""
    waits = ("wait", f"{PYTHON}/subprocess.py", 1264), ("run", f"{PYTHON}/subprocess.py", 550)
    upload = waiting("wait4", "do_wait", target=Target.PROCESS, pid=900)
    process = replace(upload, children=(Child(900, "rclone copy", "S"),))
    calls = (*waits, ("ship", "/workspace/aurora/artifacts.py", 33))
    zero = reached(0, 6, "completed", *calls, members=[0, 1], process=process)
    return case([zero, reached(1, 7, "started", ("barrier", C10D, 4800), LINE, members=[0, 1])], passed=1)


def child_answers_nothing() -> Case:
    """Rank 2 waits in a proxy of multiprocessing for an answer; the others are in a collective."""
    calls = (
        ("_recv", f"{PYTHON}/multiprocessing/connection.py", 395),
        ("_callmethod", f"{PYTHON}/multiprocessing/managers.py", 818),
        LINE,
    )
    process = waiting("read", "unix_stream_read_generic", target=Target.SOCKET)
    process = replace(process, children=(Child(900, "python", "T"),))
    ranks = [reached(number, 7, "started") for number in (0, 1, 3)]
    return case([*ranks, reached(2, 6, "completed", *calls, process=process)], passed=2)


def future_of_a_thread() -> Case:
    """Rank 1 waits for a future, whose thread is blocked at a pipe."""
    main = thread(
        ("wait", THREADING, 327), ("result", f"{PYTHON}/concurrent/futures/_base.py", 451), LINE, MAIN
    )
    work = thread(
        ("compress", "/workspace/aurora/pack.py", 12),
        ("run", f"{PYTHON}/concurrent/futures/thread.py", 58),
        ("_worker", f"{PYTHON}/concurrent/futures/thread.py", 83),
        name="pack_0",
        tid=5,
    )
    kernel = (
        KernelThread(1, "python", "S", "futex_do_wait"),
        KernelThread(5, "pack", "S", "anon_pipe_write"),
    )
    process = replace(waiting("futex", "futex_do_wait"), threads=kernel)
    one = reached(1, 2, "completed", members=[0, 1], stacks=(main, work), process=process)
    return case([reached(0, 3, "started", members=[0, 1]), one], passed=1)


def asks(of: int) -> Process:
    """It waits for an answer of this rank's process."""
    return waiting(
        "recvfrom", "wait_woken", target=Target.SOCKET, path="socket:[9]", peer="127.0.0.1:4", pid=7000 + of
    )


def chain_of_connections() -> Case:
    """1 waits for 0, that for 3, and that for 2, which sleeps."""
    ranks = [rank(number, process=asks(of)) for number, of in ((0, 3), (1, 0), (3, 2))]
    return case([*ranks, rank(2, process=SLEEP)], passed=1)


def manager_on_another_machine() -> Case:
    """Rank 1 asks a manager of another machine through multiprocessing."""
    call = ("_recv", f"{PYTHON}/multiprocessing/connection.py", 395)
    away = waiting("recvfrom", "wait_woken", target=Target.SOCKET, path="socket:[9]", peer="10.0.0.7:50000")
    return case([reached(0, 7, "started"), reached(1, 6, "completed", call, LINE, process=away)], passed=1)


def far_end_is_a_rank() -> Case:
    """Rank 1 waits for an answer of a thread of rank 0, whose main thread waits in the next collective."""
    ranks = [reached(number, 7, "started") for number in (0, 2, 3)]
    return case([*ranks, reached(1, 6, "completed", process=asks(0))], passed=1)


def far_end_waits_for_another() -> Case:
    """As before, and rank 3 computes: rank 0 waits for that one, and cannot answer before."""
    one, three = reached(1, 6, "completed", process=asks(0)), reached(3, 6, "completed", ("solve", APP, 9))
    return case([reached(0, 7, "started"), one, reached(2, 7, "started"), three], passed=3)


def torch_says_timed_out() -> Case:
    """`Work.wait(timeout)` raises on all ranks but the one that is stopped."""
    message = "Operation timed out!"
    ranks = [gone(number, 1, 1.0, raised=raised_as("RuntimeError", message, "", 1.1)) for number in (0, 1, 2)]
    return case([*ranks, rank(3, process=waiting("futex", state="T"))], passed=3)


def all_raise_the_same() -> Case:
    """Of ranks that raise the same at one moment, none is the cause."""
    nan = raised_as("FloatingPointError", "the loss is NaN", "", 1.0)
    return case([gone(number, 1, 0.9 + number / 100, raised=nan) for number in FOUR])


def absent_from_a_monitored_barrier() -> Case:
    """Rank 0 reports that rank 2 was absent, which sleeps; rank 1 may wait for its GPU."""
    error = raised_as("RuntimeError", "Rank 2 failed to pass monitoredBarrier in 30000 ms", "", 0.2)
    two = rank(2, ("poll", "/workspace/aurora/license.py", 70), LINE, process=SLEEP)
    return case([gone(0, 1, 0.1, raised=error), rank(1), two], TriggerKind.CRASH)


def asks_its_simulator() -> Case:
    """Rank 0 waits for an answer of a child, by a connection of multiprocessing."""
    connection = f"{PYTHON}/multiprocessing/connection.py"
    asks = (
        ("_recv", connection, 378),
        ("recv", connection, 250),
        ("ask", "/workspace/aurora/world.py", 7),
        LINE,
    )
    pipe = waiting("read", "pipe_read", target=Target.CHILD_PIPE, pid=990)
    zero = reached(0, 6, "completed", *asks, members=[0, 1], process=pipe)
    return case([zero, reached(1, 7, "started", members=[0, 1])], passed=1)


SCENARIOS: tuple[tuple[Callable[[], Case], int | None, set[str]], ...] = (
    (tensor_and_data_parallel, 5, {"lock", "user_code", "missing_collective"}),
    (pipeline_disk, 2, {"uninterruptible"}),
    (pipeline_spin, 1, {"user_code"}),
    (posted_receive, 0, {"data_loading"}),
    (polls_for_its_gpu, 1, {"user_code"}),
    (posted_collective_is_innocent, 3, {"user_code"}),
    (send_left_out, 0, {"missing_collective", "mismatched_collective"}),
    (gloo_receives, 1, {"user_code"}),
    (hook_on_autograd, 3, {"network"}),
    (checkpoint_thread, 1, {"checkpoint_io", "uninterruptible"}),
    (checkpoint_thread_is_innocent, 2, {"user_code"}),
    (other_size, 6, {"mismatched_collective"}),
    (watchdog_aborts, 2, {"user_code"}),
    (illegal_access, 1, {"exception"}),
    (gil_on_the_other_node, 5, {"gil"}),
    (healthy_diagnosis, None, {"slow"}),
    (workers_blocked, 7, {"data_loading"}),
    (event_loop_loads, 1, {"data_loading"}),
    (misleading_names, 1, {"user_code"}),
    (expert_groups, 2, {"lock"}),
    (last_step_of_all, 0, {"child"}),
    (child_answers_nothing, 2, {"child"}),
    (future_of_a_thread, 1, {"user_code"}),
    (far_end_is_a_rank, 0, {"network"}),
    (far_end_waits_for_another, 3, {"user_code"}),
    (chain_of_connections, 2, {"user_code"}),
    (manager_on_another_machine, 1, {"network"}),
    (torch_says_timed_out, 3, {"stopped"}),
    (all_raise_the_same, None, {"exception"}),
    (absent_from_a_monitored_barrier, 2, {"user_code"}),
    (asks_its_simulator, 0, {"child"}),
)


@pytest.mark.parametrize(
    "scenario, culprit, kinds", SCENARIOS, ids=lambda value: getattr(value, "__name__", "")
)
def test_judge_scenario_names_culprit_and_kind(
    scenario: Callable[[], Case], culprit: int | None, kinds: set[str]
) -> None:
    verdict = judge(scenario()).verdict
    assert (verdict.rank, verdict.kind in kinds) == (culprit, True), verdict
