"""Processes that the kernel killed because memory ran out, for real in a control group where one can be made."""

from __future__ import annotations

import os
import signal
import time
import uuid
from pathlib import Path

import pytest

from holdfast.fault_tolerance.processes import proc
from holdfast.incidents.capture.capture import gather
from holdfast.incidents.capture.host import OomWatch
from holdfast.incidents.capture.procfs import link
from holdfast.incidents.capture.rank_probe import LocalRank
from holdfast.incidents.evidence import NodeFaultKind
from tests.memory_group import group as group
from tests.memory_group import set_limit
from tests.processes import Spawned, Spawner, wait_until

LIMIT = 64 << 20
EATS = """
import sys
sys.stdin.read(0)
with open(sys.argv[1]) as told: told.read()
eaten = []
while True: eaten.append(bytearray(b"x" * (1 << 20)))
"""


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "go")
    return tmp_path / "go"


@pytest.fixture
def eater(spawn: Spawner, group: Path, fifo: Path) -> Spawned:
    """A process that uses up the memory of its group, once the FIFO is written to."""
    process = spawn.python(EATS, str(fifo))
    set_limit(group, LIMIT)
    (group / "cgroup.procs").write_text(str(process.pid))
    return process


def test_a_process_that_was_ended_for_want_of_memory(eater: Spawned, group: Path, fifo: Path) -> None:
    watch = OomWatch(f"/proc/{eater.pid}")
    try:
        assert watch.killed(eater.pid) == "" and watch.counted() == "" and watch.facts()[0] == ()
        fifo.write_text("go")
        assert eater.wait() == -signal.SIGKILL
        counted = watch.counted()
        assert f"{group}/memory." in counted and "1 process killed because memory ran out" in counted
        assert watch.killed(eater.pid)
        assert {fault.kind for fault in watch.facts()[0]} == {NodeFaultKind.OOM_KILL}
        if not watch.refused and link("/proc/self/ns/pid") == "pid:[4026531836]":
            assert f"Killed process {eater.pid} (python" in watch.killed(eater.pid)
            assert watch.killed(os.getpid()) == "", "the log names another one"
    finally:
        watch.close()


def test_a_rank_that_waits_for_memory(eater: Spawned, group: Path, fifo: Path) -> None:
    control = group / "memory.oom_control"
    if not control.exists():
        pytest.skip("version 2 of control groups does not let a process wait for memory")
    control.write_text("1")
    fifo.write_text("go")
    wait_until(lambda: "under_oom 1" in control.read_text(), what="it waits for memory")
    rank = LocalRank(0, 0, eater.pid, proc.start_time(eater.pid) or 1, "node-a", None, "")
    began = time.monotonic()
    (found,) = gather([rank], began + 1.5, ask=True)
    assert time.monotonic() - began < 10
    assert found.process and found.process.memory > 1 << 20
    eater.kill()


def test_a_plain_sigkill_is_no_want_of_memory(spawn: Spawner) -> None:
    rank = spawn(["sleep", "600"])
    watch = OomWatch(f"/proc/{rank.pid}")
    rank.kill()
    assert watch.killed(rank.pid) == ""
    watch.close()
    watch.close()


def test_a_log_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    watch = OomWatch("/proc/0", str(tmp_path / "none"))
    assert watch.refused and watch.lines() == ()
    assert watch.killed(1) == "" and watch.facts() == ((), (watch.refused,))
    watch.close()


@pytest.mark.skipif(
    not os.access("/dev/kmsg", os.R_OK | os.W_OK), reason="the kernel's log is not ours to write"
)
def test_the_log_tells_what_came_after_it_was_opened() -> None:
    early, late = uuid.uuid4().hex, uuid.uuid4().hex
    Path("/dev/kmsg").write_text(f"holdfast-test Xid {early} blocked for more than 0 seconds\n")
    log = OomWatch()
    if log.refused:
        pytest.skip(log.refused)
    Path("/dev/kmsg").write_text(f"holdfast-test nothing {late}\n")
    Path("/dev/kmsg").write_text(f"holdfast-test {late} blocked for more than 0 seconds\n")
    found = [line for line in log.lines() if "holdfast-test" in line]
    again = [line for line in log.lines() if "holdfast-test" in line]
    log.close()
    assert found == again == [f"holdfast-test {late} blocked for more than 0 seconds"]
