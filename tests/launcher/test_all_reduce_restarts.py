"""A restart that really restarts: ranks killed in the middle of collectives come back and meet again.

With the stock launcher and torch 2.13 they never do: restarted gloo ranks read the dead ranks' addresses in the
store that they share with them.
"""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import psutil
import pytest

from tests.launcher.conftest import Jobs

ALL_REDUCE = """
import torch, torch.distributed as dist
say("pid", os.getpid())
dist.init_process_group("gloo")
total = torch.ones(1024)
dist.all_reduce(total)
assert total[0] == int(os.environ["WORLD_SIZE"])
say("meets the others")
enough = torch.zeros(1024)
while not enough[0]:  # agreed on, so that all leave after the same collective
    enough[0] = os.path.exists(os.environ["NOTES"] + "/enough")
    dist.all_reduce(enough, dist.ReduceOp.MAX)
    time.sleep(0.005)
os._exit(0)
"""
KILLS = 5


@pytest.mark.slow
def test_kill_of_a_random_rank_five_times(jobs: Jobs) -> None:
    """The soak does it a hundred times."""
    chance = random.Random(os.environ.get("HOLDFAST_TEST_SEED", "kill -9"))
    job = jobs(ALL_REDUCE, "--max-restarts", str(KILLS), nproc=4, env={"OMP_NUM_THREADS": "1"})
    held = []
    for cycle in range(KILLS):
        pids = job.hear(r"pid (\d+)", ranks=range(4), cycle=cycle)
        job.hear("meets the others", ranks=range(4), cycle=cycle)
        held.append(psutil.Process(job.pid).num_fds())
        victim = chance.randrange(4)
        os.kill(int(pids[victim]), signal.SIGKILL)
        # Its peers' exceptions on their lost connections may be older than its death.
        job.wait_for(
            rf"FAILED: rank {victim} \(node \S+, pid {pids[victim]}, cycle {cycle}\): killed by SIGKILL"
        )
    job.hear("meets the others", ranks=range(4), cycle=KILLS)
    job.tell("enough")
    job.end(0)
    assert [each["restarts_used"] for each in job.journal("restart")] == [1, 2, 3, 4, 5]
    assert max(held[1:]) <= held[1] + 2, f"descriptors of the launcher, cycle by cycle: {held}"


STORE = """
import torch.distributed as dist
store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
say("finds", "something" if store.check(["left by the dead"]) else "nothing", os.environ["MASTER_ADDR"])
meet()
store.set("left by the dead", "an address")
if CYCLE == 0:
    kill_me(signal.SIGKILL) if RANK == 0 else wait()
until("looked")
os._exit(0)
"""


def test_a_restarted_job_does_not_share_a_store_with_the_dead_one(jobs: Jobs) -> None:
    """And its launcher, with warm start, has not imported torch for it."""
    flags = ("--nnodes=1", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0")
    job = jobs(STORE, "--max-restarts", "1", "--ft-warm-start=on", *flags)
    job.hear("finds", ranks=[0, 1], cycle=1)
    mapped = {Path(each.path).name for each in psutil.Process(job.pid).memory_maps()}
    assert any(name.startswith("libc") for name in mapped)
    assert not any("torch" in name for name in mapped)
    job.tell("looked")
    job.end(0)
    for cycle in (0, 1):
        found = job.hear(r"finds (\w+ \S+)", ranks=[0, 1], cycle=cycle)
        assert set(found.values()) == {"nothing 127.0.0.1"}, "fresh, and on loopback only"
