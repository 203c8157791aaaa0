"""A restore that needs more memory than a cold start: the kernel kills the rank, and the report names that."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.launcher.conftest import LAUNCHER
from tests.memory_group import anonymous, set_limit
from tests.memory_group import group as group
from tests.processes import Spawner

from .programs.restoring import BYTES

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
    pid = tmp_path / "pid-1"
    job.wait_for(lambda: iteration.exists() and pid.exists() and pid.read_text(), 120)
    limit = (
        anonymous(group) + BYTES * 3 // 4
    )  # with room for the modules' files: else each start waits for the disk
    set_limit(group, limit)
    os.kill(int(pid.read_text()), signal.SIGKILL)
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
