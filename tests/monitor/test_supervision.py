"""The monitor dies or is stopped, the job is frozen: no healthy rank is killed, and hangs are still found."""

from __future__ import annotations

import os
import re
import signal
import statistics
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from holdfast.fault_tolerance.board import Limits
from holdfast.fault_tolerance.launcher import monitor_keeper
from holdfast.fault_tolerance.monitor.control import ControlPage
from tests.jobs import Job, Jobs
from tests.monitor.job import STEPS, Freezer, board_directory, go_on, monitor, ranks, stop, tree, wait_gone
from tests.monitor.node import Node, few_descriptors, thaw
from tests.monitor.test_hangs import heartbeats
from tests.processes import wait_until

LIMIT = 0.5


def test_a_superseded_monitor_that_wakes_up_leaves_and_kills_nobody(node: Node) -> None:
    (rank,) = node.start(Limits(subsequent=LIMIT))
    node.looks(1)
    old = node.keeper._process
    assert old is not None
    old.send_signal(signal.SIGSTOP)
    heartbeats(rank.hand)  # no monitor sees this limit pass
    node.control.epoch += 1
    time.sleep(LIMIT)
    thaw(old.pid)
    assert old.wait(60) == 0
    assert rank.lives
    assert os.path.isdir(node.folder), "only the launcher's end makes a monitor clean up"


def test_the_launcher_itself_stood_still_and_distrusts_its_own_observation(node: Node) -> None:
    node.start(Limits(subsequent=60.0))
    node.looks(1)
    node.keeper.check(time.monotonic())
    before = node.keeper.pid
    os.kill(before, signal.SIGSTOP)
    time.sleep(monitor_keeper.SILENT + 0.5)  # the launcher sleeps as well
    node.keeper.check(time.monotonic())
    assert node.keeper.pid == before
    thaw(before)
    node.looks(1)
    assert node.replaced == []


def test_a_monitor_that_sigkill_cannot_end_holds_nobody_up(node: Node, freezer: Freezer) -> None:
    if not freezer.is_v1:
        pytest.skip("a process frozen by cgroup v2 dies of SIGKILL")
    (rank,) = node.start(Limits(subsequent=LIMIT))
    node.looks(1)
    frozen = node.keeper.pid
    freezer.seize(frozen)
    freezer.freeze()
    node.until(lambda: node.replaced, "the frozen monitor was not replaced")
    heartbeats(rank.hand)
    assert node.hear("verdict")["reason"] == "heartbeat"
    freezer.thaw()
    wait_until(lambda: _reaped(frozen), what="the frozen monitor ended")


def test_when_no_monitor_can_run_it_is_said_once_and_tried_ever_more_rarely(
    node: Node, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor_keeper, "LONGEST_PAUSE", 0.5)
    (rank,) = node.start(Limits(subsequent=LIMIT))
    node.looks(1)
    page = Path(node.folder, "control")
    page.rename(page.with_name("elsewhere"))
    os.kill(node.keeper.pid, signal.SIGKILL)
    node.until(lambda: len(node.replaced) >= 6, "it was not tried again")
    said = [record.getMessage() for record in caplog.records if record.name == "holdfast.launcher"]
    assert len(said) == 1
    assert "the monitor keeps dying (it ended with status 1)" in said[0]
    assert "training continues, hangs are not detected" in said[0]
    page.with_name("elsewhere").rename(page)
    heartbeats(rank.hand)
    assert node.hear("verdict")["reason"] == "heartbeat"


def test_a_launcher_without_free_descriptors_tries_again_and_loses_none(node: Node) -> None:
    ranks = node.start(Limits(subsequent=60.0))
    node.looks(1)
    before = len(os.listdir("/proc/self/fd"))
    for has_descriptors in (True, False):
        limit = nullcontext() if has_descriptors else few_descriptors(3)
        os.kill(node.keeper.pid, signal.SIGKILL)
        wait_until(lambda: node.keeper._process is not None and node.keeper._process.poll() is not None)
        with limit:
            node.keeper.check(time.monotonic())
            assert bool(node.keeper.pid) is has_descriptors
        node.until(lambda: node.keeper.pid, "no monitor was started once there were descriptors")
        node.looks(1)
    assert len(os.listdir("/proc/self/fd")) == before
    assert all(rank.lives for rank in ranks)


def _reaped(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG) != (0, 0)
    except ChildProcessError:  # subprocess has collected it by the way
        return True


# -- whole jobs, under the real launcher

# The ranks train in stretches of half a second, and say after each the worst that they met in it, in milliseconds.
TRAIN = (
    STEPS
    + """
client.init_workload_monitoring()
meet()
while not os.path.exists(os.environ["NOTES"] + "/hang"):
    call, step = train(0.5)
    say(f"worst {call * 1000:.1f} {step * 1000:.1f}")
if CYCLE == 0:
    wait() if RANK == 1 else train(999)
client.shutdown_workload_monitoring()
"""
)
LIMITS = (
    *("--ft-rank-section-timeouts", "step:4", "--ft-rank-out-of-section-timeout", "4"),
    *("--ft-rank-heartbeat-timeout", "4", "--max-restarts", "1"),
)
FROZEN = 5.5
"""Seconds: longer than these."""


def worst(job: Job) -> list[tuple[float, float]]:
    """(call, step) in milliseconds, of each stretch that was printed so far."""
    return [tuple(map(float, line.split()[-2:])) for line in job.lines("worst")]  # type: ignore[misc]


def hang_now(job: Job) -> None:
    (job.notes / "hang").touch()


@pytest.mark.slow
def test_monitor_lost_five_times_and_launcher_stopped_hang_is_found(jobs: Jobs) -> None:
    """Training never notices; and the hang is acted on while the launcher is stopped, and explained afterwards."""
    job = jobs(TRAIN, *LIMITS)
    job.hear("worst", ranks=[0, 1])
    wait_until(lambda: len(worst(job)) >= 8, what="some undisturbed steps")
    undisturbed = worst(job)
    page = ControlPage(str(board_directory(job)))
    for number in range(5):
        scans, pid = page.tick, monitor(job)
        wait_until(lambda scans=scans: page.tick > scans, what="the monitor scans")
        os.kill(pid, signal.SIGSTOP if number == 0 else signal.SIGKILL)
        wait_gone([pid], 60, f"monitor {pid} replaced")
    page.close()
    wait_until(lambda: len(worst(job)) >= len(undisturbed) + 8, what="some disturbed steps")
    disturbed = worst(job)[len(undisturbed) :]
    assert monitor(job)
    hung = ranks(job)[1]
    stop(job.pid)
    hang_now(job)
    wait_gone([hung], 60, "the monitor ended the hung rank")
    go_on(job.pid)
    said = job.end(0)
    assert "HANG: rank 1 " in said
    assert [(found["cycle"], found["rank"]) for found in job.journal("verdict")] == [(0, 1)]
    assert [found["restarts_used"] for found in job.journal("restart")] == [1]
    replaced = [found["reason"] for found in job.journal("monitor_replaced")]
    assert len(replaced) >= 5
    assert all(re.fullmatch(r"monitor \d+: it .*; monitor \d+ takes over", each) for each in replaced)
    assert "Error" not in job.spawned.output()
    # A client that waited for a stopped monitor would have waited for three seconds.
    assert max(call for call, _ in disturbed) < 2500
    usual = statistics.median(step for _, step in undisturbed)
    # Wide, because the machine may be busier than before; the benchmark has the narrow figures.
    assert statistics.median(step for _, step in disturbed) < 5 * usual + 100


@pytest.mark.slow
def test_a_job_frozen_past_its_limits_continues_once_it_is_thawed(jobs: Jobs, freezer: Freezer) -> None:
    job = jobs(TRAIN, *LIMITS)
    job.hear("worst", ranks=[0, 1])
    watcher, both = monitor(job), ranks(job)
    for order in ([job.pid, watcher, *both], [watcher, both[1], job.pid, both[0]]):
        stop(*both, watcher, job.pid)
        time.sleep(FROZEN)  # the node is suspended
        go_on(*order)
        _trains(job)
    freezer.seize(*tree(job))
    freezer.freeze()
    time.sleep(FROZEN)
    freezer.thaw()
    _trains(job)
    assert monitor(job) == watcher, "nothing was a reason to replace it"
    assert job.journal("verdict", "restart", "monitor_replaced") == []
    # The launcher wakes up, finds its monitor still stopped, and starts one that takes the freeze into account.
    stop(*both, watcher, job.pid)
    time.sleep(FROZEN)
    go_on(job.pid, *both)
    wait_gone([watcher], 60, "the stopped monitor is replaced")
    _trains(job)
    assert job.journal("verdict") == []
    hang_now(job)
    job.wait_for("HANG: rank 1 ")
    job.end(0)
    assert [(found["cycle"], found["rank"]) for found in job.journal("verdict")] == [(0, 1)]


def _trains(job: Job) -> None:
    reported = len(worst(job))
    wait_until(lambda: len(worst(job)) >= reported + 6, what="the job trains")


@pytest.mark.slow
def test_a_rank_that_not_even_sigkill_ends_is_named_and_the_node_leaves(jobs: Jobs, freezer: Freezer) -> None:
    """As in a disk wait that never ends: nothing can be started beside it, so waiting for it cannot help."""
    if not freezer.is_v1:
        pytest.skip("a process frozen by cgroup v2 dies of SIGKILL")
    job = jobs(TRAIN, *LIMITS, "--workers-stop-timeout", "1")
    job.hear("worst", ranks=[0, 1])
    stuck = ranks(job)[1]
    freezer.seize(stuck)
    freezer.freeze()
    job.wait_for("HANG: rank 1 ")
    said = job.end(1)
    assert f"pid {stuck} (state D" in said
    assert "did not end even by SIGKILL" in said
