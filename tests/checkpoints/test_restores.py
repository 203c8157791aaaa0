"""Jobs that die in mid-save, restore slowly or with too little memory, or resume with another number of ranks."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import sys
import threading
import time
import warnings
from collections import Counter
from pathlib import Path

import pytest
import torch

from holdfast import checkpoints
from tests import preloading
from tests.jobs import LAUNCHER, Jobs
from tests.memory_group import anonymous, set_limit
from tests.memory_group import group as group
from tests.processes import Spawned, Spawner

from .programs.resized import EPOCHS, SAMPLES, STEP_SAMPLES

pytestmark = pytest.mark.slow

ONE_THREAD = {"OMP_NUM_THREADS": "1"}
SLOWLY = """
import io, torch, torch.distributed as dist, holdfast
dist.init_process_group("gloo")
with holdfast.Loop() as loop:
    with loop.section("setup"):
        if RANK == 1:
            with open("fifo", "rb") as fifo:
                data = fifo.read()
            weights = torch.load(io.BytesIO(data))
        else:
            weights = torch.load("weights.pt")
        dist.barrier()
    loop.step(1)
    say("restored", float(weights.sum()))
dist.destroy_process_group()
"""
LIMIT = 15.0
"""Seconds: less than the slow restore takes, and enough for the one after it on a busy machine."""
BLOCK, PAUSE = 16 << 10, 0.1
"""Bytes, and the seconds until the next ones: 160 KiB/s at most."""
RATE = re.compile(r"it reads ([\d.]+) KiB/s")


def feed(fifo: Path, weights: bytes, begun: threading.Event) -> None:
    """Slowly to the first reader, until that is gone, and at once to the second."""
    try:
        with fifo.open("wb", buffering=0) as file:
            begun.set()
            for at in range(0, len(weights), BLOCK):
                file.write(weights[at : at + BLOCK])
                time.sleep(PAUSE)  # this is the slowness
    except BrokenPipeError:
        pass
    with fifo.open("wb", buffering=0) as file:
        file.write(weights)


def test_slow_restore_is_ended_at_its_limit_with_its_rate(spawn: Spawner, jobs: Jobs, tmp_path: Path) -> None:
    torch.save(torch.ones(1 << 20), tmp_path / "weights.pt")
    os.mkfifo(tmp_path / "fifo")
    weights = (tmp_path / "weights.pt").read_bytes()
    begun = threading.Event()
    feeder = threading.Thread(target=feed, args=(tmp_path / "fifo", weights, begun), daemon=True)
    feeder.start()
    limit = f"--ft-rank-section-timeouts=setup:{LIMIT}"
    job = jobs(SLOWLY, "--max-restarts=1", limit, env=ONE_THREAD)

    # A person asks what takes so long: the rank lives, and the rate is named.
    job.spawned.wait_for(begun.is_set)
    asked = spawn([sys.executable, "-m", "holdfast", "diagnose", job.run_dir])
    assert asked.wait() == 0 and RATE.search(asked.out()), asked.output()
    assert "no hang found" in asked.out() or re.search(r"^DIAGNOSIS: rank 1 ", asked.out(), re.MULTILINE)

    # Only its own limit ends it, and the report names the rate.
    job.end(0)
    (report,) = (path.read_text() for path in job.run_dir.glob("incidents/*/report.txt"))
    waited = re.search(r"section 'setup' did not end for ([\d.]+) s", report)
    assert waited and float(waited[1]) >= LIMIT, report
    assert report.startswith("HANG: rank 1 "), report
    rate = RATE.search(" ".join(report.split()))
    assert rate and 20 < float(rate[1]) < 400, report
    assert len(job.lines("restored ")) == 2, "and the next cycle trains"
    feeder.join()


# -- a restore that needs more memory than a cold start: the kernel kills the rank, and the report names that


BYTES = 384 << 20
RESTORES = """
import holdfast
if RANK == 0:  # when it restores the weights it holds them twice for a moment
    import torch
    weights = torch.ones(BYTES // 4)
with holdfast.Loop() as loop:
    with loop.section("setup"):
        if RANK == 0 and (newest := loop.last_checkpoint("saved")) is not None:
            weights.copy_(torch.load(newest)["weights"])
    for step in range(10_000):
        if loop.step(step):
            break
        if step == 0 and RANK == 0:
            os.makedirs("saved", exist_ok=True)
            torch.save({"weights": weights}, "step-1.part")
            os.rename("step-1.part", "saved/step-1.pt")
            with open("iteration", "w") as file:
                file.write("1")
        with open(f"pid-{RANK}", "w") as file:
            file.write(str(os.getpid()))
        time.sleep(0.1)
"""


def test_restore_without_memory_is_named_and_ends(jobs: Jobs, group: Path, tmp_path: Path) -> None:
    """A cold start has fitted into the limit, and rank 0 needs `BYTES` more when it restores."""
    iteration, file = tmp_path / "iteration", tmp_path / "pid-1"  # which is written anew in each step
    inside = ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]
    # Cold: a warm start's zygote shares the modules' memory, and is what the kernel kills first.
    flags = ("--max-restarts=9", "--ft-warm-start=off", f"--ft-checkpoint-iteration-file={iteration}")
    job = jobs(RESTORES.replace("BYTES", str(BYTES)), *flags, env=ONE_THREAD, under=inside)
    pid = job.spawned.wait_for(lambda: iteration.exists() and file.exists() and file.read_text(), 120)
    # With room for the modules' files: else each start waits for the disk.
    limit = anonymous(group) + BYTES * 3 // 4
    set_limit(group, limit)
    os.kill(int(str(pid)), signal.SIGKILL)
    assert "no progress in 2 failed cycles in a row" in job.end(93)
    reports = [path.read_text() for path in sorted(job.run_dir.glob("incidents/*/report.txt"))]
    assert len(reports) == 3, "the kill, and two restores"
    for report in reports[1:]:
        text = " ".join(report.split())
        assert report.startswith("OUT OF MEMORY: rank 0 "), report
        assert "was killed because it ran out of memory in section 'setup', before its first step" in text
        assert f"is {limit >> 20} MiB" in text, report
        assert "memory that rank" in text and "mmap=True" in text, report


# -- A process that dies while it saves, with no care taken: what is found afterwards can be loaded


SAVES = """
import sys, torch, torch.distributed.checkpoint as dcp, warnings
from holdfast.testing import Faults
warnings.simplefilter("ignore")
folder, how, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
faults = Faults.from_env()
for step in range(1, 100000):
    faults.at_step(step)
    state = {"step": step, "w": torch.full((size,), float(step))}
    if how == "torch":
        torch.save(state, f"{folder}/step-{step}.pt")
    else:
        dcp.save(state, checkpoint_id=f"{folder}/step-{step}", no_dist=True)
    print("saved", step, flush=True)
"""


def test_by_the_fault_that_leaves_half_a_file(spawn: Spawner, tmp_path: Path) -> None:
    """A folder of shards; for a single file see tests/testing/test_actions.py."""
    import torch.distributed.checkpoint as dcp

    fault = {"HOLDFAST_FAULT": "half_save@step=3,size=9000"}
    job = spawn.python(SAVES, str(tmp_path), "dcp", "3000", env=fault)
    assert job.wait() == -signal.SIGXFSZ, job.output()
    said: list[str] = []
    assert checkpoints.last_complete(tmp_path, said.append) == tmp_path / "step-2"
    assert len(said) == 1 and "step-3 has no .metadata" in said[0]
    state = {"step": 0, "w": torch.zeros(3000)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(state, checkpoint_id=tmp_path / "step-2", no_dist=True)
    assert state["step"] == 2 and torch.equal(state["w"], torch.full((3000,), 2.0))


def test_by_kill_9_at_any_moment(spawn: Spawner, tmp_path: Path) -> None:
    """Of a checkpoint of 40 MB, when half of it is on the disk."""
    job = spawn.python(SAVES, str(tmp_path), "torch", "10000000")
    job.wait_for("saved 2")
    job.wait_for(lambda: half_written(tmp_path))
    job.send_signal(signal.SIGKILL)
    job.wait()
    found = checkpoints.last_complete(tmp_path, lambda text: None)
    assert found is not None
    state = torch.load(found)
    assert state["step"] == int(found.stem.removeprefix("step-")) >= 2
    assert float(state["w"].min()) == float(state["w"].max()) == state["step"]


def half_written(folder: Path) -> bool:
    """Removes old ones meanwhile, so that the disk does not fill."""
    sizes = {int(path.stem.removeprefix("step-")): path for path in folder.glob("step-*.pt")}
    newest = max(sizes)
    for step, path in sizes.items():
        if step < newest - 2:
            path.unlink()
    return 0 < sizes[newest].stat().st_size < 39_000_000


SAVES_BESIDE = """
import threading, warnings, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from holdfast import checkpoints

warnings.simplefilter("ignore")
returned = threading.Event()

class Killed(dcp.FileSystemWriter):
    def finish(self, *args, **kwargs):  # all have written their shards, and rank 0 has not written the metadata
        returned.wait()
        os.kill(os.getpid(), signal.SIGKILL)

dist.init_process_group("gloo")
state = {"step": 0, "w": torch.zeros(30000)}
if newest := checkpoints.last_complete_on_all_ranks("saved"):
    dcp.load(state, checkpoint_id=newest)
    say("resumed at", state["step"], float(state["w"].min()), float(state["w"].max()))
    dist.destroy_process_group()
    sys.exit()
for step, writer in ((1, dcp.FileSystemWriter), (2, Killed)):
    state = {"step": step, "w": torch.full((30000,), float(step))}
    saved = dcp.async_save(state, storage_writer=writer(f"saved/step-{step}"))
    say("returned from", step)
    if step == 2:
        returned.set()
    saved.result()
"""


def test_by_kill_9_after_an_asynchronous_save_came_back(jobs: Jobs, tmp_path: Path) -> None:
    """The call has returned and the shards are written; without the metadata the older one is the newest."""
    job = jobs(SAVES_BESIDE, "--max-restarts=1")
    errors = job.end(0)
    assert job.lines("returned from 2") and "SIGKILL" in errors
    assert len(job.lines("resumed at 1 1.0 1.0")) == 2
    assert errors.count("checkpoint skipped, resuming from step-1: ") == 1
    assert "step-2 has no .metadata" in errors
    assert {path.name for path in (tmp_path / "saved").iterdir()} == {"step-1", "step-2"}


# -- A job resumes with another number of ranks, in mid-epoch and between two epochs


EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "lightning"
RESIZED = Path(__file__).parent / "programs" / "resized.py"
STEPS = SAMPLES // STEP_SAMPLES
"""Of an epoch."""


def start(spawn: Spawner, framework: str, folder: Path, ranks: int, **env: str) -> Spawned:
    if importlib.util.find_spec(framework) is None or importlib.util.find_spec("sklearn") is None:
        pytest.skip(f"{framework} is not installed")
    preload, path = preloading.TRANSFORMERS, preloading.PATH
    if framework == "lightning":
        preload, path = preloading.lightning(folder / "installed")
    number = len(list(folder.glob("run*")))  # a new folder: it has no list of all that a job has imported
    launcher = [*LAUNCHER, f"--nproc-per-node={ranks}", preload, f"--ft-run-dir={folder / f'run{number}'}"]
    env = {**ONE_THREAD, **path, "PYTHONPATH": f"{path['PYTHONPATH']}:{EXAMPLES}", **env}
    return spawn([*launcher, RESIZED, framework, folder], env=env)


def ends(job: Spawned, folder: Path) -> None:
    """All is trained, and each sample once an epoch."""
    assert job.wait(120) == 0, job.output()
    assert f"ends after step {EPOCHS * STEPS}" in job.out()
    each = Counter((step // STEPS, sample) for step, sample in trained(folder))
    assert len(each) == EPOCHS * SAMPLES and set(each.values()) == {1}
    of_step = Counter(step for step, _ in trained(folder))
    assert of_step == dict.fromkeys(range(EPOCHS * STEPS), STEP_SAMPLES)


def trained(folder: Path) -> list[tuple[int, int]]:
    """The step and the number of each sample that was trained, by any rank."""
    lines = [line.split() for path in folder.glob("trained-*") for line in path.read_text().splitlines()]
    return [(int(step), int(sample)) for step, *samples in lines for sample in samples]


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
@pytest.mark.parametrize("framework", ["lightning", "transformers"])
def test_each_sample_is_trained_once_an_epoch(
    framework: str, before: int, after: int, spawn: Spawner, tmp_path: Path
) -> None:
    job = start(spawn, framework, tmp_path, before, SLOW_FROM="2")
    job.wait_for(lambda: any(step == 1 for step, _ in trained(tmp_path)))
    assert job.stop(signal.SIGTERM) == 0, job.output()
    last = max(step for step, _ in trained(tmp_path))
    assert 1 <= last < STEPS - 1, "it was stopped in mid-epoch"
    ends(start(spawn, framework, tmp_path, after), tmp_path)


@pytest.mark.parametrize(
    ("framework", "saved", "after"),
    [
        ("lightning", "epoch", 2),
        ("transformers", "step", 1),
        pytest.param("transformers", "epoch", 2, marks=pytest.mark.variant),
        pytest.param("lightning", "validation", 1, marks=pytest.mark.variant),
        pytest.param("lightning", "step", 1, marks=pytest.mark.variant),
    ],
)
def test_kill_between_two_epochs_skips_and_repeats_nothing(
    framework: str, saved: str, after: int, spawn: Spawner, tmp_path: Path
) -> None:
    """Two ranks are killed when the checkpoint of an epoch's last step is saved and the next epoch has no step."""
    job = start(spawn, framework, tmp_path, 2, SAVED=saved, KILL="1")
    assert job.wait(120) == 128 + signal.SIGKILL, job.output()
    assert max(step for step, _ in trained(tmp_path)) == STEPS - 1
    ends(start(spawn, framework, tmp_path, after, SAVED=saved), tmp_path)
