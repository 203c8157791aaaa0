"""A whole job seen from outside: its monitor, its ranks, its boards; and its steps, as its ranks measured them."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from holdfast.fault_tolerance.processes import proc
from tests.jobs import Job
from tests.processes import alive, wait_until

CLIENT = """
from holdfast.fault_tolerance import RankMonitorClient
client = RankMonitorClient()
"""

WAYS_TO_HANG = (
    CLIENT
    + """
def heartbeat():
    client.heartbeat(step=7)
    wait()

def section():
    client.start_section("step")
    wait()

def outer():
    client.start_section("epoch")
    while True:
        with client.section("step"):
            time.sleep(0.05)

def out_of_section():
    with client.section("step"):
        pass
    wait()

def stopped():
    client.send_heartbeat()
    kill_me(signal.SIGSTOP)
"""
)

STEPS = (
    CLIENT
    + """
def train(seconds, step=0.02):
    \"\"\"Steps for this long; returns the longest call of the client and the longest step, in seconds.\"\"\"
    worst_call = worst_step = 0.0
    end = time.monotonic() + seconds
    before = time.monotonic()
    while before < end:
        client.send_heartbeat()
        client.start_section("step")
        called = time.monotonic()
        time.sleep(step)
        slept = time.monotonic()
        client.end_section("step")
        after = time.monotonic()
        worst_call = max(worst_call, called - before, after - slept)
        worst_step = max(worst_step, after - before)
        before = after
    return worst_call, worst_step
"""
)


def monitors(launcher: int) -> list[int]:
    """The monitor processes of a launcher, also those that are not its children any more."""
    return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _monitors_for(pid, launcher)]


def _monitors_for(pid: int, launcher: int) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return b"fault_tolerance.monitor.main" in words and b'"launcher_pid": %d,' % launcher in words


def monitor(job: Job) -> int:
    """The one monitor that works now."""

    def found() -> int:
        running = [pid for pid in monitors(job.pid) if alive(pid)]
        return running[0] if len(running) == 1 else 0

    return wait_until(found, what="there is exactly one monitor")


def board_directory(job: Job) -> Path:
    """Where the job's boards are, by the command line of its monitor."""
    words = Path(f"/proc/{monitor(job)}/cmdline").read_text()
    return Path(words.split('"directory": "')[1].split('"')[0])


def ranks(job: Job, cycle: int = 0) -> list[int]:
    """The pids of the ranks of a cycle, by rank."""
    started = {
        record["rank"]: record["pid"] for record in job.journal("rank_start") if record["cycle"] == cycle
    }
    return [started[rank] for rank in sorted(started)]


def stop(*pids: int) -> None:
    """SIGSTOP, and wait until they are suspended."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    for pid in pids:
        wait_until(lambda pid=pid: _state(pid) == "T", what=f"{pid} stopped")


def go_on(*pids: int) -> None:
    """SIGCONT, in this order."""
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


def _state(pid: int) -> str:
    found = proc.stat(pid)
    return found.state if found else ""


def wait_gone(pids: list[int], ceiling: float, what: str) -> None:
    """None of these processes runs any more, a zombie or not."""
    wait_until(lambda: not any(map(alive, pids)), ceiling, what)


def tree(job: Job) -> list[int]:
    """The launcher and everything below it."""
    top = psutil.Process(job.pid)
    return [top.pid, *(child.pid for child in top.children(recursive=True))]


# -- freezing processes by a cgroup, where this user may make one --------------------------------------------

V1 = Path("/sys/fs/cgroup/freezer")
V2 = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))


class Freezer:
    """A cgroup of its own; `seize` puts processes into it, `freeze` and `thaw` mean all of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.is_v1 = folder.parent == V1  # there a frozen process does not even die of SIGKILL

    def seize(self, *pids: int) -> None:
        for pid in pids:
            Path(self._folder, "cgroup.procs").write_text(str(pid))

    def freeze(self) -> None:
        if self.is_v1:
            Path(self._folder, "freezer.state").write_text("FROZEN")
            state = Path(self._folder, "freezer.state")
            wait_until(lambda: state.read_text().strip() == "FROZEN", what="the cgroup froze")
        else:
            Path(self._folder, "cgroup.freeze").write_text("1")
            events = Path(self._folder, "cgroup.events")
            wait_until(lambda: "frozen 1" in events.read_text(), what="the cgroup froze")

    def thaw(self) -> None:
        if self.is_v1:
            Path(self._folder, "freezer.state").write_text("THAWED")
        else:
            Path(self._folder, "cgroup.freeze").write_text("0")

    def close(self) -> None:
        self.thaw()
        parent = self._folder.parent / "cgroup.procs"
        for pid in Path(self._folder, "cgroup.procs").read_text().split():
            parent.write_text(pid)
        self._folder.rmdir()


def _make() -> Freezer | None:
    for root, switch in ((V1, "freezer.state"), *((root, "cgroup.freeze") for root in V2)):
        folder = root / f"holdfast-test-{uuid.uuid4().hex[:8]}"
        try:
            folder.mkdir()
        except OSError:
            continue
        if os.access(folder / switch, os.W_OK):
            return Freezer(folder)
        folder.rmdir()
    return None


@pytest.fixture
def freezer() -> Iterator[Freezer]:
    """A cgroup that can be frozen; the test is skipped where there can be none."""
    found = _make()
    if found is None:
        pytest.skip("no cgroup freezer that this user may write")
    yield found
    wait_until(lambda: _closed(found), what="the cgroup's processes left it")


def _closed(freezer: Freezer) -> bool:
    try:
        freezer.close()
    except OSError:  # a process that ends just now
        return False
    return True
