"""Processes as the kernel shows them: parents, identities, and that a signal reaches the process meant or none."""

from __future__ import annotations

import os
import re
import shutil
import signal
from pathlib import Path

import pytest

from holdfast.fault_tolerance.processes import kill, proc
from tests.processes import Spawner, wait_until

from .node import identity, state, stubborn, victim

NOBODY = 2**22 + 1  # beyond the largest pid that Linux gives


def stat(pid: int, ppid: int) -> proc.Stat:
    return proc.Stat(pid, "S", ppid, 1, 0, pid, 0)


def test_a_process_with_a_name_that_looks_like_its_state_is_read_rightly(
    spawn: Spawner, tmp_path: Path
) -> None:
    program = tmp_path / "a) Z 1 ("
    sleep = shutil.which("sleep")
    assert sleep is not None
    shutil.copy(sleep, program)
    process = spawn([program, "999"])
    wait_until(lambda: b"a) Z 1 (" in Path(f"/proc/{process.pid}/stat").read_bytes())
    found = proc.stat(process.pid)
    assert found is not None
    assert (found.pid, found.ppid, found.session) == (process.pid, os.getpid(), process.pid)
    assert found.state in "SRD"


def test_nobody_is_told_as_nobody() -> None:
    assert proc.stat(NOBODY) is None
    assert proc.start_time(NOBODY) is None
    assert proc.wait_channel(NOBODY) == ""
    assert not proc.has_environment(NOBODY, b"")
    assert not proc.is_running(NOBODY, 1)


@pytest.mark.parametrize(
    ("roots", "expected"),
    [({1}, {2, 3, 4, 5}), ({2}, {3, 4}), ({5}, set()), ({2, 3}, {4}), ({NOBODY}, set())],
)
def test_descendants(roots: set[int], expected: set[int]) -> None:
    tree = {pid: stat(pid, ppid) for pid, ppid in [(2, 1), (3, 2), (4, 3), (5, 1)]}
    assert proc.descendants(roots, tree) == expected


def test_a_signal_reaches_the_one_that_is_meant(spawn: Spawner) -> None:
    process = victim(spawn)
    who = identity(process)
    assert kill.send_verified(who.pid, who.start_time, signal.SIGTERM)
    assert process.wait() == -signal.SIGTERM


def test_a_signal_for_a_process_that_is_gone_reaches_nobody(spawn: Spawner) -> None:
    process = victim(spawn)
    who = identity(process)
    with kill.verified(who.pid, who.start_time) as handle:
        assert handle is not None
        process.kill()
        assert not kill.send(handle, signal.SIGTERM)
    assert not kill.send_verified(who.pid, who.start_time, signal.SIGTERM)


def test_a_zombie_has_ended(spawn: Spawner) -> None:
    process = spawn(["true"])
    wait_until(lambda: state(process) == "Z")
    who = identity(process)
    assert not proc.is_running(who.pid, who.start_time)


def test_what_is_asked_and_does_not_go_is_killed(spawn: Spawner) -> None:
    polite, deaf, stopped = victim(spawn), stubborn(spawn), victim(spawn)
    stopped.send_signal(signal.SIGSTOP)
    everybody = {each.pid: identity(each).start_time for each in (polite, deaf, stopped)}

    def running() -> dict[int, int]:
        return {pid: start for pid, start in everybody.items() if proc.is_running(pid, start)}

    asked, left = kill.end_all(running, grace=2.0, limit=60.0)
    assert (asked, left) == (set(everybody), set())
    assert polite.wait() == -signal.SIGTERM
    assert stopped.wait() == -signal.SIGTERM
    assert deaf.wait() == -signal.SIGKILL


def test_who_does_not_go_within_the_limit_is_named() -> None:
    asked, left = kill.end_all(lambda: {NOBODY: 1}, grace=0.0, limit=0.05)
    assert asked == left == {NOBODY}


def test_the_environment_marks_who_belongs_to_a_job(spawn: Spawner) -> None:
    ours, other = spawn(["sleep", "999"], env={"HOLDFAST_PROBE": "/dev/shm/probe-1/x"}), victim(spawn)
    found = kill.marked(b"/dev/shm/probe-1/", set())
    assert found == {ours.pid: identity(ours).start_time}
    assert kill.marked(b"/dev/shm/probe-1/", {ours.pid}) == {}
    assert other.returncode is None


def test_a_session_outlives_its_leader_and_is_not_taken_for_anothers(spawn: Spawner) -> None:
    leader = spawn.python(
        "import subprocess; print(subprocess.Popen(['sleep', '999']).pid, flush=True); input()"
    )
    match = leader.wait_for(r"^(\d+)$")
    assert isinstance(match, re.Match)
    child = int(match.group(1))
    started = proc.start_time(leader.pid) or 0
    leader.wait()
    found = kill.in_sessions({leader.pid: started}, set())
    assert found == {child: proc.start_time(child)}
    assert kill.in_sessions({leader.pid: started}, {child}) == {}
    os.kill(child, signal.SIGKILL)


def test_a_recycled_leader_is_no_leader(spawn: Spawner) -> None:
    process = victim(spawn)
    assert kill.in_sessions({process.pid: identity(process).start_time - 1}, set()) == {}
