"""Twenty minutes of healthy training with everything that looks like a hang for a while: no verdict, no restart.

Validation, checkpoints of one rank for which the others wait, pauses of the garbage collector, a slow disk (a pipe that
gives its bytes one by one), and every few seconds one rank is stopped for a second. Early detection is on.
Does not cover: a job whose limits are shorter than what it does.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable

import pytest

from tests.launcher.conftest import Jobs
from tests.monitor.job import ranks

from .conftest import promised

SECONDS = promised(1200)
PAUSE = 1.0  # seconds for which a rank is stopped
BETWEEN = 15.0  # seconds from one such pause to the next

TRAINS = """
import gc, threading
import torch, torch.distributed as dist
from holdfast.fault_tolerance import RankMonitorClient

client = RankMonitorClient()
client.init_workload_monitoring()
dist.init_process_group("gloo")
notes = os.environ["NOTES"]

def slow_disk():
    \"\"\"Ten bytes that take a second: the rank sits in read().\"\"\"
    reader, writer = os.pipe()
    def feed():
        for _ in range(10):
            time.sleep(0.1)
            os.write(writer, b".")
    thread = threading.Thread(target=feed)
    thread.start()
    for _ in range(10):
        os.read(reader, 1)
    thread.join()
    os.close(reader); os.close(writer)

def collected():
    garbage = [[number] for number in range(300_000)]
    for one in garbage:
        one.append(one)
    del garbage, one
    gc.collect()

step, end = 0, time.monotonic() + SECONDS
while True:
    step += 1
    client.heartbeat(step)
    with client.section("data_loading"):
        if step % 150 == RANK:
            slow_disk()
    with client.section("step"):
        if step % 200 == 50 + RANK:
            collected()
        more = torch.tensor([float(time.monotonic() < end)])
        dist.all_reduce(more)
        time.sleep(0.02)
    if step % 100 == 0:
        with client.section("validation"):
            for _ in range(20):
                dist.all_reduce(torch.ones(64))
                time.sleep(0.03)
    if step % 120 == 0:
        with client.section("checkpointing"):
            if RANK == 0:
                torch.save({"step": step, "weights": torch.ones(200_000)}, f"{notes}/checkpoint")
                time.sleep(1.0)
            dist.barrier()
    if more.item() == 0:
        break
say("healthy after", step)
client.shutdown_workload_monitoring()
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 300)
def test_healthy_training_is_never_accused(jobs: Jobs, row: Callable[[str, str, str], None]) -> None:
    limits = ["--ft-rank-heartbeat-timeout", "20", "--ft-early-detection", "--max-restarts", "0"]
    job = jobs(TRAINS.replace("SECONDS", str(SECONDS)), *limits, nproc=4)
    job.wait_for("journal in")
    dice = random.Random(8)
    stopped, until = 0, time.monotonic() + SECONDS
    pids: list[int] = []
    while True:
        time.sleep(BETWEEN)  # the pauses are what is tested
        if time.monotonic() > until or job.spawned.returncode is not None:
            break
        pids = pids or ranks(job)
        pid = dice.choice(pids)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(PAUSE)
        os.kill(pid, signal.SIGCONT)
        stopped += 1
    job.end(0)
    assert job.journal("verdict", "incident", "restart", "recovered") == []
    steps = {int(line.rsplit(" ", 1)[1]) for line in job.lines("healthy after")}
    (count,) = steps
    row(
        "healthy training",
        "no verdict",
        f"{SECONDS} s, {count} steps on 4 ranks, {stopped} pauses of {PAUSE:g} s",
    )
