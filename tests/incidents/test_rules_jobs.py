"""Jobs as users run them, from hand-made evidence, and verdicts that once went wrong: the truth of each is known.

NCCL (a rank that waits spins at 100 % CPU, its stack ends in its own line), several groups, pipelines, hooks on
autograd's thread, checkpoints written by a thread, arbitrary names, words in stderr.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from holdfast.incidents import evidence as E
from holdfast.incidents import rules
from holdfast.incidents.classify import raised as raised_as
from holdfast.incidents.verdict import HIGH, LOW, MEDIUM
from tests.incidents.cases import ended, expect, limit, node

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
ALL_REDUCE, RECEIVES = ("all_reduce", C10D, 2500), ("recv", C10D, 2600)
THROTTLE = ("throttle", "/workspace/aurora/limits.py", 12)
FOUR = [0, 1, 2, 3]
Call = tuple[str, str, int]


def thread(*calls: Call, name: str = "MainThread", tid: int = 0) -> E.Thread:
    return E.Thread(name, tuple(E.Frame(*call) for call in calls), main=name == "MainThread", tid=tid)


def spinning() -> E.Process:
    kernel = E.KernelThread(1, "python", "R", "", 0.05, 2)
    return E.Process("R", cpu=0.05, switches=2, sampled_over=0.05, threads=(kernel,))


def waiting(name: str, channel: str = "", state: str = "S", **call: Any) -> E.Process:
    kernel = E.KernelThread(1, "python", state, channel)
    return E.Process(
        state, channel, system_call=E.SystemCall(name, **call), sampled_over=0.05, threads=(kernel,)
    )


def entry(sequence: int, state: str, group: str, members: list[int], **more: Any) -> E.Collective:
    ago = more.pop("ago", 40.0 if state != "completed" else 41.0)
    found = E.Collective(sequence, "all_reduce", group, "[[4096]]", "BFloat16", state, ago, tuple(members))
    return replace(found, **{"backend": "nccl", **more})


def transfer(operation: str, peer: int, state: str = "started", sequence: int = 9) -> E.Collective:
    return entry(sequence, state, "pp", FOUR, operation=operation, p2p=True, peer=peer)


def rank(number: int, *calls: Call, **more: Any) -> E.RankEvidence:
    """One that lives; without calls it spins in its own line, under `.item()`."""
    found = E.RankEvidence(
        number, number % 8, 7000 + number, "n0",
        board=E.BoardFacts(connected=True, heartbeats=50, step=50, silent=40.0, age=300.0, rhythm=0.8),
        process=spinning(),
        stacks=(thread(*(calls or (LINE,)), MAIN),),
        stacks_from=E.StackSource.RANK,
    )  # fmt: skip
    return replace(found, **more)


def reached(number: int, sequence: int, state: str, *calls: Call, **more: Any) -> E.RankEvidence:
    """One of a job with one group, of which this is the newest collective."""
    members = more.pop("members", FOUR)
    entries = (entry(sequence, state, "0", members, **more.pop("changes", {})),)
    return rank(number, *calls, collectives=entries, **more)


def case(
    ranks: list[E.RankEvidence], trigger: E.TriggerKind = E.HANG, passed: int | None = 0, **more: Any
) -> E.Case:
    """Of one node; rank `passed` is over its limit."""
    ranks = [replace(each, passed=limit(40.1)) if each.rank == passed else each for each in ranks]
    return E.Case((node(*ranks, trigger=trigger, accused=passed, **more),))


def two_nodes(ranks: list[E.RankEvidence], passed: int) -> E.Case:
    half, found = len(ranks) // 2, []
    for number, of_node in enumerate((ranks[:half], ranks[half:])):
        more = {"name": f"n{number}", "node_rank": number, "nodes": 2, "world_size": len(ranks)}
        is_own = passed in [each.rank for each in of_node]
        how = (E.HANG, passed) if is_own else (E.ELSEWHERE, None)
        found += case(of_node, *how, **more).nodes
    return E.Case(tuple(found))


FUTEX = waiting("futex", "futex_wait_queue")
SLEEP = waiting("clock_nanosleep", "hrtimer_nanosleep")
POLL = waiting("poll", "do_sys_poll")
LOADS = ("_try_get_data", LOADER, 1285), ("_next_data", LOADER, 1490), LINE
AWAY = waiting("recvfrom", "wait_woken", target=E.Target.SOCKET, path="socket:[9]", peer="10.0.0.7:50000")


def gloo(number: int, *calls: Call, **more: Any) -> E.RankEvidence:
    """One of a job without a flight recorder."""
    return rank(number, *calls, no_collectives=E.Missing.NOT_RECORDED, **more)


def posted_receive() -> E.Case:
    """Stage 0 has posted its next receive and waits for data, the others for it, on two nodes."""
    zero = rank(0, *LOADS, process=POLL, collectives=(transfer("recv", 1),))
    others = [rank(number, collectives=(transfer("recv", number - 1),)) for number in (1, 2, 3)]
    return two_nodes([zero, *others], 2)


def polls_for_its_gpu() -> E.Case:
    """Rank 0 waits for its GPU in poll(), below its own line; rank 1 has not come."""
    zero = reached(0, 7, "started", process=POLL)
    one = reached(1, 6, "completed", THROTTLE, LINE, process=SLEEP)
    return case([zero, one, reached(2, 7, "started")])


def posted_collective_is_innocent() -> E.Case:
    """Rank 0 logs over the network after it has enqueued a collective; rank 3 has not come to it."""
    logs = ("readinto", f"{PYTHON}/socket.py", 718), ("getresponse", f"{PYTHON}/http/client.py", 1395), LINE
    zero = reached(0, 7, "started", *logs, process=waiting("recvfrom", "sk_wait_data"))
    three = reached(3, 6, "completed", THROTTLE, LINE, process=SLEEP)
    return case([zero, reached(1, 7, "started"), reached(2, 7, "started"), three])


def send_left_out() -> E.Case:
    """Rank 0 leaves out one send and is already in the reduction of the shared embedding, for which it needs rank 3."""
    return case([
        rank(0, collectives=(transfer("send", 1, "completed", sequence=8), entry(4, "started", "emb", [0, 3]))),
        rank(1, collectives=(transfer("recv", 0, sequence=9),)),
        rank(2, collectives=(transfer("recv", 1),)),
        rank(3, collectives=(transfer("recv", 2), entry(3, "completed", "emb", [0, 3]))),
    ], passed=3)  # fmt: skip


def hook_on_autograd() -> E.Case:
    """Rank 3's hook, on autograd's thread, waits for an HTTP server."""
    hook = thread(
        ("readinto", f"{PYTHON}/socket.py", 718),
        ("getresponse", f"{PYTHON}/http/client.py", 1395),
        ("notify", "/workspace/aurora/hooks.py", 40),
        name="pt_autograd_0", tid=2,
    )  # fmt: skip
    kernel = (*FUTEX.threads, E.KernelThread(2, "pt_autograd_0", "S", "sk_wait_data"))
    threads = (thread(*BACKWARD, LINE, MAIN), hook)
    stuck = reached(3, 11, "completed", stacks=threads, process=replace(FUTEX, threads=kernel))
    return case([*(reached(number, 12, "started") for number in range(3)), stuck])


WRITES = (
    ("write", f"{PACKAGES}/torch/serialization.py", 799),
    ("save", f"{PACKAGES}/torch/serialization.py", 944),
)


def checkpoint_thread() -> E.Case:
    """Rank 1 joins the thread that writes its checkpoint; that one is blocked by the disk."""
    writer = thread(*WRITES, ("drain", "/workspace/aurora/keeper.py", 66), name="keeper-0", tid=3)
    joins = ("_wait_for_tstate_lock", THREADING, 1167), ("join", THREADING, 1147)
    main = thread(*joins, ("settle", "/workspace/aurora/keeper.py", 90), MAIN)
    kernel = (*FUTEX.threads, E.KernelThread(3, "python", "D", "nfs_wait_bit_killable"))
    one = reached(1, 6, "completed", stacks=(main, writer), process=replace(FUTEX, threads=kernel))
    return case([reached(0, 7, "started"), one, reached(2, 7, "started"), reached(3, 7, "started")])


def checkpoint_thread_is_innocent() -> E.Case:
    """Rank 0 writes a checkpoint in a thread and waits in the collective; rank 2 sleeps."""
    zero = reached(0, 7, "started")
    zero = replace(zero, stacks=(*zero.stacks, thread(*WRITES, name="keeper-0", tid=3)))
    two = reached(2, 6, "completed", THROTTLE, LINE, process=SLEEP)
    return case([zero, reached(1, 7, "started"), two, reached(3, 7, "started")])


def watchdog_aborts() -> E.Case:
    """NCCL's watchdog has ended the ranks that waited; rank 2 still sleeps in its own code."""
    lines = (
        "[rank0]:[E ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=88, OpType=ALLREDUCE, NumelIn=4096, NumelOut=4096, Timeout(ms)=600000) "
        "ran for 600020 milliseconds before timing out.",
        "terminate called after throwing an instance of 'c10::DistBackendError'",
    )
    two = rank(2, ("poll", "/workspace/aurora/license.py", 70), LINE, process=SLEEP)
    others = [ended(number, -6, 0.4 - number / 10, last_lines=lines) for number in (0, 1, 3)]
    return case([*others, two], E.CRASH)


def event_loop_loads() -> E.Case:
    """Rank 1 loads without workers through an event loop's thread (as fsspec does)."""
    main = thread(
        ("wait", THREADING, 359), ("wait", THREADING, 655), ("sync", f"{PACKAGES}/fsspec/asyn.py", 91),
        ("__getitem__", "/workspace/aurora/shards.py", 44), ("_next_data", LOADER, 788), ("__next__", LOADER, 730),
        LINE, MAIN,
    )  # fmt: skip
    polls = ("run_forever", f"{PYTHON}/asyncio/base_events.py", 608)
    threads = (main, thread(("select", f"{PYTHON}/selectors.py", 468), polls, name="fsspecIO", tid=4))
    one = reached(1, 2, "completed", members=[0, 1], stacks=threads, process=FUTEX)
    return case([reached(0, 3, "started", members=[0, 1]), one])


def misleading_names() -> E.Case:
    """Rank 1 sleeps in functions of its own that are named as torch's."""
    own = (
        ("barrier", "/workspace/load/save.py", 5),
        ("all_reduce", "/workspace/load/distributed_c10d_helpers.py", 8),
        ("backward", "/workspace/load/dataloader.py", 9),
    )
    waits = [gloo(number, ALL_REDUCE, LINE, process=FUTEX) for number in (0, 2, 3)]
    return case([waits[0], gloo(1, *own, process=SLEEP), *waits[1:]], passed=2)


def future_of_a_thread() -> E.Case:
    """Rank 1 waits for a future, whose thread is blocked at a pipe."""
    main = thread(
        ("wait", THREADING, 327), ("result", f"{PYTHON}/concurrent/futures/_base.py", 451), LINE, MAIN
    )
    worker = f"{PYTHON}/concurrent/futures/thread.py"
    calls = ("compress", "/workspace/aurora/pack.py", 12), ("run", worker, 58), ("_worker", worker, 83)
    kernel = (*FUTEX.threads, E.KernelThread(5, "pack", "S", "anon_pipe_write"))
    stacks = (main, thread(*calls, name="pack_0", tid=5))
    one = reached(1, 2, "completed", members=[0, 1], stacks=stacks, process=replace(FUTEX, threads=kernel))
    return case([reached(0, 3, "started", members=[0, 1]), one], passed=1)


def of_no_group(evaluator: E.RankEvidence) -> E.Case:
    """Ranks 0 to 2 wait for each other, and rank 3 is in none of their groups."""
    team = [reached(number, 7, "started", members=[0, 1, 2]) for number in (0, 2)]
    other = reached(1, 7, "started", members=[0, 1, 2], changes={"operation": "nccl:broadcast"})
    return case([team[0], other, team[1], evaluator])


QUEUE = (("wait", THREADING, 327), ("get", f"{PYTHON}/queue.py", 171))
SAME_MODULE = ("fill", APP, 40)


def waits_for(
    *calls: Call, state: str = "S", channel: str = "wait_woken", more: tuple[E.Thread, ...] = ()
) -> E.Case:
    """Rank 1 waits at a queue, and a thread of its own has these calls."""
    kernel = (*FUTEX.threads, E.KernelThread(5, "python", state, channel))
    stacks = (thread(*QUEUE, LINE, MAIN), thread(*calls, name="feed", tid=5), *more)
    one = reached(1, 6, "completed", stacks=stacks, process=replace(FUTEX, threads=kernel))
    return case([reached(0, 7, "started"), one], passed=1)


def pool_of_processes() -> E.Case:
    """Rank 1 waits for a result of one."""
    result = ("result", f"{PYTHON}/concurrent/futures/_base.py", 451)
    manager = thread(
        ("wait", f"{PYTHON}/multiprocessing/connection.py", 947),
        ("run", f"{PYTHON}/concurrent/futures/process.py", 338),
        name="Thread-4",
    )
    process = replace(FUTEX, children=(E.Child(9001, "python", "S", "futex_do_wait"),))
    stacks = (thread(QUEUE[0], result, LINE, MAIN), manager)
    one = reached(1, 6, "completed", stacks=stacks, process=process)
    return case([reached(0, 7, "started"), one], passed=1)


def beats_of_a_thread(waited: float) -> E.Case:
    """All boards move; rank 1 waits for a child, the others for it in a collective, for so long."""
    board = E.BoardFacts(connected=True, heartbeats=50, silent=0.4, age=300.0, rhythm=1.0, moved=True)
    child = waiting("wait4", "do_wait", target=E.Target.PROCESS, pid=9001)
    changes = {"board": board, "changes": {"ago": waited}}
    waiters = [reached(number, 7, "started", ALL_REDUCE, LINE, **changes) for number in (0, 2)]
    calls = ("wait", f"{PYTHON}/subprocess.py", 1264)
    return case([*waiters, reached(1, 6, "completed", calls, LINE, board=board, process=child)], passed=0)


def asks(of: int) -> E.Process:
    """It waits for an answer of this rank's process."""
    return replace(AWAY, system_call=replace(AWAY.system_call, peer="127.0.0.1:4", pid=7000 + of))


def stuck(*calls: Call, process: E.Process, **more: Any) -> E.Case:
    """On gloo rank 0 is at these calls; rank 1 waits for it in a collective."""
    return case([gloo(0, *calls, process=process, **more), gloo(1, ALL_REDUCE, LINE, process=FUTEX)])


def written(call: str, path: str, *below: Call) -> E.Case:
    """Rank 0 is in a call on a file, from its own code."""
    return stuck(*below, LINE, process=waiting(call, target=E.Target.FILE, path=path))


def crashed(line: str) -> E.Case:
    """Rank 2 has died by a signal, after this line in stderr, and the others lost their connections."""
    text = "[/pytorch/gloo/pair.cc:571] Connection closed by peer [10.0.0.1]"
    lost = [ended(number, 1, 0.5, raised=raised_as("RuntimeError", text, "", 0.5)) for number in (0, 1)]
    two = ended(2, -11, 1.0, last_lines=(line, "Fatal Python error: Segmentation fault"))
    return case([*lost, two], E.CRASH, 2)


def has_finished() -> E.Case:
    """The process of rank 0 is gone, after it had reported that it was finished."""
    board = E.BoardFacts(connected=True, finished=True, silent=40.0, age=300.0)
    zero = replace(gloo(0), process=E.Process("gone"), board=board, stacks=(), stacks_from=E.StackSource.NONE)
    return case([zero, gloo(1, ("upload", APP, 5), process=SLEEP)], passed=1)


def two_native_waits() -> E.Case:
    """Each at another line: which of them waits for the other is not known."""
    lines = ("send_forward", APP, 31), ("recv_backward", APP, 55)
    return case([gloo(number, line, process=FUTEX) for number, line in enumerate(lines)])


def first_collective_of_all() -> E.Case:
    """Nothing is completed yet, and the recorder has no times: every state is `scheduled`."""
    first = (entry(1, "scheduled", "0", FOUR, operation="broadcast"),)
    return case([rank(number, collectives=first if number else ()) for number in FOUR], passed=1)


def waits_for_a_part(operation: str) -> E.Case:
    """gloo records no sends and receives: the peer comes from the arguments of the call on the stack."""
    ranks = [gloo(number, ALL_REDUCE, LINE, process=FUTEX) for number in (0, 1, 3)]
    return case([*ranks, gloo(2, (operation, C10D, 2100), LINE, process=FUTEX, peer=1)], passed=2)


def exchanges() -> E.Case:
    """Ranks 0 and 1 are in counterparts of one transfer, and rank 2 never came to the collective of rank 3."""
    send, receive = gloo(0, ("send", C10D, 2000), LINE, peer=1), gloo(1, RECEIVES, LINE, peer=0)
    pair = [replace(each, process=FUTEX) for each in (send, receive)]
    return case([*pair, gloo(2, ("embed", APP, 70)), gloo(3, ALL_REDUCE, LINE, process=FUTEX)], passed=3)


def end_of_a_chain() -> E.Case:
    """0 receives from 1, which sums with 2, which sums with 3; 3 is in a barrier of its own."""
    done = entry(3, "completed", "last", [2, 3])
    own = entry(4, "started", "own", [3], operation="barrier")
    return case([
        rank(0, collectives=(transfer("recv 0<-1", 1),)),
        rank(1, collectives=(entry(4, "started", "first", [1, 2]),)),
        rank(2, collectives=(done, entry(4, "started", "last", [2, 3]))),
        rank(3, collectives=(done, own)),
    ])  # fmt: skip


def leaves_the_order() -> E.Case:
    """Ranks 0 and 1 sum in their pair, then all ranks sum. Rank 0 leaves out its pair's sum once."""
    pair, world = ("pair", [0, 1]), ("0", FOUR)
    past = [
        entry(1 + at // 2, "completed", name, members, ago=90.0 - at, backend="gloo")
        for at, (name, members) in enumerate([pair, world] * 4)
    ]
    last = [entry(5, "scheduled", *group, ago=80.0, backend="gloo") for group in (world, pair, world, world)]
    entries = [(*past, each) for each in last]
    ranks = [rank(at, ALL_REDUCE, LINE, process=FUTEX, collectives=entries[at]) for at in FOUR]
    return case(ranks, passed=2)


def holds_a_lock() -> E.Case:
    """Rank 0 downloads under a lock; the others wait for the lock, and no rank waits in a collective."""
    locked = waiting("flock", target=E.Target.LOCK, path="/locks/cache", pid=7000)
    downloads = waiting("recvfrom", target=E.Target.SOCKET, path="socket:[9]", peer="10.0.0.7:80")
    waits = [gloo(number, ("load", APP, 5), process=locked) for number in (1, 2)]
    return case([gloo(0, ("load", APP, 6), process=downloads), *waits], passed=1)


def native_wait_for_no_peer() -> E.Case:
    """Both neighbours wait for rank 1 by their recorders, and its own has nothing pending."""
    one = rank(1, process=waiting("futex"), collectives=(transfer("send 1->2", 2, "completed"),))
    zero, two = (rank(each, collectives=(transfer(f"recv {each}<-1", 1),)) for each in (0, 2))
    return case([zero, one, two])


def unread(why: E.Missing) -> E.Case:
    """Four ranks spin: 0 and 1 wait for 3, whose recorder shows it, and that of 2 could not be read."""
    pending = [reached(number, 6, "scheduled") for number in (0, 1)]
    two = rank(2, no_collectives=why)
    return case([*pending, two, reached(3, 5, "completed")])


def alone_with_an_unread_recorder() -> E.Case:
    """Rank 1 computes, or it waits for its GPU as the others do: nothing shows that these wait for it."""
    zero, two = (reached(number, 6, "scheduled", members=[]) for number in (0, 2))
    return case([zero, rank(1, no_collectives=E.Missing.FAILED), two])


def late_gpu_of_two() -> E.Case:
    """Both have enqueued 6; the GPU of rank 1 has not begun it."""
    plain = {"operation": "nccl:all_reduce", "backend": ""}
    states = ("started", "scheduled")
    return case([reached(number, 6, state, changes=plain) for number, state in enumerate(states)])


def absent_from_a_barrier() -> E.Case:
    """Rank 0 reports that rank 2 was absent, which sleeps; rank 1 may wait for its GPU."""
    error = raised_as("RuntimeError", "Rank 2 failed to pass monitoredBarrier in 30000 ms", "", 0.2)
    ranks = [ended(0, 1, 0.1, raised=error), rank(1), rank(2, THROTTLE, LINE, process=SLEEP)]
    return case(ranks, E.CRASH)


def all_step_on(trigger: E.TriggerKind) -> E.Case:
    """Each waits for the collective that the others come to next."""
    board = E.BoardFacts(
        connected=True, heartbeats=50, step=50, silent=0.2, age=300.0, moved=True, rhythm=0.8
    )
    ranks = [reached(number, 6, "started", board=board, changes={"ago": 0.05}) for number in FOUR]
    return case(ranks, trigger, None)


def silent_from_the_start() -> E.Case:
    """Imports and the first step may take minutes."""
    quiet = E.BoardFacts(connected=True, silent=60.0, age=60.0)
    zero = gloo(0, ALL_REDUCE, LINE, process=FUTEX, board=quiet)
    return case([zero, gloo(1, *LOADS, process=POLL, board=quiet)], E.DIAGNOSE, None)


JOBS: dict[str, tuple[E.Case, tuple[Any, ...]]] = {
    "a receive is posted": (posted_receive(), (0, "data_loading")),
    "polls for its GPU": (polls_for_its_gpu(), (1, "user_code")),
    "a posted collective is innocent": (posted_collective_is_innocent(), (3, "user_code")),
    "a send is left out": (send_left_out(), (0, "mismatched_collective")),

    "a hook on autograd's thread": (hook_on_autograd(), (3, "network")),
    "a thread writes the checkpoint": (checkpoint_thread(), (1, "checkpoint_io")),
    "a thread that writes is innocent": (checkpoint_thread_is_innocent(), (2, "user_code")),
    "NCCL's watchdog aborts": (watchdog_aborts(), (2, "user_code")),

    "an event loop loads": (event_loop_loads(), (1, "data_loading")),
    "misleading names": (misleading_names(), (1, "user_code")),

    "a rank of no group sleeps": (
        of_no_group(rank(3, THROTTLE, LINE, process=SLEEP)), (1, "mismatched_collective", MEDIUM),
    ),

    "a rank of no group has ended": (
        of_no_group(rank(3, exit=E.Exit(0, ago=3000.0))), (1, "mismatched_collective", MEDIUM),
    ),
    "a rank of no group has the lock for which one waits": (
        case([
            reached(0, 7, "started", members=[0, 1]),
            reached(1, 6, "completed", LINE, members=[0, 1], process=waiting("flock", target=E.Target.LOCK, pid=7003)),
            rank(3, THROTTLE, LINE, process=SLEEP),
        ]),
        (3, "user_code", MEDIUM),
    ),
    "a future of a thread": (future_of_a_thread(), (1, "user_code")),
    "the thread that fills its queue reads a socket": (
        waits_for(("recv_into", f"{PYTHON}/ssl.py", 1314), SAME_MODULE), (1, "network", MEDIUM),
    ),
    "of the thread that fills its queue only the place is known": (
        waits_for(SAME_MODULE, state="S", channel=""), (1, "lock", MEDIUM),
    ),
    "the thread that fills its queue is blocked": (
        waits_for(SAME_MODULE, state="D", channel="folio_wait_bit_common"), (1, "uninterruptible", MEDIUM),
    ),
    "a thread that serves others fills no queue": (
        waits_for(("readinto", f"{PYTHON}/socket.py", 706), SAME_MODULE, ("handle", f"{PYTHON}/socketserver.py", 700)),
        (1, "lock", MEDIUM),
    ),
    "two threads may fill its queue": (
        waits_for(("recv_into", f"{PYTHON}/ssl.py", 1314), SAME_MODULE, more=(thread(SAME_MODULE, name="other"),)),
        (1, "lock", MEDIUM),
    ),
    "a pool of processes": (pool_of_processes(), (1, "child")),
    "signs of life of a thread, in a long wait": (beats_of_a_thread(600.0), (1, "child")),
    "signs of life, in a short wait": (beats_of_a_thread(3.0), (None, "slow")),
    "a chain of connections": (
        case([*(rank(n, process=asks(of)) for n, of in ((0, 3), (1, 0), (3, 2))), rank(2, process=SLEEP)], passed=1),
        (2, "user_code"),
    ),
    "a manager on another machine": (
        case([
            reached(0, 7, "started"),
            reached(1, 6, "completed", ("_recv", f"{PYTHON}/multiprocessing/connection.py", 395), LINE, process=AWAY),
        ], passed=1),
        (1, "network"),
    ),
    "the far end is a thread of a rank": (
        case([*(reached(n, 7, "started") for n in (0, 2, 3)), reached(1, 6, "completed", process=asks(0))], passed=1),
        (0, "network"),
    ),
    "the far end waits for another": (
        case([
            *(reached(0, 7, "started"), reached(1, 6, "completed", process=asks(0)), reached(2, 7, "started")),
            reached(3, 6, "completed", ("solve", APP, 9)),
        ], passed=3),
        (3, "user_code"),
    ),

    "absent from torch's barrier": (absent_from_a_barrier(), (2, "user_code")),

    "two native waits": (two_native_waits(), (None, "unknown", LOW, "rank 1 ")),
    "retries in stderr, then a crash": (
        crashed("wandb: retrying: HTTPSConnectionPool: Connection refused"), (2, "signal", HIGH),
    ),
    "a timeout in stderr, then a crash": (crashed("socket timeout"), (2, "signal", HIGH)),

    "a rank that has finished": (has_finished(), (1, "user_code")),
    **{
        f"{call} {path}": (written(call, path), (0, "user_code", MEDIUM, f"{call} {path}"))
        for call, path in (("write", "/mnt/run.wandb"), ("fsync", "/mnt/model.ckpt"), ("read", "/mnt/cfg.yaml"))
    },
    "a file below a save": (
        written("write", "/mnt/a.log", ("_save", f"{PACKAGES}/torch/serialization.py", 900)), (0, "checkpoint_io"),
    ),
    "a file below a loader": (written("read", "/mnt/a.log", ("_next_data", LOADER, 7)), (0, "data_loading")),
    "a FIFO of the program's own": (
        stuck(("wait_for_go", APP, 30), process=waiting("openat", "wait_for_partner")), (0, "user_code"),
    ),
    "a function that is called resume": (written("read", "/home/u/table.bin", ("resume", APP, 30)), (0, "user_code")),
    "the first collective of all": (first_collective_of_all(), (0, "user_code")),

    "a send is left out on gloo": (waits_for_a_part("recv"), (1, "mismatched_collective", MEDIUM)),
    "a receive is left out on gloo": (waits_for_a_part("send"), (1, "mismatched_collective", MEDIUM)),
    "two ranks exchange": (exchanges(), (2, "user_code")),
    "the end of a chain waits in a collective": (end_of_a_chain(), (3, "missing_collective")),
    "one leaves the order of its groups": (leaves_the_order(), (0, "mismatched_collective", MEDIUM)),
    "one holds a file lock": (holds_a_lock(), (0, "network")),
    "a native wait for no peer": (native_wait_for_no_peer(), (1, "lock", MEDIUM)),

    **{
        f"a recorder that was not read: {why}": (unread(why), (3, "user_code"))
        for why in (E.Missing.TOO_LATE, E.Missing.NOT_RECORDED, E.Missing.FAILED)
    },
    "one of which the recorder was not read": (alone_with_an_unread_recorder(), (1, "user_code", LOW)),
    "a late GPU in a group of two": (late_gpu_of_two(), (1, "user_code")),
    **{
        f"all step on: {trigger}": (all_step_on(trigger), (None, "slow"))
        for trigger in (E.DIAGNOSE, E.EARLY)
    },
    "silent from the start": (silent_from_the_start(), (1, "data_loading", LOW)),

}  # fmt: skip


@pytest.mark.parametrize("name", JOBS)
def test_job_has_the_verdict(name: str) -> None:
    expect(*JOBS[name])


def test_edge_to_a_rank_with_an_unread_recorder_is_none() -> None:
    edges = rules.judge(unread(E.Missing.TOO_LATE)).edges

    assert [edge.awaited for edge in edges if edge.via == "recorder"] == [(3,)]
