"""Time and memory of `holdfast incidents`: a run directory of a million events, and a folder of 1,000 runs."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.table import Row
from holdfast.journal.event import encode

CYCLES = 10_000
RANKS = 8
NODES = 2
EVENTS = 1_000_000
RUNS = 1_000


def history(node: int, cycles: int, events: int) -> Iterator[bytes]:
    """A node's journal: each cycle ends with a crash on node 0. What is missing to `events` are decisions."""

    def line(kind: str, when: float, /, **fields: object) -> bytes:
        return encode(kind, fields, t=1.8e9 + when, mono=1000 + when, node=f"gpu-{node}")

    error = {"type": "ValueError", "message": "bad batch", "traceback": "x" * 500}
    failed = {"exitcode": 1, "signal": None, "meaning": "exit code 1", "error": error}
    stopped = {"exitcode": None, "signal": "SIGTERM", "meaning": "stopped"}
    verdict = {"cause": "exception", "confidence": "high", "sentence": "Rank 0 raised ValueError: bad batch."}
    yield line("run_start", 0, run_id="a", argv=["train.py"], nodes=[2, 2], nproc=RANKS)
    for cycle in range(cycles):
        at, lines = 60.0 * cycle, []
        ranks = [
            {"cycle": cycle, "rank": node * RANKS + each, "pid": cycle * 100 + each} for each in range(RANKS)
        ]
        lines.append(line("cycle_start", at, cycle=cycle, world_size=RANKS * NODES, node_rank=node))
        for kind in ("rank_start", "rank_connect", "first_heartbeat", "first_step"):
            for rank in ranks:
                lines.append(
                    line(kind, at + 1, **rank, local_rank=rank["rank"] % RANKS, step=3, at=1001 + at)
                )
        if node == 0:
            culprit = {"cycle": cycle, "rank": 0, "culprit_node": "gpu-0", "followers": []}
            lines.append(line("rank_exit", at + 50, **ranks[0], **failed))
            lines.append(line("incident", at + 50.2, **culprit, **verdict))
        lines.append(line("stop", at + 50.1, cycle=cycle, reason="rank 0 failed"))
        for rank in ranks[node == 0 :]:
            lines.append(line("signal_sent", at + 50.1, **rank, signal="SIGTERM", by="launcher"))
            lines.append(line("rank_exit", at + 50.3, **rank, **stopped))
        restart = {"cycle": cycle + 1, "restarts_used": cycle + 1, "max_restarts": cycles}
        lines.append(line("restart", at + 50.4, **restart))
        decision = line("decision", at + 50.5, cycle=cycle, number=cycle, event="Tick()", actions="y" * 100)
        yield from lines
        yield from [decision] * (events // cycles - len(lines))


def write(run_dir: Path, cycles: int, events: int) -> int:
    """A run directory with so many events; returns the bytes of its journals."""
    run_dir.mkdir(parents=True)
    for node in range(NODES):
        with open(run_dir / f"journal-gpu-{node}.jsonl", "wb") as file:
            file.writelines(history(node, cycles, events // NODES))
    return sum(path.stat().st_size for path in run_dir.iterdir())


def once(*arguments: str) -> tuple[float, float]:
    """Seconds and MiB (resident, at most) of one call of the command."""
    words = [sys.executable, "-m", "holdfast", "incidents", *arguments]
    began = time.monotonic()
    output = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    child = os.posix_spawn(sys.executable, words, os.environ, file_actions=output)
    _, status, used = os.wait4(child, 0)
    if status:
        raise RuntimeError(
            f"holdfast incidents {' '.join(arguments)} ended with {os.waitstatus_to_exitcode(status)}"
        )
    return time.monotonic() - began, used.ru_maxrss / 1024


def incident_list(runs: int, peer: bool) -> list[Row]:
    """Medians of `runs` calls each."""
    with tempfile.TemporaryDirectory() as folder:
        large, many = Path(folder) / "large", Path(folder) / "many"
        write(large, CYCLES, EVENTS)
        for number in range(RUNS):
            write(many / f"{number:04d}", 3, 200)
        seconds, memory = zip(*(once(str(large)) for _ in range(runs)), strict=True)
        listed = [once(str(many))[0] for _ in range(runs)]
    what = f"`holdfast incidents` of a run with {EVENTS:,} events in {CYCLES:,} cycles"
    return [
        Row(what, "s", seconds, limit=10),
        Row(f"{what}, memory", "MiB", memory, limit=300),
        Row(f"`holdfast incidents` of {RUNS:,} runs with 200 events each", "s", listed, limit=2),
    ]
