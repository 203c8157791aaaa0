"""Two hundred lost monitors; fifty hangs of every kind, each found; twenty minutes of healthy training, none accused.

That has validation, checkpoints of one rank for which the others wait, pauses of the garbage collector, a slow disk (a
pipe that gives its bytes one by one), and every few seconds one rank is stopped for a second. Early detection is on.
Does not cover: a job whose limits are shorter than what it does.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import time

import pytest

from holdfast.fault_tolerance.monitor.control import ControlPage
from tests.jobs import Job, Jobs
from tests.monitor.job import STEPS, WAYS_TO_HANG, board_directory, monitor, ranks, wait_gone
from tests.processes import wait_until

from .conftest import Row, held, promised

STOPPED_ONE_IN = 20  # the others are killed; a stopped one is replaced only after seconds without progress

TRAIN = (
    STEPS
    + """
client.init_workload_monitoring()
say("trains")
worst = 0.0
while not os.path.exists(os.environ["NOTES"] + "/hang"):
    worst = max(worst, train(0.5)[0])
say(f"longest call {worst * 1000:.3f}")
if CYCLE == 0:
    wait() if RANK == 1 else train(999)
client.shutdown_workload_monitoring()
"""
)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_lost_monitors(jobs: Jobs, row: Row) -> None:
    losses = promised(200)
    # Cold: the process that warm starts come from would be added to what the launcher holds.
    job = jobs(TRAIN, "--max-restarts", "1", "--ft-rank-heartbeat-timeout", "5", "--ft-warm-start", "off")
    job.hear("trains", ranks=[0, 1])
    page = ControlPage(str(board_directory(job)))
    wait_until(lambda: page.tick, what="the monitor looks")
    before = held(job.pid)
    blind = [_lose(job, page, stopped=number % STOPPED_ONE_IN == 0) for number in range(losses)]
    after = held(job.pid)
    page.close()
    (job.notes / "hang").touch()
    job.wait_for("HANG: rank 1 ")
    calls = [float(call) for call in job.hear(r"longest call (\S+)", ranks=[0, 1]).values()]
    job.end(0)
    assert len(job.journal("monitor_replaced")) == losses
    assert max(calls) < 1000, "a client that waited for a stopped monitor would have waited for three seconds"
    assert after.descriptors <= before.descriptors
    assert after.memory - before.memory < 2
    killed = [seconds for number, seconds in enumerate(blind) if number % STOPPED_ONE_IN]
    row(
        "monitor killed or stopped during a run, then a hang",
        f"{losses} of {losses} replaced, the hang found",
        f"killed to its successor's first look: median {statistics.median(killed) * 1000:.0f} ms; longest call of a "
        f"rank's client {max(calls):.1f} ms",
    )


def _lose(job: Job, page: ControlPage, *, stopped: bool) -> float:
    """Kill or stop the monitor, which has looked at least once; returns the seconds until its successor looks."""
    pid, epoch, lost = monitor(job), page.epoch, time.monotonic()
    os.kill(pid, signal.SIGSTOP if stopped else signal.SIGKILL)
    wait_until(lambda: page.epoch > epoch, what="another monitor is put in charge")
    looks = page.tick
    wait_until(lambda: page.tick > looks, what="it looks")
    seconds = time.monotonic() - lost
    wait_gone([pid], 60, f"monitor {pid} ended")
    return seconds


KINDS = ["heartbeat", "section", "outer", "out_of_section", "stopped"]
# The rank that hangs and the way in which it does are given for each cycle, as RANK:KIND.
HANGS = (
    WAYS_TO_HANG
    + """
plan = sys.argv[1:]
if CYCLE == len(plan):
    sys.exit()
culprit, _, kind = plan[CYCLE].partition(":")
client.init_workload_monitoring()
meet()
if RANK == int(culprit):
    globals()[kind]()
while True:
    client.send_heartbeat()
    time.sleep(0.02)
"""
)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_hangs(jobs: Jobs, row: Row) -> None:
    hangs, limit = promised(50), 1.0
    chance = random.Random(os.environ.get("HOLDFAST_TEST_SEED", "hangs"))
    plan = [f"{chance.randrange(4)}:{KINDS[number % len(KINDS)]}" for number in range(hangs)]
    job = jobs.command(
        *("--nproc-per-node", "4", "--max-restarts", str(hangs), "--ft-rank-heartbeat-timeout", str(limit)),
        *("--ft-rank-section-timeouts", f"step:{limit},epoch:{limit}"),
        *("--ft-rank-out-of-section-timeout", str(limit), jobs.script(HANGS), *plan),
    )
    job.spawned.wait(1500)
    job.end(0)
    found = job.journal("verdict")
    assert [f"{verdict['rank']}" for verdict in found] == [each.partition(":")[0] for each in plan]
    assert [verdict["cycle"] for verdict in found] == list(range(hangs))
    late = sorted(verdict["waited"] - limit for verdict in found)
    row(
        f"hangs ({', '.join(KINDS)}) of a random one of 4 ranks",
        f"{len(found)} of {hangs} found, no other rank accused",
        f"beyond the limit: median {statistics.median(late) * 1000:.1f} ms, longest {late[-1] * 1000:.0f} ms",
    )


# -- healthy training with everything that looks like a hang for a while -------------------------------------


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
def test_healthy_training_is_never_accused(jobs: Jobs, row: Row) -> None:
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
