"""The launcher is SIGKILLed: ranks, what they started, the monitor and the board directory are gone within seconds."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.launcher.conftest import Job, Jobs
from tests.processes import alive, wait_until

CEILING = 20.0
"""Seconds to wait for it. 2 are promised, on a machine that is not as busy as one that runs tests."""

RUNS = """
stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
def leave(name, **how):
    child = subprocess.Popen([sys.executable, "-S", "-c", stubborn], stdout=subprocess.PIPE, **how)
    child.stdout.read(1)
    say(name, child.pid)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
leave("setsid", start_new_session=True)
leave("plain")
leave("bare", env={})
say("board", os.environ["FT_RANK_MONITOR_IPC_SOCKET"])
say("pid", os.getpid())
wait()
"""


def board_directory(board: str) -> Path:
    """The launcher's private directory on tmpfs."""
    return Path(board).parent.parent


def everything(job: Job) -> list[int]:
    return [process.pid for process in psutil.Process(job.pid).children(recursive=True)]


def is_monitor(pid: int) -> bool:
    return "monitor.main" in " ".join(psutil.Process(pid).cmdline())


def kill(job: Job) -> float:
    job.spawned.send_signal(signal.SIGKILL)
    job.spawned.wait()
    return time.monotonic()


def test_nothing_survives_the_launcher(jobs: Jobs) -> None:
    job = jobs(RUNS)
    job.hear("pid", ranks=[0, 1])
    boards = board_directory(job.hear(r"board (\S+)", ranks=[0])[0])
    pids = everything(job)
    zygotes = any(each["start"] == "warm" for each in job.journal("rank_start"))
    assert (
        len(pids) >= 2 * 4 + 1 + zygotes and boards.exists()
    )  # the monitor and the zygote; perhaps standbys
    kill(job)
    for pid in pids:
        wait_until(lambda pid=pid: not alive(pid), CEILING, what=f"the end of {pid}")
    wait_until(lambda: not boards.exists(), CEILING, what=f"removal of {boards}")


def test_a_stopped_rank_does_not_survive_either(jobs: Jobs) -> None:
    job = jobs("say('pid', os.getpid())\nos.kill(os.getpid(), signal.SIGSTOP)")
    pids = [int(pid) for pid in job.hear(r"pid (\d+)", ranks=[0, 1]).values()]
    wait_until(lambda: all(psutil.Process(pid).status() == psutil.STATUS_STOPPED for pid in pids))
    kill(job)
    wait_until(lambda: not any(map(alive, pids)), CEILING)


def test_without_a_monitor_the_kernel_ends_the_ranks(jobs: Jobs) -> None:
    """Both are killed at once, so no process is left to sweep: the parent-death signal does it for the ranks."""
    job = jobs("say('board', os.environ['FT_RANK_MONITOR_IPC_SOCKET'])\nsay('pid', os.getpid())\nwait()")
    pids = [int(pid) for pid in job.hear(r"pid (\d+)", ranks=[0, 1]).values()]
    (monitor,) = (pid for pid in everything(job) if is_monitor(pid))
    os.kill(job.pid, signal.SIGSTOP)  # so that it cannot replace the monitor
    os.kill(monitor, signal.SIGKILL)
    kill(job)
    wait_until(lambda: not any(map(alive, pids)), CEILING)
    # No process was left to remove it.
    boards = board_directory(job.hear(r"board (\S+)", ranks=[0])[0])
    for path in sorted(boards.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    boards.rmdir()


def test_ranks_that_are_no_python_die_too(jobs: Jobs) -> None:
    script = jobs.folder / "rank.sh"
    script.write_text("#!/bin/sh\ntrap '' TERM\necho rank $RANK cycle 0 pid $$\nwhile :; do sleep 1; done\n")
    script.chmod(0o755)
    job = jobs.command("--nproc-per-node", "2", "--no-python", str(script))
    wait_until(lambda: len(everything(job)) >= 3)
    pids = everything(job)
    kill(job)
    wait_until(lambda: not any(map(alive, pids)), CEILING)


def test_launcher_killed_in_the_middle_of_a_restart(jobs: Jobs) -> None:
    """The peers of the dead rank are being waited for; they and the dead rank's children go as well."""
    text = RUNS.replace('say("pid"', 'meet()\nif RANK == 1: sys.exit(3)\nsay("pid"')
    job = jobs(text, "--max-restarts", "3", "--workers-stop-timeout", "30")
    job.hear("pid", ranks=[0])
    wait_until(lambda: job.journal("stop"))
    boards = board_directory(job.hear(r"board (\S+)", ranks=[0])[0])
    pids = everything(job)
    kill(job)
    for pid in pids:
        wait_until(lambda pid=pid: not alive(pid), CEILING, what=f"the end of {pid}")
    wait_until(lambda: not boards.exists(), CEILING)


@pytest.mark.parametrize("children", [1, 2], ids=["the monitor", "a rank"])
def test_launcher_killed_while_it_starts(jobs: Jobs, children: int) -> None:
    """As soon as there is a monitor, or a rank that has not come to its first line."""
    job = jobs(RUNS)
    job.spawned.wait_for(lambda: len(psutil.Process(job.pid).children()) >= children)
    pids = everything(job)
    kill(job)
    for pid in pids:
        wait_until(lambda pid=pid: not alive(pid), CEILING, what=f"the end of {pid}")
    # The board directory, and what a rank started in its last moment: the leak check sees to it.
