"""Incidents for the tests of reports, made up: each with the verdict that it should have."""

from __future__ import annotations

from dataclasses import replace

from holdfast.incidents.evidence import (
    CRASH,
    HANG,
    BoardFacts,
    Case,
    Child,
    Collective,
    Exit,
    Frame,
    NodeEvidence,
    OpenSection,
    PassedLimit,
    Process,
    Raised,
    RankEvidence,
    RingEvent,
    Thread,
)
from holdfast.incidents.verdict import HIGH, MEDIUM, Verdict

SITE = "/opt/venv/lib/python3.11/site-packages"
AT = 1_800_000_000.0

READING = (
    Frame("read", "/home/ada/train/dataset.py", 88),
    Frame("__getitem__", "/home/ada/train/dataset.py", 61),
    Frame("<listcomp>", f"{SITE}/torch/utils/data/_utils/fetch.py", 52),
    Frame("fetch", f"{SITE}/torch/utils/data/_utils/fetch.py", 52),
    Frame("_next_data", f"{SITE}/torch/utils/data/dataloader.py", 788),
    Frame("__next__", f"{SITE}/torch/utils/data/dataloader.py", 732),
    Frame("train", "/home/ada/train/train.py", 140),
    Frame("main", "/home/ada/train/train.py", 201),
    Frame("<module>", "/home/ada/train/train.py", 220),
)
REDUCING = (
    Frame("all_reduce", f"{SITE}/torch/distributed/distributed_c10d.py", 2938),
    Frame("wrapper", f"{SITE}/torch/distributed/c10d_logger.py", 81),
    Frame("backward", "/home/ada/train/train.py", 152),
    Frame("train", "/home/ada/train/train.py", 144),
    Frame("main", "/home/ada/train/train.py", 201),
    Frame("<module>", "/home/ada/train/train.py", 220),
)


def ring(silent: float, section: str, step: int) -> tuple[RingEvent, ...]:
    """Steps of 1.5 s until `silent` seconds ago, when `section` began."""
    found: list[RingEvent] = []
    ago = 59.5
    number = step - int((ago - silent) / 1.5)
    while ago > silent + 1.5:
        found += [
            RingEvent("start", ago, "data_loading"),
            RingEvent("end", ago - 0.3, "data_loading"),
            RingEvent("start", ago - 0.3, "forward"),
            RingEvent("end", ago - 0.7, "forward"),
            RingEvent("start", ago - 0.7, "backward"),
            RingEvent("end", ago - 1.4, "backward"),
            RingEvent("step", ago - 1.45, value=number),
            RingEvent("heartbeat", ago - 1.46),
        ]
        if number % 10 == 0:
            found.append(RingEvent("checkpoint", ago - 1.47, value=number))
        ago -= 1.5
        number += 1
    return (*found, RingEvent("start", silent, section))


def board(section: str, silent: float, step: int) -> BoardFacts:
    return BoardFacts(
        connected=True,
        heartbeats=step,
        step=step,
        checkpoints=41,
        sections=(OpenSection(section, silent),),
        silent=silent,
        age=4000.0,
        events=ring(silent, section, step),
    )


def waiting(rank: int, node: str = "gpu-12", local: int | None = None) -> RankEvidence:
    """A rank that waits for the others in its gradient's all_reduce."""
    return RankEvidence(
        rank=rank,
        local_rank=rank if local is None else local,
        pid=4177 + rank,
        node=node,
        board=board("backward", 29.4, 4182),
        process=Process("S", "futex_wait_queue", system_call="futex", sampled_over=0.05, memory=3 << 30),
        stacks=(Thread("MainThread", REDUCING, main=True, holds_gil=False),),
        stacks_from="the rank itself",
        collectives=(
            Collective(8361, "all_reduce", "default", "[[1024, 8]]", "float32", "completed", 31.0),
            Collective(8362, "all_reduce", "default", "[[1024, 8]]", "float32", "started", 29.4),
        ),
    )


def reading(rank: int = 5, node: str = "gpu-12") -> RankEvidence:
    """A rank that reads a file from a hung disk."""
    return RankEvidence(
        rank=rank,
        local_rank=rank % 8,
        pid=4177 + rank,
        node=node,
        board=board("data_loading", 31.2, 4181),
        process=Process(
            "D",
            "folio_wait_bit_common",
            ("folio_wait_bit_common", "filemap_read", "nfs_file_read", "vfs_read"),
            "read /mnt/data/shard-0017.tar",
            sampled_over=0.05,
            children=(
                Child(5001, "pt_data_worker", "D", "folio_wait_bit_common"),
                Child(5002, "pt_data_worker", "S"),
            ),
            network_files=("/mnt/data/shard-0017.tar (nfs4)",),
        ),
        stacks=(
            Thread("MainThread", READING, main=True, holds_gil=False),
            Thread("pin_memory", REDUCING[:1]),
        ),
        stacks_from="faulthandler",
        collectives=(Collective(8361, "all_reduce", "default", "[[1024, 8]]", "float32", "completed", 31.4),),
        passed=PassedLimit(
            "heartbeat", 31.2, 30.0, text="Did not get subsequent heartbeat. Waited 31.20 seconds."
        ),
        last_lines=(
            "step 4181 loss 2.31",
            "UserWarning: <script>alert('x')</script> \x1b[31mred\x1b[0m is slow",
        ),
    )


def hang(ranks: int = 8, culprit: int = 5) -> tuple[Case, Verdict]:
    """One rank hangs in its data loader, all others wait for it."""
    told = tuple(reading(rank) if rank == culprit else waiting(rank) for rank in range(ranks))
    node = NodeEvidence(
        "gpu-12",
        HANG,
        2,
        "run-1",
        world_size=ranks,
        at=AT,
        mono=9000.0,
        took=0.084,
        accused=culprit,
        ranks=told,
    )
    sentence = (
        f"rank {culprit} never reached all_reduce number 8362, in which {ranks - 1} ranks wait: it has been reading "
        "/mnt/data/shard-0017.tar (nfs4) in its data loader for 31 s"
    )
    followers = tuple(rank for rank in range(ranks) if rank != culprit)
    return Case((node,)), Verdict("data_loading", sentence, HIGH, culprit, "gpu-12", followers)


def crash() -> tuple[Case, Verdict]:
    """One rank raises, another one loses its connection."""
    traceback = (
        "Traceback (most recent call last):\n"
        '  File "/home/ada/train/train.py", line 140, in train\n    loss = step(batch)\n'
        '  File "/home/ada/train/train.py", line 99, in step\n    raise ValueError("bad batch 17")\n'
        "ValueError: bad batch 17\n"
    )
    first = replace(
        waiting(1),
        process=None,
        stacks=(),
        no_stacks="its process has ended",
        exit=Exit(1, "exit code 1", 0.01),
        raised=Raised("ValueError", "bad batch 17", traceback, 0.15),
        last_lines=tuple(traceback.splitlines()),
    )
    lost = Raised(
        "RuntimeError", "[gloo] Connection closed by peer [10.0.0.1]:4711", "", 0.05, lost_connection=True
    )
    second = replace(first, rank=0, local_rank=0, pid=4177, raised=lost, last_lines=())
    ranks = (second, first, waiting(2), waiting(3))
    node = NodeEvidence(
        "gpu-12",
        CRASH,
        0,
        "run-1",
        world_size=4,
        at=AT,
        took=0.011,
        accused=1,
        ranks=ranks,
        reason="rank 1 failed",
    )
    sentence = (
        "rank 1 raised ValueError: bad batch 17 first; rank 0 only lost its connection to it 0.10 s later"
    )
    return Case((node,)), Verdict("exception", sentence, HIGH, 1, "gpu-12", (0, 2, 3))


def out_of_memory() -> tuple[Case, Verdict]:
    """The kernel ends a rank for want of memory."""
    why = "the kernel log says: Out of memory: Killed process 4178 (python)"
    first = replace(
        waiting(1),
        process=None,
        stacks=(),
        no_stacks="its process has ended",
        exit=Exit(-9, "killed by SIGKILL", 0.004, out_of_memory=why),
        last_lines=("step 4181 loss 2.31",),
    )
    node = NodeEvidence(
        "gpu-12",
        CRASH,
        run_id="run-1",
        world_size=2,
        at=AT,
        took=0.01,
        accused=1,
        ranks=(waiting(0), first),
        notes=("memory.events of its cgroup: oom_kill rose by 1",),
    )
    sentence = f"rank 1 was killed for want of memory ({why})"
    return Case((node,)), Verdict("out_of_memory", sentence, HIGH, 1, "gpu-12", (0,))


def mismatch() -> tuple[Case, Verdict]:
    """One rank is in another collective operation than the others."""
    other = Collective(8362, "broadcast", "default", "[[7]]", "int64", "started", 30.0)
    odd = replace(waiting(3), collectives=(other,))
    ranks = (waiting(0), waiting(1), waiting(2), odd)
    node = NodeEvidence("gpu-12", HANG, run_id="run-1", world_size=4, at=AT, took=0.1, accused=0, ranks=ranks)
    sentence = "rank 3 is in broadcast number 8362, and ranks 0-2 in all_reduce number 8362"
    return Case((node,)), Verdict("mismatched_collective", sentence, HIGH, 3, "gpu-12", (0, 1, 2))


def two_nodes() -> tuple[Case, Verdict]:
    """The culprit is on the second of three nodes; of the third nothing is told."""
    first = tuple(waiting(rank, "gpu-11", rank) for rank in range(4))
    second = tuple(
        reading(5, "gpu-12") if rank == 5 else waiting(rank, "gpu-12", rank - 4) for rank in range(4, 8)
    )
    case = Case(
        (
            NodeEvidence("gpu-11", "elsewhere", 1, "run-1", 0, 3, 12, AT, 1.0, 0.05, ranks=first),
            NodeEvidence("gpu-12", HANG, 1, "run-1", 1, 3, 12, AT, 7.0, 0.09, accused=5, ranks=second),
        )
    )
    sentence = "rank 5 never reached all_reduce number 8362, in which 7 ranks of 2 nodes wait"
    return case, Verdict("data_loading", sentence, MEDIUM, 5, "gpu-12", (0, 1, 2, 3, 4, 6, 7))


def large(ranks: int = 16_384, culprit: int = 9001) -> tuple[Case, Verdict]:
    """A large job of nodes with 8 ranks each."""
    one = waiting(0)
    nodes = []
    for number in range(0, ranks, 8):
        name = f"gpu-{number // 8:04d}"
        told = tuple(
            reading(rank, name)
            if rank == culprit
            else replace(one, rank=rank, local_rank=rank % 8, pid=4000 + rank % 8, node=name)
            for rank in range(number, min(number + 8, ranks))
        )
        trigger = HANG if number <= culprit < number + 8 else "elsewhere"
        nodes.append(
            NodeEvidence(
                name,
                trigger,
                0,
                "run-1",
                number // 8,
                ranks // 8,
                ranks,
                AT,
                took=0.3,
                accused=culprit,
                ranks=told,
            )
        )
    sentence = f"rank {culprit} never reached all_reduce number 8362, in which {ranks - 1} ranks wait"
    return Case(tuple(nodes)), Verdict("data_loading", sentence, HIGH, culprit, f"gpu-{culprit // 8:04d}")


ALL = {"hang": hang, "crash": crash, "oom": out_of_memory, "mismatch": mismatch, "two nodes": two_nodes}
