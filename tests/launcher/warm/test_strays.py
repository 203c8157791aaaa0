"""What a rank forks and leaves is found when the launcher is gone, also where the rank was a standby.

Such a process is known by the environment in /proc, which a fork inherits; a standby was not started with this rank's.
Does not cover: what a rank starts by exec, which has the rank's environment in any case (`tests/launcher`).
"""

from __future__ import annotations

import signal

from tests.launcher.conftest import Jobs
from tests.launcher.test_warm_start import named, standbys
from tests.launcher.warm.conftest import WARM, starts
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


def test_nothing_survives_a_killed_launcher(jobs: Jobs) -> None:
    """Neither zygote and standbys, nor what ranks have left that were standbys."""
    job = jobs(STRAY, "--ft-warm-start", WARM)
    strays = [int(pid) for pid in job.hear(r"stray (\d+)", ranks=[0, 1]).values()]
    # The journal's writer is a thread that the ranks do not wait for.
    wait_until(lambda: starts(job, 0) == ["warm"] * 2, what="warm ranks in the journal")
    ours = [process.pid for process in [*standbys(job, 2), *named(job, "zygote")]]
    job.spawned.send_signal(signal.SIGKILL)
    job.spawned.wait()
    wait_until(lambda: not any(map(alive, strays + ours)), 20, what="the end of what the launcher left")
