"""Random signals at every process of a job but the launcher, and preemptions: the weights of an undisturbed run.

For three minutes ranks, the monitor, zygotes, standbys and the processes that host stores or guard the launcher get
any signal that a process can get, at any moment; one that is stopped continues after a while or never. A SIGTERM at a
rank asks the job to stop: it saves, ends with 0, and is started again.
Does not cover: signals at the launcher itself (tests/launcher), more than one node, CUDA.
"""

from __future__ import annotations

import collections
import contextlib
import os
import random
import signal
import time
from pathlib import Path

import psutil
import pytest
import torch

from tests.jobs import Job, Jobs
from tests.processes import Spawner
from tests.ptl_resiliency.test_preemption_jobs import CEILING, LAUNCHER, agreed
from tests.ptl_resiliency.test_preemption_jobs import Job as LightningJob
from tests.soak.conftest import Row, promised

SECONDS = promised(180)
STEPS = 8000  # more than a disturbed job can do in that time
BETWEEN = 2.0  # seconds from one signal to the next, on the average
RESTARTS = 1000
LAST = f"step-{STEPS:08d}.pt"
# Not DistributedDataParallel: its first step after a restart adds up in another order.
TRAINS = """
from pathlib import Path
import torch, torch.distributed as dist
import holdfast
from holdfast import checkpoints

folder, steps = Path(sys.argv[1]), int(sys.argv[2])
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
weights = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
with holdfast.Loop() as loop:
    with loop.section("setup"):
        path = loop.last_checkpoint(folder)
        start = 0
        if path is not None:
            state = torch.load(path)
            start, weights = state["step"], state["weights"]
    for step in loop(range(start + 1, steps + 1)):
        torch.nn.utils.vector_to_parameters(weights, model.parameters())
        inputs = torch.randn(32, 16, generator=torch.Generator().manual_seed(1000 * step + RANK))
        model.zero_grad()
        (model(inputs) - inputs.square().sum(1, keepdim=True)).square().mean().backward()
        gradient = torch.cat([each.grad.flatten() for each in model.parameters()])
        dist.all_reduce(gradient)
        weights = weights - 1e-4 * gradient
        time.sleep(0.01)  # stands for real work
        if loop.step(step) or step % 20 == 0 or step == steps:
            with loop.section("checkpointing"):
                if RANK == 0:
                    with checkpoints.whole_file(folder / f"step-{step:08d}.pt") as unfinished:
                        torch.save({"step": step, "weights": weights}, unfinished)
                    for old in sorted(folder.glob("step-*.pt"))[:-2]:
                        old.unlink()
dist.destroy_process_group()
"""
SIGNALS = sorted(set(signal.valid_signals()) - set(range(signal.SIGRTMIN, signal.SIGRTMAX + 1)))


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_random_signals(jobs: Jobs, row: Row) -> None:
    seed = os.environ.get("HOLDFAST_TEST_SEED", "signals")
    chance = random.Random(seed)
    undisturbed = _start(jobs, "undisturbed")
    undisturbed.spawned.wait(1200)
    undisturbed.end(0)

    job, attempts, restarts = _start(jobs, "disturbed"), 1, 0
    sent = collections.Counter[str]()
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        time.sleep(chance.expovariate(1 / BETWEEN))
        if (code := job.spawned.process.poll()) is not None:
            assert code == 0, job.spawned.output()[-4000:]
            if (jobs.folder / "disturbed" / LAST).exists():
                break
            restarts += len(job.journal("restart"))
            job, attempts = _start(jobs, "disturbed"), attempts + 1
            continue
        with contextlib.suppress(psutil.NoSuchProcess):
            sent[_send(job, chance)] += 1
    while job.spawned.wait(1200) == 0 and not (jobs.folder / "disturbed" / LAST).exists():
        restarts += len(job.journal("restart"))
        job, attempts = _start(jobs, "disturbed"), attempts + 1
    job.end(0)
    restarts += len(job.journal("restart"))
    expected, got = (torch.load(jobs.folder / name / LAST) for name in ("undisturbed", "disturbed"))
    assert torch.equal(expected["weights"], got["weights"]), f"seed {seed}"
    row(
        f"4 gloo ranks, random signals for {SECONDS} s",
        "the weights of an undisturbed run",
        f"{', '.join(f'{count} at {name}' for name, count in sent.most_common())}; {restarts} restarts, "
        f"{attempts} attempts",
    )


def _start(jobs: Jobs, name: str) -> Job:
    return jobs.command(
        *("--nproc-per-node", "4", "--max-restarts", str(RESTARTS), "--ft-rank-heartbeat-timeout", "5"),
        *("--ft-initial-rank-heartbeat-timeout", "60", "--ft-rank-section-timeouts", "setup:60"),
        *(jobs.script(TRAINS, "train.py"), jobs.folder / name, str(STEPS)),
        env={"OMP_NUM_THREADS": "1"},
    )


def _send(job: Job, chance: random.Random) -> str:
    """One signal to one process below the launcher; returns the process's kind of name."""
    below = psutil.Process(job.pid).children(recursive=True)
    if not below:
        return "none"
    victim = chance.choice(below)
    name = victim.name()
    victim.send_signal(chance.choice(SIGNALS))
    if victim.status() == psutil.STATUS_STOPPED and chance.random() < 0.5:
        time.sleep(chance.uniform(0, 2))
        victim.send_signal(signal.SIGCONT)
    return name


# -- a Lightning job of two ranks that is preempted at twenty random moments, and ends as if nothing had been

TIMES = 20
EPOCHS = 2000
"""More than are trained in all starts but the last one."""


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_twenty_random_moments(spawn: Spawner, tmp_path: Path) -> None:
    chance = random.Random(4)
    job = LightningJob(spawn, tmp_path / "job", LAUNCHER, epochs=EPOCHS)
    steps = []
    for _ in range(TIMES):
        process = job.start("--step=0.003", f"--workers={chance.choice((0, 2))}")
        process.wait_for(r"^STEP \d+", CEILING)
        time.sleep(chance.uniform(0.0, 1.5))  # the moment
        process.send_signal(signal.SIGTERM)
        assert process.wait(CEILING) == 0, process.output()[-3000:]
        before = job.step
        job.stopped(process.output())
        assert agreed(job.run_dir) == [job.step - before]
        steps.append(job.step)
    assert job.lengths(0) == job.lengths(1)
    assert steps == sorted(set(steps))
    job.epochs = reference_epochs = steps[-1] // 6 + 2
    job.completed()
    reference = LightningJob(spawn, tmp_path / "reference", LAUNCHER, epochs=reference_epochs)
    reference.completed()
    assert torch.equal(job.weights(), reference.weights())
    assert [job.trained(rank) for rank in (0, 1)] == [reference.trained(rank) for rank in (0, 1)]
