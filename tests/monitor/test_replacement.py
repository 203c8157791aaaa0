"""The monitor may die or stop at any time: another one carries on, and the old one never acts again."""

from __future__ import annotations

import os
import resource
import signal
import time
from pathlib import Path

import pytest

from holdfast.fault_tolerance.board import Limits
from holdfast.fault_tolerance.launcher import monitor_keeper
from tests.processes import wait_until

from .job import Freezer
from .node import Node, thaw
from .test_hangs import heartbeats

LIMIT = 0.5


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_another_monitor_carries_on_and_still_finds_the_hang(node: Node, number: signal.Signals) -> None:
    (rank,) = node.start(Limits(subsequent=LIMIT))
    node.looks(1)
    first = node.keeper.pid
    os.kill(first, number)
    heartbeats(rank.hand)
    node.until(lambda: node.replaced, "the monitor was not replaced")
    assert node.hear("verdict")["reason"] == "heartbeat"
    assert rank.process.wait() == -signal.SIGKILL
    assert f"monitor {first}: it " in node.replaced[0]
    assert f"; monitor {node.keeper.pid} takes over" in node.replaced[0]
    wait_until(lambda: not Path(f"/proc/{first}").exists(), what="the stopped monitor was ended")


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


def test_a_launcher_without_free_descriptors_goes_on_and_tries_again(
    node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    node.start(Limits(subsequent=60.0))
    node.looks(1)
    os.kill(node.keeper.pid, signal.SIGKILL)
    wait_until(lambda: node.keeper._process is not None and node.keeper._process.poll() is not None)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        node.keeper.check(time.monotonic())
        assert node.keeper.pid == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    node.until(lambda: node.keeper.pid, "no monitor was started once there were descriptors")
    node.looks(1)


def _reaped(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG) != (0, 0)
    except ChildProcessError:  # subprocess has collected it by the way
        return True


def test_a_job_whose_monitor_is_replaced_again_and_again_keeps_its_descriptors(node: Node) -> None:
    ranks = node.start(Limits(subsequent=60.0))
    node.looks(1)
    before = len(os.listdir("/proc/self/fd"))
    for number in range(1, 3):
        os.kill(node.keeper.pid, signal.SIGKILL)
        wait_until(lambda: node.keeper._process is not None and node.keeper._process.poll() is not None)
        node.keeper.check(time.monotonic())
        node.until(lambda wanted=number: len(node.replaced) == wanted, "the monitor was not replaced")
        node.looks(1)
    assert len(os.listdir("/proc/self/fd")) == before
    assert all(rank.lives for rank in ranks)
