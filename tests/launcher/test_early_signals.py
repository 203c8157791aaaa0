"""Signals at awkward moments: while the launcher starts, waits for other nodes, or ends; what the driver waits for."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from holdfast.fault_tolerance.launcher.control.messages import Signal
from holdfast.fault_tolerance.launcher.driver import Clock
from holdfast.fault_tolerance.launcher.inbox import Inbox, Interrupted
from tests.jobs import CONSOLE, Job, Jobs
from tests.pipes import full_pipe
from tests.processes import alive


def _handles_sigterm(job: Job) -> bool:
    try:
        lines = Path(f"/proc/{job.pid}/status").read_text().splitlines()
    except OSError:
        return False
    caught = next((line for line in lines if line.startswith("SigCgt")), "SigCgt: 0")
    return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def _has_children(count: int) -> Callable[[Job], bool]:
    return lambda job: len(psutil.Process(job.pid).children()) >= count


@pytest.mark.parametrize(
    ("moment", "number", "code"),
    [
        (_handles_sigterm, signal.SIGTERM, 75),
        (_has_children(1), signal.SIGINT, 130),
        (_has_children(2), signal.SIGTERM, 75),
    ],
    ids=["the first lines", "the monitor was started", "a rank was started"],
)
def test_signal_while_the_launcher_starts(
    jobs: Jobs, moment: Callable[[Job], bool], number: int, code: int
) -> None:
    """It leaves with the code of a stopped job, and (the leak check sees to it) leaves nothing behind."""
    job = jobs("wait()", "--ft-preempted-exit-code", "75", "--max-restarts", "3")
    # Before this the signal ends a Python that has not come to the launcher's first line.
    job.spawned.wait_for(lambda: _handles_sigterm(job))
    job.spawned.wait_for(lambda: moment(job))
    job.spawned.send_signal(number)
    said = job.end(code)
    assert "[holdfast] FAILED" not in said and "restarting" not in said


CATCHES_ALL = """
import os, signal
open(os.environ["NOTES"] + "/importing", "w").close()
try:
    signal.pause()
except KeyboardInterrupt:
    pass
raise ModuleNotFoundError("numpy", name="numpy")
"""


def test_ctrl_c_cannot_get_lost_in_an_import(jobs: Jobs) -> None:
    """numpy's extension modules catch whatever is raised while they load: about every sixth Ctrl-C was in vain.

    With a file timer the launcher of a one-node job imports torch.
    """
    (jobs.folder / "early").mkdir()
    (jobs.folder / "early" / "numpy.py").write_text(CATCHES_ALL)
    path = os.pathsep.join([str(jobs.folder / "early"), os.environ["PYTHONPATH"]])
    job = jobs("say('started')", env={"PYTHONPATH": path, "TORCHELASTIC_ENABLE_FILE_TIMER": "1"})
    job.spawned.wait_for((job.notes / "importing").exists)
    job.spawned.send_signal(signal.SIGINT)
    assert job.end(130) == "" and not job.run_dir.exists()


STUBBORN = """
signal.signal(signal.SIGTERM, lambda *_: say("asked to stop"))
say("pid", os.getpid())
meet()
if CYCLE == 0 and RANK == 1:
    sys.exit(3)
while True:
    wait()
"""


def test_signal_in_the_middle_of_a_restart(jobs: Jobs) -> None:
    """While the launcher waits for the peers of a dead rank to end, it is asked to stop: no new cycle begins."""
    flags = ("--max-restarts=3", "--workers-stop-timeout=6", "--term-timeout=3")
    job = jobs(STUBBORN, *flags, "--ft-preempted-exit-code=75")
    pid = job.hear(r"pid (\d+)", ranks=[0])[0]
    job.hear("asked to stop", ranks=[0])
    job.spawned.send_signal(signal.SIGTERM)
    job.end(75)
    assert [each["signal"] for each in job.journal("preemption")] == ["SIGTERM"]
    assert not job.lines("cycle 1") and not alive(int(pid))


def test_signal_just_before_a_rank_fails_is_not_lost(jobs: Jobs) -> None:
    """Both reach the launcher in the same moment, because it was stopped meanwhile."""
    job = jobs("meet()\nos.kill(os.getppid(), signal.SIGSTOP)\nsys.exit(3)", "--max-restarts", "9", nproc=1)
    job.wait_for_ends_of_ranks(1)
    job.spawned.send_signal(signal.SIGTERM)
    job.spawned.send_signal(signal.SIGCONT)
    job.end(3)
    assert not job.journal("restart")


READER_STOPPED = """
import os, sys
os.dup2(os.open("PIPE", os.O_WRONLY), 1)
sys.stdout = open(1, "w", closefd=False)  # with a buffer also where PYTHONUNBUFFERED is set
print("is written when the launcher ends")
"""


def _has_closed_its_inbox(job: Job) -> bool:
    """Its selector is gone; also true where it has ended already, and the signal comes too late to matter."""
    with contextlib.suppress(OSError):
        files = [os.readlink(file) for file in Path(f"/proc/{job.pid}/fd").iterdir()]
        return "anon_inode:[eventpoll]" not in files
    return job.spawned.returncode is not None


@pytest.mark.parametrize(("number", "ended"), [(signal.SIGTERM, 3), (signal.SIGINT, 0)])
def test_signal_while_the_launcher_ends_leaves_its_exit_code(jobs: Jobs, number: int, ended: int) -> None:
    """Its reader has stopped, so its last lines take it a second."""
    reader, writer = full_pipe()
    code = READER_STOPPED.replace("PIPE", f"/proc/{os.getpid()}/fd/{writer}") + CONSOLE
    job = jobs(f"meet()\nsys.exit({ended})", nproc=1, under=[sys.executable, "-c", code])
    job.spawned.wait_for((job.notes / "here-0-0").exists)
    job.spawned.wait_for(lambda: _has_closed_its_inbox(job))
    job.spawned.send_signal(number)
    job.spawned.wait()
    for end in (reader, writer):
        os.close(end)
    assert "Traceback" not in job.end(ended)


# -- what the driver waits for: signals as events, of which none is lost; and its clock


HANDLED = [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1]


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    box = Inbox()
    box.handle(HANDLED)
    yield box
    box.close()


def send(number: int) -> None:
    os.kill(os.getpid(), number)


def test_a_signal_interrupts_the_wait_for_other_nodes(inbox: Inbox) -> None:
    with pytest.raises(Interrupted) as stop, inbox.interruptible():
        send(signal.SIGHUP)
        pytest.fail("not interrupted")
    assert stop.value.number == signal.SIGHUP
    send(signal.SIGTERM)
    assert inbox.wait(0) == [Signal(signal.SIGTERM)], "outside it is an event again"


def test_a_signal_just_before_interrupts_it_at_once(inbox: Inbox) -> None:
    send(signal.SIGTERM)
    with pytest.raises(Interrupted), inbox.interruptible():
        pytest.fail("not interrupted")


def test_other_events_wait_meanwhile(inbox: Inbox) -> None:
    inbox.post("news")
    with inbox.interruptible():
        pass
    assert inbox.wait(0) == ["news"]


def test_what_is_only_passed_on_is_dropped_while_no_rank_runs(inbox: Inbox) -> None:
    send(signal.SIGUSR1)
    with inbox.interruptible():
        send(signal.SIGUSR1)
    assert inbox.wait(0) == []


# -- the driver's clock --------------------------------------------------------------------------------------

SECOND = 10**9


@pytest.mark.check
@pytest.mark.parametrize(
    ("steps", "passed"),
    [
        # (seconds that the launcher meant to sleep, seconds that went by)
        ([(0.0, 0.5), (1.0, 1.0)], 1.5),
        ([(1.0, 0.2)], 0.2),  # woken by an event
        ([(1.0, 1.9)], 1.9),  # a busy machine
        ([(1.0, 5.0)], 0.0),  # suspended in a sleep
        ([(0.0, 4.0), (1.0, 1.0)], 1.0),  # suspended, or blocked, in an action
    ],
)
def test_clock_leaves_out_time_without_action(steps: list[tuple[float, float]], passed: float) -> None:
    readings = itertools.accumulate((int(took * SECOND) for _, took in steps), initial=100 * SECOND)
    clock = Clock(iter([100 * SECOND, *readings]).__next__)
    began = last = clock.now()
    for wait, _ in steps:
        clock.sleeps(wait)
        now = clock.now()
        assert now >= last
        last = now
    assert last - began == pytest.approx(passed)
