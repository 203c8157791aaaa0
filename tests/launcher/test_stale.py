"""What a launcher and a monitor that were killed at once leave behind is removed by the next launcher."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil

from holdfast.fault_tolerance.launcher.ranks import boards
from tests.launcher.conftest import Jobs
from tests.processes import alive, wait_until


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
    assert boards.remove_stale(str(tmp_path)) == [str(dead)]
    assert living.exists() and other.exists() and unowned.exists() and not dead.exists()
    os.close(held)
    assert boards.remove_stale(str(tmp_path)) == [str(living)]


def test_a_link_is_left_alone(tmp_path: Path) -> None:
    real = directory(tmp_path, "real")
    os.close(boards.lock_directory(real))
    (tmp_path / "holdfast-link").symlink_to(real)
    assert boards.remove_stale(str(tmp_path)) == [] and real.exists()


def test_no_folder_at_all(tmp_path: Path) -> None:
    assert boards.remove_stale(str(tmp_path / "nowhere")) == []


def test_launcher_and_monitor_killed_at_once(jobs: Jobs) -> None:
    text = "say('board', os.environ['FT_RANK_MONITOR_IPC_SOCKET'])\nwait()"
    job = jobs(text, nproc=1)
    left = Path(job.hear(r"board (\S+)", ranks=[0])[0]).parents[1]
    family = psutil.Process(job.pid).children(recursive=True)
    for process in (psutil.Process(job.pid), *family):
        process.send_signal(signal.SIGSTOP)  # so that none sees another one die
    for process in (*family, psutil.Process(job.pid)):
        process.kill()
    job.spawned.wait()
    wait_until(lambda: not any(alive(process.pid) for process in family))
    assert left.exists()
    jobs("pass", nproc=1).end(0)
    assert not left.exists()
