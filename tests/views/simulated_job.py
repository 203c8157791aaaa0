"""Journals of a simulated job of any size, for the pictures of the documentation and the tests of the goodput page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from holdfast.journal.event import encode
from holdfast.straggler.record import KIND, Column, summary

START = 1.8e9
INTERVAL = 300.0
"""Seconds between two `progress` events of a node, as a launcher has them."""
DAY = 86400.0


def write_journals(
    folder: Path, nodes: int, seconds: float, failures: int, *, ranks: int = 8, reports: int = 48, name: str = "gpu-"
) -> None:  # fmt: skip
    """The run directory of a job whose cycles all end with a crash but for the last, after a checkpoint each hour.

    Args:
        folder: Where; it is made.
        nodes: How many.
        seconds: From the start to the end.
        failures: Crashes, in equal distances, on one node after the other.
        ranks: Of each node.
        reports: Straggler reports of rank 0.
        name: What names of nodes begin with.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for node in range(nodes):
        told = _journal(node, nodes, seconds, failures, ranks, f"{name}{node}")
        (folder / f"journal-node{node}.jsonl").write_bytes(b"".join(told))
    told = _reports(nodes * ranks, ranks, seconds, reports, name)
    (folder / "journal-node0.rank-0.jsonl").write_bytes(b"".join(told))


def _journal(node: int, nodes: int, seconds: float, failures: int, ranks: int, name: str) -> Iterator[bytes]:
    def line(kind: str, at: float, /, **fields: object) -> bytes:
        return encode(kind, fields, t=START + at, mono=1000 + at, node=name)

    yield line("run_start", 0, run_id="a", argv=["train.py"], nodes=[nodes, nodes], nproc=ranks)
    length = seconds / (failures + 1)
    for cycle in range(failures + 1):
        begun, ended = cycle * length + 5, (cycle + 1) * length
        pid, first_rank = 1000 * (cycle + 1), node * ranks
        local = [{"cycle": cycle, "rank": first_rank + each, "pid": pid + each} for each in range(ranks)]
        yield line("cycle_start", begun, cycle=cycle, world_size=nodes * ranks, node_rank=node)
        for kind, late in (("rank_start", 1.0), ("first_heartbeat", 30.0), ("first_step", 31.0)):
            step = {"step": int(cycle * (length - 1800)) + 1} if kind == "first_step" else {}
            for rank in local:
                yield line(kind, begun + late, **rank, **step)
        first = int(cycle * (length - 1800)) + 1
        at = begun + INTERVAL
        while at < ended:
            yield line("progress", at, cycle=cycle, **_progress(at, at - begun, first, ranks, "interval"))
            at += INTERVAL
        if cycle == failures:
            last = _progress(ended, ended - begun, first, ranks, "cycle_end")
            yield line("progress", ended, cycle=cycle, **last)
            yield line("run_end", ended, exit_code=0, reason="done")
            return
        if node == cycle % nodes:
            failed = {"exitcode": None, "signal": "SIGSEGV", "meaning": "killed by SIGSEGV"}
            yield line("rank_exit", ended, **local[0], **failed)
        yield line("stop", ended + 0.5, cycle=cycle, reason="a rank failed")
        yield line("restart", ended + 1, cycle=cycle + 1, restarts_used=cycle + 1, max_restarts=failures)


def _progress(at: float, lasted: float, first: int, ranks: int, reason: str) -> dict[str, object]:
    saves = int(lasted // 3600)
    step = first + int(lasted)
    rate = 1.0 + 0.2 * (int(at // 3600) % 7 == 3)
    return {
        "reason": reason,
        "seconds": INTERVAL,
        "ranks": ranks,
        "steps_least": step - 1,
        "steps_most": step,
        "step_rate": rate,
        "sections": {
            "checkpointing": {"seconds": 40.0 * ranks * saves, "count": ranks * saves},
            "data_loading": {"seconds": 0.03 * ranks * lasted, "count": ranks * step},
            "step": {"seconds": 0.9 * ranks * lasted, "count": ranks * step},
        },
        "checkpoints": saves,
        "checkpoint_step": first + 3600 * saves if saves else None,
        "inactive": 0.2,
    }


def _reports(world: int, ranks: int, seconds: float, reports: int, name: str) -> Iterator[bytes]:
    """Rank 5 is slow in the second half, and the ranks of the last node a little in all."""
    for number in range(1, reports + 1):
        at = seconds * number / (reports + 1)
        slow, is_slow = min(5, world - 1), at > seconds / 2
        scores = {rank: (1.0 if rank < world - ranks else 0.93) - rank * 7 % 5 / 100 for rank in range(world)}
        scores |= {slow: 0.6} if is_slow else {}
        nodes = {rank: f"{name}{rank // ranks}" for rank in range(world)}
        made = summary([Column("gpu", "relative", scores)], nodes, [slow] if is_slow else [])
        verdict = {"rank": slow, "node": nodes[slow], "ranks": [slow], "kind": "GPU", "slowdown": 1.6}
        made |= {"verdicts": [verdict] if is_slow else []}
        fields = {"cycle": 0, "report": number, "rank": 0, "step": number, **made}
        yield encode(KIND, fields, t=START + at, mono=1000 + at, node=f"{name}0")
