"""What a crashed rank leaves running is gone before its successor starts: no orphan holds a GPU, a port or a file."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from holdfast.fault_tolerance.launcher.ranks import processes
from holdfast.fault_tolerance.launcher.ranks.processes import ProcessStates, uninterruptible
from tests.launcher.conftest import Jobs
from tests.processes import Spawner, alive, wait_until

# Every way for a process to get away from its parent, and what the successor sees of it.
LEAVES = """
import json
def note(name, pid):
    with open(os.environ["NOTES"] + "/left", "a") as file:
        file.write(f"{name} {pid}\\n")

def leave(name, **how):
    ignores = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-S", "-c", ignores], stdout=subprocess.PIPE, **how)
    child.stdout.read(1)
    note(name, child.pid)

def daemon():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            note("daemon", os.getpid())
            wait()
        os._exit(0)
    os.wait()

def running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False

if CYCLE == 0:
    if RANK == 0:
        daemon()
        leave("plain")
        leave("setsid", start_new_session=True)
        leave("setsid_without_environment", start_new_session=True, env={})
    meet()
    if RANK == 0:
        while len(open(os.environ["NOTES"] + "/left").readlines()) < 4:
            time.sleep(0.01)
        kill_me(signal.SIGKILL)
    wait()
with open(os.environ["NOTES"] + "/left") as file:
    for line in file:
        name, pid = line.split()
        say("sees", name, "running" if running(pid) else "gone")
"""


def test_everything_a_crashed_rank_left_is_gone_before_its_successor_starts(jobs: Jobs) -> None:
    job = jobs(LEAVES, "--max-restarts", "1")
    job.end(0)
    seen = {line.split(" sees ")[1] for line in job.lines(" sees ")}
    names = ["plain", "setsid", "setsid_without_environment", "daemon"]
    assert seen == {f"{name} gone" for name in names}
    swept = [pid for each in job.journal("swept") for pid in each["pids"]]
    assert len(swept) >= 4


# A child in a session of its own, as an upload in the background.
DONE = """
def leave_upload(*_):
    note = os.environ["NOTES"] + f"/uploaded-{RANK}"
    program = "import pathlib, sys, time; time.sleep(float(sys.argv[1])); pathlib.Path(sys.argv[2]).touch()"
    child = subprocess.Popen([sys.executable, "-S", "-c", program, "SECONDS", note], start_new_session=True)
    say("left", child.pid)
    os._exit(0)
"""
AT_ONCE = "leave_upload()"
WHEN_TOLD = "signal.signal(signal.SIGTERM, leave_upload)\nsay('ready')\nwait()"


@pytest.mark.parametrize("told", [False, True], ids=["success", "preemption"])
def test_what_a_rank_that_is_done_left_may_end_by_itself(jobs: Jobs, told: bool) -> None:
    job = jobs(DONE.replace("SECONDS", "2.5") + (WHEN_TOLD if told else AT_ONCE))
    if told:
        job.hear("ready", ranks=[0, 1])
        job.spawned.send_signal(signal.SIGTERM)
    assert "the ranks are done, but 2 processes that they started still run (pid " in job.end(0)
    assert sorted(path.name for path in job.notes.glob("uploaded-*")) == ["uploaded-0", "uploaded-1"]
    assert not job.journal("swept")


def test_a_signal_ends_the_wait_for_what_ranks_left(jobs: Jobs) -> None:
    job = jobs(DONE.replace("SECONDS", "600") + AT_ONCE)
    job.wait_for("the ranks are done")
    job.spawned.send_signal(signal.SIGTERM)
    job.end(0)
    left = job.hear(r"left (\d+)", ranks=[0, 1])
    assert not any(alive(int(pid)) for pid in left.values())


def test_what_others_started_is_left_alone(jobs: Jobs) -> None:
    """`logger & exec ft_launcher …`, as a container's entrypoint does: the logger is the launcher's own child."""
    job = jobs(
        "meet()\nif CYCLE == 0: sys.exit(3)",
        "--max-restarts",
        "1",
        under=["bash", "-c", 'sleep 600 & echo "sidecar $!"; exec "$@"', "bash"],
    )
    sidecar = int(job.wait_for(r"^sidecar (\d+)$").group(1))
    job.end(0)
    assert alive(sidecar)
    subprocess.run(["kill", str(sidecar)], check=True)
    wait_until(lambda: not alive(sidecar))


# -- what the launcher reads of its ranks in /proc -----------------------------------------------------------

# The child waits in opening a FIFO before it has become another program, and its parent waits for that in state D.
IN_STATE_D = """
import os, sys
os.posix_spawn("/bin/true", ["true"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)])
"""


def test_killed_rank_in_state_d_is_blocked(spawn: Spawner, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    waits, sleeps = spawn.python(IN_STATE_D, str(fifo)), spawn(["sleep", "600"])
    wait_until(lambda: uninterruptible(waits.pid))
    states = ProcessStates()

    def blocked() -> frozenset[int]:
        states.refresh({0: waits.pid, 1: sleeps.pid}, {0, 1}, time.monotonic())
        return states.blocked

    wait_until(lambda: blocked() == {0})
    os.close(os.open(fifo, os.O_WRONLY))  # it continues, and ends
    wait_until(lambda: not blocked())


def test_process_that_cannot_be_read_blocks_no_caller(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As with a process in execve on a filesystem that does not answer: a killed one counts as blocked."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)

    def read(pid: int) -> bool:
        with open(fifo) as file:
            return bool(file.read())

    monkeypatch.setattr(processes, "uninterruptible", read)
    states, own = ProcessStates(), {0: os.getpid()}
    for second in range(3):
        states.refresh(own, {0}, 100.0 + second)
    assert states.blocked == {0}
    os.close(os.open(fifo, os.O_WRONLY))  # the thread ends
