"""The leak check finds each kind of thing that a test can leave behind, and nothing else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import psutil
import pytest

from tests import leaks
from tests.processes import Spawner, alive, wait_until


def test_nothing_left_is_no_leak() -> None:
    assert not leaks.since(leaks.take(), grace=0)


def test_a_running_child_is_found_and_ended() -> None:
    before = leaks.take()
    child = subprocess.Popen(["sleep", "600"])
    left = leaks.since(before, grace=0)
    assert [process.pid for process in left.processes] == [child.pid]
    assert "sleep 600" in "\n".join(left.lines())
    leaks.clear(left)
    assert not psutil.pid_exists(child.pid)
    child.wait()  # reaped already


def test_an_orphan_in_a_session_of_its_own_is_found(tmp_path: Path) -> None:
    before = leaks.take()
    note = tmp_path / "pid"
    code = "import subprocess, sys; print(subprocess.Popen(['sleep', '600'], start_new_session=True).pid)"
    with note.open("wb") as out:
        subprocess.run([sys.executable, "-c", code], stdout=out, check=True, timeout=120)
    orphan = int(note.read_text())
    left = leaks.since(before, grace=0)
    leaks.clear(left)
    assert [process.pid for process in left.processes] == [orphan]
    wait_until(lambda: not alive(orphan), what="the orphan's end")


def test_a_thread_is_found() -> None:
    before = leaks.take()
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="forgotten", daemon=True)
    thread.start()
    left = leaks.since(before, grace=0)
    stop.set()
    thread.join()
    assert list(left.lines()) == ["thread forgotten (daemon)"]


def test_a_descriptor_is_found() -> None:
    before = leaks.take()
    reading, writing = os.pipe()
    left = leaks.since(before, grace=0)
    os.close(reading)
    os.close(writing)
    assert [number for number, _ in left.descriptors] == sorted([reading, writing])


def test_files_in_shared_memory_and_tmp_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaks, "_another_session", lambda: False)  # another may run beside this one
    before = leaks.take()
    paths = [Path(folder, "hf-test-of-leaks") for folder in (leaks.SHM, tempfile.gettempdir())]
    for path in paths:
        path.touch()
    left = leaks.since(before, grace=0)
    for path in paths:
        path.unlink()
    assert left.files == tuple(sorted(paths))


def test_another_session_is_noticed(spawn: Spawner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(leaks.OWN, raising=False)  # with a /dev/shm of our own no session shares it
    other = spawn(["sleep", "600"], env={leaks.MARK: "other"})
    wait_until(lambda: psutil.Process(other.pid).name() == "sleep")
    assert leaks._another_session()


def test_a_file_held_by_a_foreign_process_is_not_ours(
    spawn: Spawner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leaks, "_another_session", lambda: False)
    before = leaks.take()
    # Without the mark and with another parent it is, for the leak check, another user's session.
    code = (
        "import tempfile, time; f = tempfile.NamedTemporaryFile(dir='/dev/shm'); "
        "print(f.name, flush=True); time.sleep(600)"
    )
    launcher = (
        "import subprocess, sys; "
        f"p = subprocess.Popen([sys.executable, '-c', {code!r}], start_new_session=True); "
        "print(p.pid, flush=True)"
    )
    started = spawn.python(launcher, env={leaks.MARK: None})
    foreign = psutil.Process(int(started.wait_for(r"^\d+$").group()))
    path = Path(wait_until(lambda: re.search(r"/dev/shm/\S+", started.out())).group())
    started.wait()
    left = leaks.since(before, grace=0)
    foreign.terminate()
    wait_until(lambda: not alive(foreign.pid), what="the foreign process's end")
    path.unlink()  # SIGTERM runs no clean-up
    assert left.files == ()


def test_the_private_places_are_short_and_ours() -> None:
    assert len(tempfile.gettempdir()) < 40
    assert os.environ["XDG_STATE_HOME"].startswith(str(Path(tempfile.gettempdir()).parent))
