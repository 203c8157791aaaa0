"""Two launchers of one node name in one run directory: each has a journal of its own, and neither waits for a lock."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from holdfast.journal import run_dir as module
from holdfast.journal.run_dir import RunDirLock, lock_run_dir
from tests.processes import Spawner, wait_until

HOLDER = """
import subprocess, sys, time
from holdfast.journal.run_dir import lock_run_dir
held = lock_run_dir(sys.argv[1], "gpu-12", print)
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], stdout=subprocess.DEVNULL)
print("child", child.pid, flush=True)
time.sleep(600)
"""


def taken(run_dir: Path, node: str = "gpu-12") -> tuple[RunDirLock, list[str]]:
    said: list[str] = []
    return lock_run_dir(str(run_dir), node, said.append), said


def test_the_first_has_the_directory_and_the_second_one_below(tmp_path: Path) -> None:
    first, quiet = taken(tmp_path)
    other_node, quiet_too = taken(tmp_path, "gpu-12:77")
    second, said = taken(tmp_path)
    assert (first.run_dir, other_node.run_dir, quiet + quiet_too) == (str(tmp_path), str(tmp_path), [])
    own = tmp_path / f"also-{os.getpid()}"
    assert (second.run_dir, own.stat().st_mode & 0o777) == (str(own), 0o700)
    (line,) = said
    assert line.startswith(f"another launcher of node gpu-12 is at work in {tmp_path}") and str(own) in line
    first.close()
    first.close()
    third, quiet = taken(tmp_path)
    assert (third.run_dir, quiet) == (str(tmp_path), [])
    for each in (other_node, second, third):
        each.close()


def test_a_killed_launcher_holds_nothing_even_if_its_children_live(tmp_path: Path, spawn: Spawner) -> None:
    holder = spawn.python(HOLDER, str(tmp_path))
    child = holder.wait_for(r"^child (\d+)")
    assert isinstance(child, re.Match)
    second, said = taken(tmp_path)
    assert len(said) == 1
    second.close()
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    after, said = taken(tmp_path)
    assert (after.run_dir, said) == (str(tmp_path), [])
    after.close()
    os.kill(int(child[1]), signal.SIGKILL)


def test_a_sub_directory_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    first, _ = taken(tmp_path)
    (tmp_path / f"also-{os.getpid()}").touch()
    second, said = taken(tmp_path)
    assert second.run_dir == str(tmp_path)
    assert len(said) == 1 and "both jobs write into one journal" in said[0]
    first.close()
    second.close()


@pytest.mark.parametrize("obstacle", ["a folder", "a link", "no directory"])
def test_without_a_lock_the_job_goes_on(tmp_path: Path, obstacle: str) -> None:
    lock = tmp_path / ".journal-gpu-12.jsonl.lock"
    if obstacle == "a folder":
        lock.mkdir()
    elif obstacle == "a link":
        lock.symlink_to(tmp_path / "elsewhere")
    place = tmp_path / "gone" if obstacle == "no directory" else tmp_path
    found, said = taken(place)
    assert (found.run_dir, said) == (str(place), [])
    assert not (tmp_path / "elsewhere").exists()
    found.close()


def test_a_filesystem_that_hangs_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in for a mount that hangs: the lock itself waits until the test is over."""
    reading, writing = os.pipe()
    monkeypatch.setattr(module, "LOCK_ANSWER", 0.05)
    over: list[bytes] = []
    monkeypatch.setattr(module, "_lock", lambda path: over.append(os.read(reading, 1)))
    found, said = taken(tmp_path)
    assert (found.run_dir, said) == (str(tmp_path), [])
    os.close(writing)  # lets the thread go
    wait_until(lambda: over)
    os.close(reading)
