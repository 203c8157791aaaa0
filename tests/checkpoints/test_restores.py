"""A restore that is slow but reads, or needs more memory than a cold start: each is ended and named as what it is."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from tests.launcher.conftest import LAUNCHER
from tests.memory_group import anonymous, set_limit
from tests.memory_group import group as group
from tests.processes import Spawner

from .programs.restoring import BYTES

SLOWLY = Path(__file__).parent / "programs" / "restoring_slowly.py"
LIMIT = 8.0
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


@pytest.mark.slow
def test_slow_restore_is_ended_at_its_limit_with_its_rate(spawn: Spawner, tmp_path: Path) -> None:
    torch.save(torch.ones(1 << 20), tmp_path / "weights.pt")
    os.mkfifo(tmp_path / "fifo")
    weights = (tmp_path / "weights.pt").read_bytes()
    begun = threading.Event()
    feeder = threading.Thread(target=feed, args=(tmp_path / "fifo", weights, begun), daemon=True)
    feeder.start()
    run = tmp_path / "run"
    launcher = [*LAUNCHER, "--nproc-per-node=2", "--max-restarts=1", f"--ft-run-dir={run}"]
    limit = f"--ft-rank-section-timeouts=setup:{LIMIT}"
    job = spawn([*launcher, limit, str(SLOWLY), str(tmp_path)], env={"OMP_NUM_THREADS": "1"})

    # A person asks what takes so long: the rank lives, and the rate is named.
    job.wait_for(begun.is_set)
    asked = spawn([sys.executable, "-m", "holdfast", "diagnose", str(run)])
    assert asked.wait() == 0 and RATE.search(asked.out()), asked.output()
    assert "no hang found" in asked.out() or "rank 1" in asked.out().splitlines()[1]

    # Only its own limit ends it, and the report names the rate.
    assert job.wait() == 0, job.output()
    (report,) = (path.read_text() for path in run.glob("incidents/*/report.txt"))
    waited = re.search(r"section 'setup' did not end for ([\d.]+) s", report)
    assert waited and float(waited[1]) >= LIMIT, report
    assert report.startswith("HANG: rank 1 "), report
    rate = RATE.search(" ".join(report.split()))
    assert rate and 20 < float(rate[1]) < 400, report
    assert job.out().count("restored ") == 2, "and the next cycle trains"
    feeder.join()


# -- a restore that needs more memory than a cold start: the kernel kills the rank, and the report names that


PROGRAM = Path(__file__).parent / "programs" / "restoring.py"


@pytest.mark.slow
def test_restore_without_memory_is_named_and_ends(spawn: Spawner, group: Path, tmp_path: Path) -> None:
    """A cold start has fitted into the limit, and a rank that restores needs `BYTES` more."""
    run, iteration = tmp_path / "run", tmp_path / "iteration"
    launcher = [*LAUNCHER, "--nproc-per-node=2", "--max-restarts=9", f"--ft-run-dir={run}"]
    launcher += [f"--ft-checkpoint-iteration-file={iteration}", str(PROGRAM), str(tmp_path)]
    inside = ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh", *launcher]
    # Cold: a warm start's zygote shares the modules' memory, and is what the kernel kills first.
    job = spawn(inside, env={"OMP_NUM_THREADS": "1", "PET_FT_WARM_START": "off"})
    file = tmp_path / "pid-1"  # written anew in each step
    pid = job.wait_for(lambda: iteration.exists() and file.exists() and file.read_text(), 120)
    limit = (
        anonymous(group) + BYTES * 3 // 4
    )  # with room for the modules' files: else each start waits for the disk
    set_limit(group, limit)
    os.kill(int(str(pid)), signal.SIGKILL)
    assert job.wait(120) == 93, job.output()
    assert "no progress in 2 failed cycles in a row" in job.err()
    reports = [path.read_text() for path in sorted(run.glob("incidents/*/report.txt"))]
    assert len(reports) == 3, "the kill, and two restores"
    for report in reports[1:]:
        text = " ".join(report.split())
        assert report.startswith("OUT OF MEMORY: rank "), report
        assert "was killed because it ran out of memory in section 'setup', before its first step" in text
        assert f"is {limit >> 20} MiB" in text, report
        assert "memory that rank" in text and "mmap=True" in text, report
