"""`ft_launcher` and `holdfast autoresume` as process 1 of a container, in which others start processes as well."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.jobs import Jobs
from tests.processes import Spawned, Spawner, alive, wait_until

CONTAINER = ["unshare", "--fork", "--pid", "--mount-proc", "--kill-child"]


@pytest.fixture(autouse=True)
def _namespaces_are_possible() -> None:
    attempt = ["sh", "-c", '"$@"', "sh", *CONTAINER, "nsenter", "--version"]  # by a shell: it may be missing
    if subprocess.run(attempt, capture_output=True).returncode:
        pytest.skip("a container needs root and the commands `unshare` and `nsenter`")


def process_one(container: Spawned) -> psutil.Process:
    (found,) = psutil.Process(container.pid).children()
    return found


def left_by_another(container: Spawned) -> int:
    """The pid, outside, of what a `kubectl exec` has started and left."""
    one = process_one(container)
    before = set(one.children())
    inside = ["nsenter", f"--target={one.pid}", "--pid", "--mount", "--"]
    program = "setsid sleep 600 >/dev/null 2>&1 & echo $!"
    subprocess.run([*inside, "sh", "-c", program], check=True, stdout=subprocess.PIPE)
    (orphan,) = wait_until(lambda: set(one.children()) - before, what="the orphan of process 1")
    return orphan.pid


# What no environment, session or parent shows to be a rank's.
RANK = """
def leave():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            program = "trap '' TERM; echo $$ > $0; sleep 600"
            os.execve("/bin/sh", ["sh", "-c", program, os.environ["NOTES"] + "/left"], {})
        os._exit(0)
    os.wait()
    while not (told("left") and open(os.environ["NOTES"] + "/left").read().strip()):
        time.sleep(0.01)

if CYCLE == 0:
    leave()
    say("ready")
    until("crash")
    kill_me(signal.SIGKILL)
with open(os.environ["NOTES"] + "/left") as file:
    say("left", "runs" if os.path.exists("/proc/" + file.read().strip()) else "is gone")
until("end")
"""


def test_restart_of_process_one_ends_only_what_is_its_ranks(jobs: Jobs) -> None:
    job = jobs(RANK, "--max-restarts", "1", nproc=1, under=CONTAINER)
    job.hear("ready", ranks=[0])
    other = left_by_another(job.spawned)
    job.tell("crash")
    job.hear("left is gone", ranks=[0], cycle=1)
    assert alive(other)
    job.tell("end")
    assert "the ranks are done, but" not in job.end(0), "the job does not wait for it"
    wait_until(lambda: not alive(other), what="the end of all in the container")


def test_process_one_passes_signal_on_and_ends_with_the_launchers_code(jobs: Jobs) -> None:
    job = jobs("say('ready'); wait()", "--ft-preempted-exit-code", "75", nproc=1, under=CONTAINER)
    job.hear("ready", ranks=[0])
    process_one(job.spawned).send_signal(signal.SIGTERM)
    job.end(75)


CHILD = """
import os, signal
from holdfast.fault_tolerance.processes.process_one import leave_process_one

leave_process_one()
came = []
signal.signal(signal.SIGINT, lambda *_: came.append("SIGINT") or print("interrupted", flush=True))
signal.signal(signal.SIGTERM, lambda *_: came.append("SIGTERM"))
print("ready", os.getpid(), flush=True)
while "SIGTERM" not in came:
    signal.pause()
print(*came, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("is_leader", [True, False], ids=["terminal", "terminal from outside"])
def test_process_one_with_terminal_interrupts_once(spawn: Spawner, is_leader: bool) -> None:
    """`docker run -it` makes process 1 the leader of a session; `unshare` alone leaves it in the session outside.

    A second SIGINT would kill the ranks at once. The signal with the lower number is passed on first.
    """
    leader, follower = pty.openpty()
    try:
        # The leader of a session without a terminal takes the one that it opens.
        opens = ["sh", "-c", f'exec "$@" <{os.ttyname(follower)}', "sh"]
        before = [*CONTAINER, *opens, "setsid", "--ctty"] if is_leader else [*opens, *CONTAINER]
        container = spawn([*before, sys.executable, "-c", CHILD])
        container.wait_for(r"^ready (?!1$)\d+$")
        os.write(leader, b"\x03")
        container.wait_for("^interrupted$")
        process_one(container).send_signal(signal.SIGTERM)
        assert container.wait() == 128 + signal.SIGKILL
        assert container.out().splitlines()[-1] == "SIGINT SIGTERM"
    finally:
        os.close(leader)
        os.close(follower)


def test_autoresume_as_process_one_waits_for_no_others(spawn: Spawner, tmp_path: Path) -> None:
    """It waits half an hour for what an attempt that was asked to end has left running."""
    holdfast = [sys.executable, "-m", "holdfast", "autoresume", "--run-dir", tmp_path / "run", "--"]
    chain = spawn([*CONTAINER, *holdfast, "sh", "-c", "echo ready; exec sleep 600"])
    chain.wait_for("^ready$")
    left_by_another(chain)
    process_one(chain).send_signal(signal.SIGTERM)
    assert chain.wait() == 143
    assert "waiting for what it has left running" not in chain.err()
