"""The launcher is SIGKILLed, or a rank crashes: ranks, what they started, monitor and boards are gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import psutil
import pytest

from holdfast.fault_tolerance.launcher.ranks import boards, processes
from holdfast.fault_tolerance.launcher.ranks.processes import ProcessStates, uninterruptible
from holdfast.fault_tolerance.launcher.ranks.start import RUN_PROGRAM
from tests.jobs import Job, Jobs
from tests.processes import Spawner, alive, wait_until

# Every way for a process to get away from its parent. Each is noted in a file: name and pid.
LEAVES = """
LEFT = f"{os.environ['NOTES']}/left-{RANK}"
def note(name, pid):
    with open(LEFT, "a") as file:
        file.write(f"{name} {pid}\\n")

def leave(name, **how):
    ignores = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-S", "-c", ignores], stdout=subprocess.PIPE, **how)
    child.stdout.read(1)
    note(name, child.pid)

def leave_all():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            note("daemon", os.getpid())
            wait()
        os._exit(0)
    os.wait()
    leave("plain")
    leave("setsid", start_new_session=True)
    leave("bare", env={})
    while len(open(LEFT).readlines()) < 4:
        time.sleep(0.01)
"""
RUNS = (
    LEAVES
    + """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
leave_all()
say("board", os.environ["FT_RANK_MONITOR_IPC_SOCKET"])
say("pid", os.getpid())
wait()
"""
)


def board_directory(board: str) -> Path:
    """The launcher's private directory on tmpfs."""
    return Path(board).parent.parent


def everything(job: Job) -> set[int]:
    """Also what has left the family, by the notes of `LEAVES`."""
    notes = [line for file in job.notes.glob("left-*") for line in file.read_text().splitlines()]
    family = psutil.Process(job.pid).children(recursive=True)
    return {*(process.pid for process in family), *(int(note.split()[1]) for note in notes)}


def wait_for_ends(pids: Iterable[int]) -> None:
    for pid in pids:
        wait_until(lambda pid=pid: not alive(pid), what=f"the end of {pid}")


def is_monitor(pid: int) -> bool:
    return "monitor.main" in " ".join(psutil.Process(pid).cmdline())


def kill(job: Job) -> None:
    job.spawned.send_signal(signal.SIGKILL)
    job.spawned.wait()


def test_nothing_survives_the_launcher(jobs: Jobs) -> None:
    """Neither ranks and what they started, nor monitor, zygote and standbys."""
    job = jobs(RUNS, "--ft-warm-start", "on")
    job.hear("pid", ranks=[0, 1])
    boards = board_directory(job.hear(r"board (\S+)", ranks=[0])[0])
    family = psutil.Process(job.pid)
    wait_until(lambda: [each.name() for each in family.children()].count("hf-standby") == 2, what="standbys")
    pids = everything(job)
    assert len(pids) >= 2 * 5 + 4 and boards.exists()
    kill(job)
    wait_for_ends(pids)
    wait_until(lambda: not boards.exists(), what=f"removal of {boards}")


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
    wait_for_ends(pids)
    left = board_directory(job.hear(r"board (\S+)", ranks=[0])[0])
    assert left.exists()
    jobs("pass", nproc=1).end(0)
    assert not left.exists()


def test_ranks_that_are_no_python_die_too(jobs: Jobs) -> None:
    script = jobs.folder / "rank.sh"
    script.write_text("#!/bin/sh\ntrap '' TERM\necho rank $RANK cycle 0 pid $$\nwhile :; do sleep 1; done\n")
    script.chmod(0o755)
    job = jobs.command("--nproc-per-node", "2", "--no-python", str(script))
    job.hear("pid", ranks=[0, 1])
    pids = everything(job)
    kill(job)
    wait_for_ends(pids)


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
    wait_for_ends(pids)
    wait_until(lambda: not boards.exists())


@pytest.mark.parametrize("children", [1, 2], ids=["the monitor", "a rank"])
def test_launcher_killed_while_it_starts(jobs: Jobs, children: int) -> None:
    """As soon as there is a monitor, or a rank that has not come to its first line."""
    job = jobs(RUNS)
    job.spawned.wait_for(lambda: len(psutil.Process(job.pid).children()) >= children)
    pids = everything(job)
    kill(job)
    wait_for_ends(pids)
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
    (tmp_path / "holdfast-link").symlink_to(other)
    assert boards.remove_stale(str(tmp_path)) == [str(dead)]
    assert living.exists() and other.exists() and unowned.exists() and not dead.exists()
    os.close(held)
    assert boards.remove_stale(str(tmp_path)) == [str(living)]
    assert other.exists(), "a link is left alone"


# -- what a crashed rank leaves running is gone before its successor starts


SEES = """
def running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False

if CYCLE == 0:
    if RANK == 0:
        leave_all()
        leave("setsid_without_environment", start_new_session=True, env={})
    meet()
    kill_me(signal.SIGKILL) if RANK == 0 else wait()
with open(os.environ["NOTES"] + "/left-0") as file:
    for line in file:
        name, pid = line.split()
        say("sees", name, "running" if running(pid) else "gone")
"""


def test_everything_a_crashed_rank_left_is_gone_before_its_successor_starts(jobs: Jobs) -> None:
    """And what others started is left alone.

    `logger & exec ft_launcher …`, as a container's entrypoint does: the logger is the launcher's own child.
    """
    under = ["bash", "-c", 'sleep 600 & echo "sidecar $!"; exec "$@"', "bash"]
    job = jobs(LEAVES + SEES, "--max-restarts", "1", under=under)
    sidecar = int(job.wait_for(r"^sidecar (\d+)$").group(1))
    job.end(0)
    seen = {line.split(" sees ")[1] for line in job.lines(" sees ")}
    names = ["plain", "setsid", "bare", "setsid_without_environment", "daemon"]
    assert seen == {f"{name} gone" for name in names}
    swept = [pid for each in job.journal("swept") for pid in each["pids"]]
    assert len(swept) >= 5
    assert alive(sidecar)
    subprocess.run(["kill", str(sidecar)], check=True)
    wait_until(lambda: not alive(sidecar))


# A child in a session of its own, as an upload in the background.
DONE = """
def leave_upload(*_):
    note = os.environ["NOTES"] + f"/uploaded-{RANK}"
    program = "until [ -e $0 ]; do sleep 0.02; done; touch $1"
    child = subprocess.Popen(["sh", "-c", program, os.environ["NOTES"] + "/goes", note], start_new_session=True)
    say("left", child.pid)
    os._exit(0)
"""


def test_what_a_rank_that_is_done_left_may_end_by_itself(jobs: Jobs) -> None:
    """After a preemption: the same wait follows a success."""
    job = jobs(DONE + "signal.signal(signal.SIGTERM, leave_upload)\nsay('ready')\nwait()")
    job.hear("ready", ranks=[0, 1])
    job.spawned.send_signal(signal.SIGTERM)
    job.wait_for(r"the ranks are done, but \d processes that they started still run \(pid ")
    job.tell("goes")
    job.end(0)
    assert sorted(path.name for path in job.notes.glob("uploaded-*")) == ["uploaded-0", "uploaded-1"]
    assert not job.journal("swept")


def test_a_signal_ends_the_wait_for_what_ranks_left(jobs: Jobs) -> None:
    job = jobs(DONE + "leave_upload()")
    job.wait_for("the ranks are done")
    job.spawned.send_signal(signal.SIGTERM)
    job.end(0)
    left = job.hear(r"left (\d+)", ranks=[0, 1])
    assert not any(alive(int(pid)) for pid in left.values())


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
