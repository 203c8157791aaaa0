"""What a rank forks and leaves is found when the launcher is gone, whether the rank had started cold or warm.

Such a process is known by the environment in /proc, which a fork inherits; a standby was not started with this rank's.
Does not cover: what a rank starts by exec, which has the rank's environment in any case (`tests/launcher`).
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.launcher.conftest import Jobs
from tests.launcher.warm.conftest import COLD, WARM, starts
from tests.processes import alive, wait_until

STRAY = """
def stray():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            say("stray", os.getpid())
            wait()
        os._exit(0)

stray()
wait()
"""


@pytest.mark.parametrize("mode", [COLD, WARM])
def test_a_stray_does_not_survive_the_launcher(jobs: Jobs, tmp_path: Path, mode: str) -> None:
    job = jobs(STRAY, "--ft-warm-start", mode)
    strays = [int(pid) for pid in job.hear(r"stray (\d+)", ranks=[0, 1]).values()]
    # The journal's writer is a thread that the ranks do not wait for.
    expected = ["warm" if mode == WARM else "cold"] * 2
    wait_until(lambda: starts(job, 0) == expected, what=f"{expected} in the journal")
    job.spawned.send_signal(signal.SIGKILL)
    job.spawned.wait()
    wait_until(lambda: not any(map(alive, strays)), 20, what="the end of what the ranks left")
