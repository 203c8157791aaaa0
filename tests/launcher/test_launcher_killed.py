"""The launcher is SIGKILLed: ranks, what they started, the monitor and the board directory are gone within seconds.

What a launcher and a monitor that were killed at once leave is removed by the next launcher.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from holdfast.fault_tolerance.launcher.ranks import boards
from holdfast.fault_tolerance.launcher.ranks.start import RUN_PROGRAM
from tests.launcher.conftest import Job, Jobs
from tests.processes import Spawner, alive, wait_until

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
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:  # a daemon
        say("daemon", os.getpid())
        wait()
    os._exit(0)
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


def standbys(job: Job) -> int:
    return sum(child.name() == "hf-standby" for child in psutil.Process(job.pid).children())


def kill(job: Job) -> float:
    job.spawned.send_signal(signal.SIGKILL)
    job.spawned.wait()
    return time.monotonic()


def test_nothing_survives_the_launcher(jobs: Jobs) -> None:
    """Neither ranks and what they started, nor monitor, zygote and standbys."""
    job = jobs(RUNS, "--ft-warm-start", "on")
    job.hear("pid", ranks=[0, 1])
    boards = board_directory(job.hear(r"board (\S+)", ranks=[0])[0])
    wait_until(lambda: standbys(job) == 2, what="standbys")
    pids = {*everything(job), *(int(pid) for pid in job.hear(r"daemon (\d+)", ranks=[0, 1]).values())}
    assert len(pids) >= 2 * 5 + 4 and boards.exists()
    kill(job)
    for pid in pids:
        wait_until(lambda pid=pid: not alive(pid), CEILING, what=f"the end of {pid}")
    wait_until(lambda: not boards.exists(), CEILING, what=f"removal of {boards}")


def test_without_a_monitor_the_kernel_ends_the_ranks(jobs: Jobs) -> None:
    """Both are killed at once, so no process is left to sweep: the parent-death signal does it for the ranks.

    The next launcher removes the boards.
    """
    job = jobs("say('board', os.environ['FT_RANK_MONITOR_IPC_SOCKET'])\nsay('pid', os.getpid())\nwait()")
    pids = [int(pid) for pid in job.hear(r"pid (\d+)", ranks=[0, 1]).values()]
    (monitor,) = (pid for pid in everything(job) if is_monitor(pid))
    os.kill(job.pid, signal.SIGSTOP)  # so that it cannot replace the monitor
    os.kill(monitor, signal.SIGKILL)
    kill(job)
    wait_until(lambda: not any(map(alive, pids)), CEILING)
    left = board_directory(job.hear(r"board (\S+)", ranks=[0])[0])
    assert left.exists()
    jobs("pass", nproc=1).end(0)
    assert not left.exists()


def test_ranks_that_are_no_python_die_too(jobs: Jobs) -> None:
    script = jobs.folder / "rank.sh"
    script.write_text("#!/bin/sh\ntrap '' TERM\necho rank $RANK cycle 0 pid $$\nwhile :; do sleep 1; done\n")
    script.chmod(0o755)
    job = jobs.command("--nproc-per-node", "2", "--no-python", str(script))
    wait_until(lambda: len(everything(job)) >= 3)
    pids = everything(job)
    kill(job)
    wait_until(lambda: not any(map(alive, pids)), CEILING)


def test_a_program_whose_launcher_died_before_it_came_is_not_run(spawn: Spawner) -> None:
    launcher = {**os.environ, "HOLDFAST_LAUNCHER_PID": str(os.getppid())}
    program = spawn([sys.executable, "-I", "-S", RUN_PROGRAM, "sh", "-c", "echo runs"], env=launcher)
    assert program.wait() == 1 and program.output() == ""


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


# -- what a launcher and a monitor that were killed at once leave behind -------------------------------------


def directory(base: Path, name: str) -> Path:
    made = base / name
    made.mkdir(mode=0o700)
    (made / "control").write_text("a page")
    return made


def test_a_directory_is_removed_when_its_owner_is_gone(tmp_path: Path) -> None:
    dead, living, other, unowned = (
        directory(tmp_path, name) for name in ("holdfast-1", "holdfast-2", "mine", "holdfast-3")
    )
    held = boards.lock_directory(living)
    for gone in (dead, other):
        os.close(boards.lock_directory(gone))
    assert boards.remove_stale(str(tmp_path)) == [str(dead)]
    assert living.exists() and other.exists() and unowned.exists() and not dead.exists()
    os.close(held)
    assert boards.remove_stale(str(tmp_path)) == [str(living)]


def test_a_link_is_left_alone(tmp_path: Path) -> None:
    real = directory(tmp_path, "real")
    os.close(boards.lock_directory(real))
    (tmp_path / "holdfast-link").symlink_to(real)
    assert boards.remove_stale(str(tmp_path)) == [] and real.exists()
