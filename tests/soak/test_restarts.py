"""A hundred times kill -9 of a random rank, under one launcher: the job trains again each time, and nothing is left."""

from __future__ import annotations

import os
import random
import signal
import statistics
import tempfile
import time
from collections.abc import Callable

import pytest

from tests.launcher.conftest import Job, Jobs
from tests.monitor.job import board_directory, monitor, ranks, tree, wait_gone

from .conftest import promised
from .growth import does_not_grow, grown, held

RANKS = 4
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
SETTLED = 5  # cycles after which a launcher has all that it needs
ALLOWED = 6.0  # MB that the launcher may hold more after a hundred restarts

ALL_REDUCE = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
number = torch.ones(1024)
dist.all_reduce(number)
assert number[0] == int(os.environ["WORLD_SIZE"])
say("trains", time.monotonic())
enough = torch.zeros(1024)
while not enough.any():  # all ranks leave in the same step
    time.sleep(0.005)
    enough += os.path.exists(os.environ["NOTES"] + "/enough")
    dist.all_reduce(enough)
dist.barrier()
os._exit(0)
"""


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_kill_of_a_random_rank(jobs: Jobs, row: Callable[[str, str, str], None]) -> None:
    kills = promised(100)
    chance = random.Random(os.environ.get("HOLDFAST_TEST_SEED", "kill -9"))
    began = time.monotonic()
    job = jobs(
        ALL_REDUCE, "--max-restarts", str(kills), "--ft-warm-start", "off", nproc=RANKS, env=ONE_THREAD
    )
    seconds, launcher, watcher, processes = [], [], [], []
    killed = None
    for cycle in range(kills + 1):
        trains = max(_trains(job, cycle))
        if killed is not None:
            seconds.append(trains - killed)
        launcher.append(held(job.pid))
        watcher.append(held(monitor(job)))
        processes.append(len(tree(job)))
        if cycle < kills:
            killed = time.monotonic()
            os.kill(ranks(job, cycle)[chance.randrange(RANKS)], signal.SIGKILL)
    _ends_and_leaves_nothing(job)
    assert [each["restarts_used"] for each in job.journal("restart")] == list(range(1, kills + 1))
    does_not_grow(launcher, SETTLED, ALLOWED)
    does_not_grow(watcher, SETTLED, 1.0)
    assert set(processes) == {1 + 1 + 1 + RANKS}, "launcher, monitor, store, ranks: in every cycle"
    row(
        f"kill -9 of a random one of {RANKS} gloo ranks, one launcher",
        f"{len(seconds)} of {kills} train again",
        f"kill to first all-reduce on all ranks: median {statistics.median(seconds):.2f} s, "
        f"longest {max(seconds):.2f} s; {time.monotonic() - began:.0f} s in all",
    )
    row("launcher over these restarts", *grown(launcher, SETTLED))
    row("monitor over these restarts", *grown(watcher, SETTLED))
    row("left afterwards", "nothing", "processes, descriptors, /dev/shm, $TMPDIR")


def _trains(job: Job, cycle: int) -> list[float]:
    return [float(when) for when in job.hear(r"trains (\S+)", ranks=range(RANKS), cycle=cycle).values()]


def _ends_and_leaves_nothing(job: Job) -> None:
    everybody, boards = tree(job), board_directory(job)
    assert [entry.name for entry in boards.glob("cycle-*")] == [
        f"cycle-{len(job.journal('cycle_start')) - 1}"
    ]
    (job.notes / "enough").touch()
    job.end(0)
    wait_gone(everybody, 10, "everything of the job ended")
    assert not boards.exists()
    assert os.listdir(tempfile.gettempdir()) == []
