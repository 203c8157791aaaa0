"""The run directory is private and ours, or the launcher says in one line why not."""

from __future__ import annotations

import os
import pwd
import re
import signal
import stat
import tempfile
import threading
from pathlib import Path

import pytest

from holdfast.fault_tolerance.errors import ConfigError
from holdfast.journal import run_dir
from holdfast.journal.run_dir import (
    RunDirError,
    RunDirLock,
    default_run_dir,
    fallback_folder,
    lock_run_dir,
    prepare_run_dir,
)
from tests.processes import Spawner, wait_until


def refusal(path: Path | str) -> str:
    with pytest.raises(RunDirError) as caught:
        prepare_run_dir(str(path), "job", pytest.fail)
    assert isinstance(caught.value, ConfigError)  # so the launcher ends with a usage error
    text = str(caught.value)
    assert "\n" not in text
    assert "--ft-run-dir" in text
    return text


def test_a_new_directory_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "one" / "two"
    assert prepare_run_dir(str(place), "job", pytest.fail) == str(place)
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    monkeypatch.chdir(tmp_path)
    assert prepare_run_dir("one/two", "job", pytest.fail) == str(place)  # and is used again


def test_the_default_is_in_the_user_s_state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert prepare_run_dir(None, "job-1", pytest.fail) == str(tmp_path / "holdfast" / "job-1")
    assert stat.S_IMODE((tmp_path / "holdfast").stat().st_mode) == 0o700
    monkeypatch.setenv("XDG_STATE_HOME", "relative/is/ignored")
    monkeypatch.setenv("HOME", "/home/u")
    assert default_run_dir("job-1") == "/home/u/.local/state/holdfast/job-1"


@pytest.mark.parametrize("run_id", ["../..", "..", ".", "", "a/b", "/etc"])
def test_a_run_id_never_leaves_the_state_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_id: str
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    place = Path(default_run_dir(run_id))
    assert place.parent == tmp_path / "holdfast"
    assert place.name not in (".", "..")


def test_what_is_no_directory_of_ours_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert f"is a symbolic link (to {tmp_path}/real)" in refusal(tmp_path / "link")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    assert "symbolic link" in refusal(tmp_path / "dangling")
    (tmp_path / "file").touch()
    assert "is not a directory" in refusal(tmp_path / "file")
    assert "Not a directory" in refusal(tmp_path / "file" / "below")
    assert "is empty" in refusal("")
    assert "cannot be made" in refusal("/proc/holdfast")
    assert "cannot be made" in refusal("/tmp/" + "x" * 300)


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777, 0o1777])
def test_a_directory_that_others_can_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    place = tmp_path / "open"
    place.mkdir()
    place.chmod(mode)
    assert f"can be written by others (mode {mode:04o})" in refusal(place)
    place.chmod(0o755)
    assert prepare_run_dir(str(place), "job", pytest.fail) == str(place), "others can only read it"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to another user")
def test_another_user_s_directory_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "theirs"
    place.mkdir(mode=0o700)
    os.chown(place, 65534, 65534)
    assert f"belongs to user {pwd.getpwuid(65534).pw_name}, not to root" in refusal(place)
    os.chown(place, 12345, 12345)
    assert "belongs to user 12345, not to root" in refusal(place)


def test_a_place_without_permission_is_refused(tmp_path: Path, spawn: Spawner) -> None:
    tmp_path.chmod(0o500)
    code = (
        "import os, sys; from holdfast.journal.run_dir import prepare_run_dir\n"
        "os.geteuid() or os.setuid(65534)  # nothing is forbidden to root\n"
        "prepare_run_dir(sys.argv[1], 'job', print)"
    )
    process = spawn.python(code, str(tmp_path / "run"))
    assert process.wait() == 1
    assert "cannot be made: Permission denied" in process.err()


def test_a_filesystem_that_does_not_answer_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The stand-in for a mount that hangs: the check itself waits until the test is over."""
    monkeypatch.setattr(run_dir, "ANSWER", 0.05)
    reading, writing = os.pipe()
    monkeypatch.setattr(run_dir, "_prepare", lambda place: os.read(reading, 1))
    assert "its filesystem has not answered for 0.05 s" in refusal(tmp_path / "run")
    os.close(writing)  # lets the thread go
    for thread in threading.enumerate():
        if thread.name == "holdfast-in-time":
            thread.join(10)
    os.close(reading)


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary directory as everybody has it, for a user whose home folder does not exist."""
    place = tmp_path / "shared"
    place.mkdir()
    place.chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "nonexistent"))
    return place


def fallen_back(job: str = "job") -> tuple[str, str]:
    """The place, and the one warning."""
    said: list[str] = []
    place = prepare_run_dir(None, job, said.append)
    (line,) = said
    assert "\n" not in line
    return place, line


def test_without_a_home_it_is_a_private_place_in_the_temporary_directory(shared: Path) -> None:
    place, line = fallen_back()
    assert place == str(shared / f"holdfast-{os.geteuid()}" / "job") == os.path.join(fallback_folder(), "job")
    for level in (Path(place), Path(place).parent):
        assert stat.S_IMODE(level.stat().st_mode) == 0o700
    assert line.startswith("run directory ") and "--ft-run-dir" in line
    assert "there is no home folder" in line and f"is in {place}" in line
    assert not Path(os.environ["HOME"]).exists()
    assert fallen_back()[0] == place  # and is used again


@pytest.mark.parametrize(
    ("name", "value"), [("HOME", "/proc/1"), ("HOME", "odd"), ("XDG_STATE_HOME", "/proc/1/none")]
)
def test_a_default_that_cannot_be_used_is_told_with_its_reason(
    shared: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    place, line = fallen_back("../..")
    assert place.startswith(str(shared / "holdfast-"))
    assert ("has no home folder (HOME)" if value == "odd" else "/proc/1") in line


@pytest.mark.parametrize("level", ["", "job"])
@pytest.mark.parametrize("planted", ["a link", "open to all", "a file", "another user's"])
def test_what_others_planted_is_refused_on_both_levels(
    shared: Path, tmp_path: Path, planted: str, level: str
) -> None:
    place = Path(fallback_folder(), level)
    place.parent.mkdir(mode=0o700, exist_ok=True)
    if planted == "a link":
        place.symlink_to(tmp_path)
    elif planted == "a file":
        place.touch()
    elif planted == "open to all":
        place.mkdir()
        place.chmod(0o777)
    elif os.geteuid():
        pytest.skip("only root can give a directory to another user")
    else:
        place.mkdir(0o700)
        os.chown(place, 65534, 65534)
    with pytest.raises(RunDirError) as caught:
        prepare_run_dir(None, "job", pytest.fail)
    line = str(caught.value)
    assert "there is no home folder" in line and f"; and run directory {place} " in line and "\n" not in line


def test_a_temporary_directory_in_which_others_can_rename_is_refused(shared: Path) -> None:
    shared.chmod(0o777)
    with pytest.raises(RunDirError, match=r"others can replace what is ours \(mode 0777, not sticky\)"):
        prepare_run_dir(None, "job", pytest.fail)
    assert list(shared.iterdir()) == []


def test_no_temporary_directory_either_is_one_line(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/proc/1/none")
    with pytest.raises(
        RunDirError, match=r"no home folder .*; and .*No such file or directory. Give --ft-run"
    ):
        prepare_run_dir(None, "job", pytest.fail)


# -- two launchers in one directory ----------------------------------------------------------------------------


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
    monkeypatch.setattr(run_dir, "LOCK_ANSWER", 0.05)
    over: list[bytes] = []
    monkeypatch.setattr(run_dir, "lock_file", lambda path: over.append(os.read(reading, 1)))
    found, said = taken(tmp_path)
    assert (found.run_dir, said) == (str(tmp_path), [])
    os.close(writing)  # lets the thread go
    wait_until(lambda: over)
    os.close(reading)
