"""Verdicts that went wrong, each from hand-made evidence: NCCL, pipelines, autograd, clocks, words in stderr."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.incidents import judge
from holdfast.incidents.verdict import MEDIUM, Verdict
from holdfast.incidents.wire import encoded, node_of, packed, unpacked

from .fragments import (
    C10D,
    IN_ALL_REDUCE,
    LIMIT,
    LOST,
    PACKAGES,
    SPINS,
    TRAIN,
    Fragment,
    board,
    collective,
    dead,
    node,
    process,
    raised,
    rank,
)

ALL = [0, 1, 2, 3]
BUSY = process(cpu=0.05)
DONE = [collective(number, ago=40.0 - number, members=ALL) for number in range(1, 6)]
PENDING = [*DONE, collective(6, "started", 30.0, members=ALL)]


def judged(*nodes: Fragment) -> Verdict:
    return judge(nodes).verdict


def nccl(number: int, *stack: tuple[str, str, int], entries: list[Any], **more: Any) -> Fragment:
    return rank(number, *(stack or SPINS), collectives=entries, **{"process": BUSY, **more})


# -- NCCL ------------------------------------------------------------------------------------------------------


def test_nccl_victims_that_spin_are_not_accused() -> None:
    asleep = nccl(2, ("augment", "/home/u/data.py", 12), entries=DONE, process=process("clock_nanosleep"))
    others = [nccl(number, entries=PENDING) for number in (0, 1, 3)]
    others[0]["passed"] = LIMIT
    verdict = judged(node([others[0], others[1], asleep, others[2]]))
    assert (verdict.rank, verdict.kind) == (2, "user_code")


def test_nccl_all_spin_the_missing_one_is_named() -> None:
    ranks = [nccl(number, entries=DONE if number == 2 else PENDING) for number in ALL]
    ranks[0]["passed"] = LIMIT
    verdict = judged(node(ranks))
    assert verdict.rank == 2 and verdict.kind in ("user_code", "missing_collective")


def test_nccl_ahead_enqueued_the_oldest_pending_counts() -> None:
    """Rank 1 never came to 6. The others have enqueued a different number of collectives behind 6."""
    ahead = {
        number: [
            *PENDING,
            *(collective(7 + each, "scheduled", 29.0, members=ALL) for each in range(number + 1)),
        ]
        for number in ALL
    }
    ranks = [nccl(number, entries=DONE if number == 1 else ahead[number]) for number in ALL]
    ranks[3]["passed"] = LIMIT
    assert judged(node(ranks)).rank == 1


def test_nccl_gpu_that_never_began_the_kernel_is_named() -> None:
    """All have enqueued 6; three GPUs are in it, the fourth is still in an earlier kernel."""
    late = [*DONE, collective(6, "scheduled", 30.0, members=ALL)]
    ranks = [nccl(number, entries=late if number == 3 else PENDING) for number in ALL]
    ranks[0]["passed"] = LIMIT
    assert judged(node(ranks)).rank == 3


# -- point to point on gloo, threads ---------------------------------------------------------------------------


def test_gloo_wait_of_a_receive_is_not_accused() -> None:
    """`work.wait()` is native: the stack ends in the program's own line, and the kernel shows a futex."""
    waits = [rank(number, ("exchange", "/home/u/pipe.py", 31), ("<module>", TRAIN, 9)) for number in (1, 2)]
    stuck = rank(
        0, ("shuffle", "/home/u/pipe.py", 70), ("<module>", TRAIN, 8), process=process("clock_nanosleep")
    )
    waits[1]["passed"] = LIMIT
    verdict = judged(node([stuck, *waits]))
    assert (verdict.rank, verdict.kind) == (0, "user_code")


def test_futex_alone_never_accuses() -> None:
    """Two ranks, each in a native wait at another line: which of them waits for the other is not known."""
    one = rank(0, ("send_forward", "/home/u/pipe.py", 31), ("<module>", TRAIN, 9), passed=LIMIT)
    other = rank(1, ("recv_backward", "/home/u/pipe.py", 55), ("<module>", TRAIN, 9))
    verdict = judged(node([one, other]))
    assert (verdict.rank, verdict.kind, verdict.confidence) == (None, "unknown", "low")
    assert "rank 0 " in verdict.sentence and "rank 1 " in verdict.sentence


# -- crashes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line", ["wandb: retrying: HTTPSConnectionPool: Connection refused", "socket timeout"]
)
def test_signal_death_is_no_follower_whatever_stderr_has(line: str) -> None:
    ranks = [
        dead(0, 1, 0.5, raised=LOST),
        dead(1, 1, 0.5, raised=LOST),
        dead(2, -11, 1.0, lines=(line, "Fatal Python error: Segmentation fault")),
    ]
    verdict = judged(node(ranks, "crash", accused=2))
    assert (verdict.rank, verdict.kind, verdict.confidence) == (2, "signal", "high")


def test_clock_that_is_behind_gives_no_wrong_culprit_for_sure() -> None:
    first = node(
        [dead(0, 1, 0.5, raised=raised("ValueError", "bad batch", 0.5))], "crash", accused=0, nodes=2
    )
    after = dead(1, 1, 0.2, node="b", raised=raised("MyError", "peer failed", 0.2))
    behind = node([after], "crash", name="b", node_rank=1, nodes=2, at=1e9 + 0.3 - 3.0)
    for each in (first, behind):
        each["node"]["world_size"] = 2
    verdict = judged(first, behind)
    assert verdict.rank == 0 or verdict.confidence != "high"


def test_timeout_of_the_programs_own_is_a_cause() -> None:
    own = raised("TimeoutError", "feature store: wait for shard 7 timed out", 1.0)
    ranks = [dead(0, 1, 0.5, raised=LOST), dead(1, 1, 1.0, raised=own)]
    verdict = judged(node(ranks, "crash", accused=0))
    assert (verdict.rank, verdict.kind) == (1, "exception")


def test_process_that_ended_after_finishing_is_not_blamed() -> None:
    """Its process is gone, and it had reported that it was finished: the other one is in its own code."""
    gone = rank(0, process=process(state="gone"), board=board(finished=True))
    stuck = rank(1, ("upload", TRAIN, 5), process=process("clock_nanosleep"), passed=LIMIT)
    assert judged(node([gone, stuck])).rank == 1


# -- what a wait is for ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        "write /mnt/nfs/logs/rank0.log",
        "write /mnt/nfs/metrics.parquet",
        "write /mnt/nfs/run/log",
        "write /mnt/nfs/run.wandb",
        "fsync /mnt/nfs/model.ckpt",
        "read /mnt/nfs/cfg.yaml",
    ],
)
def test_file_of_the_programs_own_code_is_no_checkpoint(call: str) -> None:
    """Its name says nothing; the sentence has it."""
    stuck = rank(0, ("report", TRAIN, 30), passed=LIMIT)
    stuck["process"] = process(call)
    verdict = judged(node([stuck, rank(1, *IN_ALL_REDUCE)]))
    assert (verdict.rank, verdict.kind, verdict.confidence) == (0, "user_code", "medium")
    assert call in verdict.sentence


@pytest.mark.parametrize(
    ("frame", "kind"),
    [
        (("_save", f"{PACKAGES}/torch/serialization.py", 900), "checkpoint_io"),
        (("_next_data", f"{PACKAGES}/torch/utils/data/dataloader.py", 7), "data_loading"),
    ],
)
def test_file_below_a_save_or_a_loader_is_for_that(frame: tuple[str, str, int], kind: str) -> None:
    stuck = rank(0, frame, ("report", TRAIN, 30), passed=LIMIT)
    stuck["process"] = process("read /mnt/nfs/a.log")
    verdict = judged(node([stuck, rank(1, *IN_ALL_REDUCE)]))
    assert (verdict.rank, verdict.kind) == (0, kind)


def test_fifo_of_the_program_is_no_data_loading() -> None:
    waits = rank(0, ("wait_for_go", TRAIN, 30), passed=LIMIT)
    waits["process"] = process("openat", wait_channel="wait_for_partner")
    verdict = judged(node([waits, rank(1, *IN_ALL_REDUCE)]))
    assert verdict.rank == 0 and verdict.kind not in ("data_loading", "checkpoint_io")


def test_functions_name_alone_is_no_checkpoint() -> None:
    """`resume` is a name like any other."""
    reads = rank(0, ("resume", TRAIN, 30), passed=LIMIT)
    reads["process"] = process("read /home/u/table.bin")
    assert judged(node([reads, rank(1, *IN_ALL_REDUCE)])).kind != "checkpoint_io"


# -- several nodes ---------------------------------------------------------------------------------------------


def test_compact_evidence_gives_the_same_verdict() -> None:
    """A data loader below fifteen calls of a library, on another node."""
    calls = [("recv", "/usr/lib/python3.11/socket.py", 700)]
    calls += [(f"f{number}", f"{PACKAGES}/datasets/x.py", number) for number in range(14)]
    calls += [
        ("__getitem__", "/home/u/data.py", 9),
        ("_next_data", f"{PACKAGES}/torch/utils/data/dataloader.py", 7),
    ]
    loads = rank(1, *calls, ("<module>", TRAIN, 8), node="b", process=process("recvfrom socket:[1]"))
    fragment = node([loads], "elsewhere", name="b", node_rank=1, nodes=2)
    waits = node([rank(0, *IN_ALL_REDUCE)], nodes=2)
    for each in (fragment, waits):
        each["node"]["world_size"] = 2
    small = {"schema": 2, "node": encoded(unpacked(packed(node_of(fragment))))}
    full, compact = judged(waits, fragment), judged(waits, small)
    assert (compact.rank, compact.kind) == (full.rank, full.kind) == (1, "data_loading")


def test_compact_evidence_keeps_the_group_that_waits() -> None:
    entries = [collective(9, "started", 21.0, group="dp")]
    entries += [collective(number, ago=31.0 - number, group="tp") for number in range(1, 6)]
    found = unpacked(packed(node_of(node([nccl(0, entries=entries)]))))
    assert {each.group for each in found.ranks[0].collectives} == {"dp", "tp"}


def test_compact_evidence_keeps_the_rhythm() -> None:
    """A rank whose signs of life are ten seconds apart is alive after five, on another node too."""
    events = [{"kind": "step", "ago": ago} for ago in (40.0, 30.0, 20.0, 10.0, 5.0)]
    steps = [
        rank(number, ("f", TRAIN, 1), node=name, board=board(silent=5.0, events=events))
        for number, name in enumerate("ab")
    ]
    first, second = (
        node([each], "diagnose", name=each["node"], node_rank=each["rank"], nodes=2) for each in steps
    )
    for each in (first, second):
        each["node"]["world_size"] = 2
    small = {"schema": 2, "node": encoded(unpacked(packed(node_of(second))))}
    assert (judged(first, second).kind, judged(first, small).kind) == ("slow", "slow")


@pytest.mark.parametrize(("world", "local"), [(3000, 16), (16_000, 16)])
def test_compact_evidence_of_a_large_job_is_read(world: int, local: int) -> None:
    members = list(range(world))
    entries = [collective(number, ago=1.0, members=members, group=f"g{number % 2}") for number in range(16)]
    ranks = [nccl(number, *SPINS * 10, entries=entries) for number in range(local)]
    assert len(unpacked(packed(node_of(node(ranks)))).ranks) == local


def test_receive_frames_of_torch_wait_for_a_peer() -> None:
    waits = [rank(number, ("recv", C10D, 2100), ("<module>", TRAIN, 9)) for number in (1, 2)]
    stuck = rank(0, ("embed", "/home/u/model.py", 70), process=process(cpu=0.05))
    waits[0]["passed"] = LIMIT
    assert judged(node([stuck, *waits])).rank == 0


def test_nccl_first_collective_of_all_names_the_missing_one() -> None:
    """Nothing is completed yet, and the recorder has no times: every state is `scheduled`."""
    first = [collective(1, "scheduled", 30.0, members=ALL, operation="nccl:broadcast")]
    ranks = [nccl(number, entries=first if number else []) for number in ALL]
    ranks[1]["passed"] = LIMIT
    assert judged(node(ranks)).rank == 0


def test_nccl_mismatch_in_one_of_two_groups_names_the_odd_one() -> None:
    def entries(operation: str) -> list[Fragment]:
        return [
            *DONE,
            collective(3, group="tp", members=ALL),
            collective(6, "started", members=ALL, operation=operation),
        ]

    ranks = [nccl(number, entries=entries("all_gather" if number == 2 else "all_reduce")) for number in ALL]
    ranks[0]["passed"] = LIMIT
    verdict = judged(node(ranks))
    assert (verdict.rank, verdict.kind) == (2, "mismatched_collective")


def test_pipeline_rank_that_went_ahead_is_named() -> None:
    """All but one wait in sends and receives; that one skipped its own, and waits in the barrier at the end."""
    waits = [rank(number, ("recv", C10D, 2100), ("stage", TRAIN, 9)) for number in (0, 2, 3)]
    ahead = rank(1, ("barrier", C10D, 4700), ("finish", TRAIN, 90))
    waits[0]["passed"] = LIMIT
    verdict = judged(node([*waits, ahead]))
    assert (verdict.rank, verdict.kind) == (1, "mismatched_collective")


@pytest.mark.parametrize("operation", ["recv", "send"])
def test_gloo_rank_that_left_out_its_part_is_named(operation: str) -> None:
    """gloo records no sends and receives: the peer comes from the arguments of the call on the stack."""
    ranks = [rank(number, ("all_reduce", C10D, 2800), ("step", TRAIN, 40)) for number in ALL]
    ranks[2] = rank(2, (operation, C10D, 2100), ("exchange", TRAIN, 9), peer=1)
    ranks[2]["passed"] = LIMIT
    verdict = judged(node(ranks))
    assert (verdict.rank, verdict.kind, verdict.confidence) == (1, "mismatched_collective", MEDIUM)


def test_gloo_chain_of_receives_names_its_end() -> None:
    ranks = [rank(number, ("recv", C10D, 2100), ("stage", TRAIN, 9), peer=number - 1) for number in ALL]
    ranks[0] = rank(0, ("barrier", C10D, 4700), ("finish", TRAIN, 90))
    ranks[3]["passed"] = LIMIT
    assert judged(node(ranks)).rank == 0


def test_nccl_end_of_a_chain_that_waits_in_a_collective_is_not_accused() -> None:
    """0 receives from 1, which sums with 2, which sums with 3; 3 is in a barrier of its own."""

    def pending(name: str, members: list[int], operation: str = "all_reduce") -> list[Fragment]:
        return [collective(4, "started", 30.0, group=name, members=members, operation=operation)]

    done = [collective(3, "completed", 40.0, group="last", members=[2, 3])]
    ranks = [
        nccl(0, entries=pending("pp", ALL, "recv 0<-1")),
        nccl(1, entries=pending("first", [1, 2])),
        nccl(2, entries=[*done, *pending("last", [2, 3])]),
        nccl(3, entries=[*done, *pending("own", [3], "barrier")]),
    ]
    ranks[0]["passed"] = LIMIT
    assert judged(node(ranks)).rank == 3


def test_gloo_pair_that_exchanges_is_not_accused() -> None:
    """Ranks 0 and 1 are in counterparts of one transfer, and rank 2 never came to the collective of rank 3."""
    ranks = [
        rank(0, ("send", C10D, 2000), ("stage", TRAIN, 8), peer=1),
        rank(1, ("recv", C10D, 2100), ("stage", TRAIN, 9), peer=0),
        rank(2, ("embed", "/home/u/model.py", 70), process=process(cpu=0.05)),
        rank(3, ("all_reduce", C10D, 2800), ("step", TRAIN, 40)),
    ]
    ranks[3]["passed"] = LIMIT
    assert judged(node(ranks)).rank == 2


def test_rank_that_left_the_order_of_groups_is_named() -> None:
    """Ranks 0 and 1 sum in their pair, then all ranks sum. Rank 0 leaves out its pair's sum once."""
    turns = [("pair", [0, 1]), ("default_pg", ALL)]

    def entries(*groups: tuple[str, list[int]]) -> list[Fragment]:
        line = [*turns * 4, *groups]
        seen = [sum(name == group for name, _ in line[: at + 1]) for at, (group, _) in enumerate(line)]
        return [
            collective(number, ago=90.0 - at, members=members, group=group)
            for at, ((group, members), number) in enumerate(zip(line, seen, strict=True))
        ]

    pair, world = turns
    ranks = [
        rank(number, ("all_reduce", C10D, 2800), ("step", TRAIN, 40), collectives=entries(*last))
        for number, last in enumerate([(world,), (pair,), (world,), (world,)])
    ]
    for each in ranks:
        each["collectives"][-1]["state"] = "scheduled"
    ranks[2]["passed"] = LIMIT
    verdict = judged(node(ranks))
    assert (verdict.rank, verdict.confidence) == (0, MEDIUM)


def test_holder_of_a_file_lock_is_named_before_any_collective() -> None:
    """Rank 0 downloads under a lock; the others wait for the lock, and no rank waits in a collective."""
    waits = [
        rank(number, ("load", TRAIN, 5), process=process("flock /locks/cache (held by pid 100)"))
        for number in (1, 2)
    ]
    holder = rank(0, ("load", TRAIN, 6), process=process("recvfrom socket:[9] (to 10.0.0.7:80)"))
    waits[0]["passed"] = LIMIT
    verdict = judged(node([holder, *waits]))
    assert (verdict.rank, verdict.kind) == (0, "network")


# -- jobs on NCCL with several groups or a pipeline, by hand-made fragments ------------------------------------


def _entry(operation: str, peer: int, state: str) -> dict[str, Any]:
    return {
        "sequence": 3,
        "operation": operation,
        "group": "default_pg",
        "members": [0, 1, 2],
        "state": state,
        "ago": 30.0,
        "p2p": True,
        "peer": peer,
        "backend": "nccl",
    }


def test_native_wait_with_completed_recorder_is_named_with_medium() -> None:
    """Both neighbours wait for rank 1 by their recorders, and its own has nothing pending: it waits for no peer."""
    busy = {"state": "R", "cpu": 0.05, "sampled_over": 0.05}
    stack = {
        "name": "MainThread",
        "main": True,
        "frames": [{"function": "f", "file": "/app/stage.py", "line": 4}],
    }
    ranks: list[dict[str, Any]] = [
        {"process": busy, "collectives": [_entry("recv 0<-1", 1, "started")]},
        {
            "process": {"state": "S", "system_call": {"name": "futex"}},
            "collectives": [_entry("send 1->2", 2, "completed")],
            "stacks": [stack],
            "stacks_from": "rank",
        },
        {"process": busy, "collectives": [_entry("recv 2<-1", 1, "started")]},
    ]
    named = [
        {"rank": n, "local_rank": n, "pid": 100 + n, "node": "a", **rank} for n, rank in enumerate(ranks)
    ]
    node = {"node": "a", "trigger": "hang", "world_size": 3, "ranks": named}
    verdict = judge([{"schema": 2, "node": node}]).verdict
    assert (verdict.rank, verdict.kind, verdict.confidence) == (1, "lock", "medium")


def test_sentence_has_the_sequence_of_the_culprits_group() -> None:
    """Ranks 0 and 1 wait in a group without the culprit, because rank 1 waits for it in the group of all."""

    def wait(group: str, members: list[int], sequence: int) -> dict[str, Any]:
        entry = {"sequence": sequence, "operation": "all_reduce", "group": group, "members": members}
        return {**entry, "state": "started", "ago": 30.0, "backend": "nccl"}

    spins = {"state": "R", "cpu": 0.05, "sampled_over": 0.05}
    frame = {"function": "f", "file": "/app/train.py", "line": 4}
    stacks = [{"name": "MainThread", "main": True, "frames": [frame]}]
    done = {**wait("all", [0, 1, 2], 40), "state": "completed"}
    ranks: list[dict[str, Any]] = [
        {"process": spins, "collectives": [wait("pair", [0, 1], 7)]},
        {"process": spins, "collectives": [wait("all", [0, 1, 2], 41)]},
        {"process": {**spins, "state": "S"}, "collectives": [done], "stacks": stacks, "stacks_from": "rank"},
    ]
    named = [
        {"rank": n, "local_rank": n, "pid": 100 + n, "node": "a", **rank} for n, rank in enumerate(ranks)
    ]
    node = {"node": "a", "trigger": "hang", "world_size": 3, "ranks": named}
    verdict = judge([{"schema": 2, "node": node}]).verdict
    assert verdict.rank == 2
    assert "(sequence 41)" in verdict.sentence
