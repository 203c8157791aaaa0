"""The evidence of a real job's ranks: one that answers, one whose interpreter is held, with and without a signal."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import pytest

from holdfast.fault_tolerance.board import BoardReader
from holdfast.fault_tolerance.processes import proc
from holdfast.health import programs
from holdfast.incidents.capture.capture import gather
from holdfast.incidents.capture.rank_probe import LocalRank
from holdfast.incidents.evidence import StackSource
from tests.processes import Spawned, Spawner, wait_until

TRAIN = """
import os, re, time
from holdfast.fault_tolerance import RankMonitorClient
client = RankMonitorClient()
client.init_workload_monitoring()
client.send_heartbeat()
def hold():
    re.match("(a+)+$", "a" * 60 + "b")
def fit():
    print("at", os.environ["RANK"], os.getpid(), os.environ["FT_RANK_MONITOR_IPC_SOCKET"], flush=True)
    hold() if os.environ["RANK"] == "1" else time.sleep(600)
fit()
"""


def ranks_of(job: Spawned) -> list[LocalRank]:
    told = wait_until(
        lambda: found if len(found := re.findall(r"at (\d) (\d+) (\S+)", job.output())) == 2 else None
    )
    return [
        LocalRank(
            int(rank),
            int(rank),
            int(pid),
            proc.start_time(int(pid)) or 1,
            "node-a",
            BoardReader(path),
            path.removesuffix(".board"),
        )
        for rank, pid, path in sorted(told)
    ]


@pytest.mark.slow
def test_a_hang_of_a_rank_that_holds_the_interpreter(spawn: Spawner, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    words = ["-m", "holdfast.fault_tolerance.launcher", "--nproc-per-node=2", str(script)]
    job = spawn([sys.executable, *words], cwd=tmp_path)
    ranks = ranks_of(job)
    wait_until(lambda: (found := proc.stat(ranks[1].pid)) and found.state == "R")
    began = time.monotonic()
    waits, holds = gather(ranks, began + 2, ask=True)
    assert time.monotonic() - began < 10
    assert waits.stacks_from is StackSource.RANK and waits.stacks[0].main
    assert [frame.function for frame in waits.stacks[0].frames][:2] == ["fit", "<module>"]
    assert waits.board and waits.board.connected and waits.board.heartbeats == 1 and waits.board.events
    assert holds.process and holds.process.cpu > 0 and holds.board and not holds.board.moved
    assert [frame.function for frame in holds.stacks[0].frames if frame.function != "match"][:1] == ["hold"]
    assert holds.stacks_from == (StackSource.PY_SPY if programs.find("py-spy") else StackSource.SIGNAL)
    if holds.stacks_from is StackSource.PY_SPY:
        assert holds.stacks[0].holds_gil
    for each in ranks:
        assert each.board and proc.start_time(each.pid) == each.start_time, "no rank was harmed"
        each.board.close()
    job.stop()
