"""What ranks were like is known after a restart; and the file never costs more than its content."""

from __future__ import annotations

import io
import math
import os
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.straggler import state_file
from holdfast.straggler.state_file import VERSION, StateFile, as_bytes
from holdfast.straggler.window import Array
from tests.processes import Spawner, wait_until

NODES = ["n0", "n0", "n1", "n1"]
LEVELS = {"gpu": np.array([0.5, math.nan, 0.25, 1.0]), "section a/b": np.zeros(4)}


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is read, however long the thread that reads it waits for a core."""
    monkeypatch.setattr(state_file, "ANSWER", 60.0)


def numbered(number: float, names: int = 1) -> dict[str, Array]:
    return {f"section {name}": np.full(4, number) for name in range(names)}


def saved(path: Path, levels: dict[str, Array] = LEVELS, nodes: list[str] = NODES) -> None:
    file = StateFile(str(path))
    file.save(levels, nodes)
    file.close(timeout=30)


def load(path: Path, nodes: list[str] = NODES) -> dict[str, Array] | None:
    file = StateFile(str(path))
    try:
        found = file.load(nodes)
        assert found is None or found[0] == NODES
        return found and found[1]
    finally:
        file.close()


def number_in(path: Path) -> float:
    found = load(path)
    assert found is not None
    return float(found["section 0"][0])


@pytest.mark.usefixtures("unhurried")
def test_what_was_saved_is_loaded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "folder" / "state.json"
    assert load(path) is None
    saved(path)
    path.write_bytes(b"")
    assert load(path) is None
    saved(path)
    found = load(path)
    assert found is not None and list(found) == list(LEVELS)
    np.testing.assert_array_equal(list(found.values()), list(LEVELS.values()))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [entry.name for entry in path.parent.iterdir()] == ["state.json"]
    assert caplog.messages == []


def test_a_rank_on_another_node_does_not_spoil_the_others(tmp_path: Path) -> None:
    saved(tmp_path / "s")
    assert load(tmp_path / "s", ["n0", "n0", "spare", "n1"]) is not None


def archive(**arrays: Any) -> bytes:
    content = io.BytesIO()
    np.savez(content, **arrays)
    return content.getvalue()


def of_version(version: int, nodes: list[str]) -> bytes:
    return archive(version=version, nodes=nodes, names=["gpu"], levels=np.zeros((1, len(nodes))))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (of_version(VERSION + 1, NODES), f"it is of version {VERSION + 1}, not {VERSION}"),
        (of_version(VERSION, ["n0"]), "it is of a job with 1 ranks, not 4"),
        (of_version(VERSION, ["x", "x", "y", "y"]), "it is of a job on other nodes (x, …; now n0, …)"),
    ],
    ids=range(3),
)
def test_a_file_that_does_not_fit_is_one_warning_and_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes, says: str
) -> None:
    path = tmp_path / "state.npz"
    path.write_bytes(content)
    file = StateFile(str(path))
    assert file.load(NODES) is None
    (line,) = caplog.messages
    assert line.startswith(f"straggler state file {path}: {says}. ") and "replaces the file" in line
    assert path.read_bytes() == content
    for number in range(3):
        file.save(numbered(number), NODES)
        wait_until(lambda: file._is_idle(0.0))
    file.close()
    assert number_in(path) == 2
    assert os.listdir(tmp_path) == ["state.npz"]
    assert len(caplog.messages) == 1


def test_a_state_that_no_file_can_hold_is_one_warning_and_the_next_is_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "state"
    file = StateFile(str(path))
    for _ in range(2):
        file.save({"a": np.zeros(4), "b": np.zeros(3)}, NODES)
        wait_until(lambda: file._is_idle(0.0))
    file.save(numbered(1), NODES)
    file.close(timeout=30)
    assert number_in(path) == 1
    (line,) = caplog.messages
    assert "cannot be written: ValueError: " in line


@pytest.mark.parametrize(
    "content",
    [
        b"epoch: 3",
        b'{"version":1,"epoch":3}',
        b"\xff\xfe\x00",
        as_bytes(LEVELS, NODES)[:-30],
        archive(version=VERSION, nodes=NODES, names=["gpu"]),
        archive(version=VERSION, nodes=NODES, names=["gpu"], levels=np.zeros((1, 3))),
        archive(version=VERSION, nodes=NODES, names=["gpu"], levels=np.array([[{}] * 4])),
    ],
    ids=range(7),
)
def test_a_file_of_somebody_else_is_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(content)
    file = StateFile(str(path))
    assert file.load(NODES) is None
    file.save(numbered(1), NODES)
    file.close(timeout=30)
    assert path.read_bytes() == content and os.listdir(tmp_path) == ["config.yaml"]
    assert caplog.messages == [
        f"straggler state file {path}: it is no state file, or cut off. It is left as it is, and what verdicts learn "
        "is not kept for the next start: name another file, or remove this one"
    ]


def test_what_another_could_have_planted_is_not_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved(tmp_path / "real")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("link", "pipe", "folder"):
        assert load(tmp_path / name) is None
    assert [text.partition(". It is left")[0].rpartition(": ")[2] for text in caplog.messages] == [
        "Too many levels of symbolic links",
        "it is no regular file",
        "it is no regular file",
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_file_of_another_user_is_not_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    saved(tmp_path / "s")
    os.chown(tmp_path / "s", 12345, -1)
    assert load(tmp_path / "s") is None
    assert "it belongs to user 12345" in caplog.text


def test_a_folder_that_cannot_be_made_is_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "state.json"
    file = StateFile(str(path))
    for number in range(3):
        file.save(numbered(number), NODES)
        wait_until(lambda: file._is_idle(0.0))
    file.close()
    assert load(path) is None
    writing, reading = caplog.messages
    assert "cannot be written: File exists" in writing and "logged once" in writing
    assert "Not a directory. It is left as it is" in reading


def test_a_full_disk_leaves_the_old_file(small_disk: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = small_disk / "s"
    saved(path)
    saved(path, numbered(1, 10_000))
    assert [text for text in caplog.messages if "No space left on device" in text] == caplog.messages != []
    assert load(path) is not None
    assert [entry.name for entry in small_disk.iterdir()] == ["s"]


@pytest.fixture
def hang(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """The system's calls for files hang, as on a mount whose server is gone; until this is set, or the test is over."""
    over = threading.Event()
    real = os.open

    def hangs(path: Any, *arguments: Any, **more: Any) -> int:
        if "state" in os.path.basename(os.fspath(path)):
            over.wait(60)
        return real(path, *arguments, **more)

    monkeypatch.setattr(os, "open", hangs)
    yield over
    over.set()
    wait_until(lambda: not any("holdfast" in thread.name for thread in threading.enumerate()))


@pytest.mark.usefixtures("hang")
def test_a_disk_that_hangs_costs_training_a_second_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = StateFile(str(tmp_path / "state.json"))
    began = time.monotonic()
    assert file.load(NODES) is None
    assert time.monotonic() - began < 30
    began = time.monotonic()
    for number in range(1000):
        file.save(numbered(number), NODES)
    file.close(timeout=0.1)
    assert time.monotonic() - began < 30
    threads = [thread.name for thread in threading.enumerate()]
    assert threads.count("holdfast-in-time") == 1  # nothing piles up
    assert "it could not be read within 1 s" in caplog.messages[0]
    assert "not written within 0.1 s" in caplog.messages[1]
    assert len(caplog.messages) == 2


def test_a_file_of_another_program_that_is_read_too_late_is_left_alone(
    tmp_path: Path, hang: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "state.yaml"
    path.write_bytes(b"epoch: 3")
    file = StateFile(str(path))
    assert file.load(NODES) is None
    hang.set()
    wait_until(lambda: file._is_idle(0.0))
    file.save(numbered(0), NODES)
    file.close(timeout=30)
    assert path.read_bytes() == b"epoch: 3"
    late, left = caplog.messages
    assert "it could not be read within 1 s" in late and "It is left as it is" in left


def test_a_program_that_ends_without_shutdown_has_saved(tmp_path: Path, spawn: Spawner) -> None:
    code = (
        "import sys, numpy; from holdfast.straggler.state_file import StateFile; f = StateFile(sys.argv[1]); "
        "n = ['n0', 'n0', 'n1', 'n1']; f.load(n); f.save({'section 0': numpy.ones(4)}, n)"
    )
    process = spawn.python(code, str(tmp_path / "s"))
    assert process.wait() == 0, process.output()
    assert number_in(tmp_path / "s") == 1


@pytest.mark.usefixtures("unhurried")
def test_a_reader_sees_the_old_or_the_new_file(tmp_path: Path) -> None:
    path = tmp_path / "s"
    saved(path, numbered(0, 10_000))
    file = StateFile(str(path))
    seen: set[float] = set()
    numbers = iter(range(1, 100_000))

    def three_were_seen() -> bool:
        file.save(numbered(next(numbers), 10_000), NODES)
        seen.add(number_in(path))
        return len(seen) > 3

    wait_until(three_were_seen)
    wait_until(lambda: file._is_idle(0.0))
    file.save(numbered(-1), NODES)
    file.close(timeout=30)
    assert number_in(path) == -1


def test_no_thread_to_read_it_is_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuses(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    saved(tmp_path / "s")
    with monkeypatch.context() as limits:
        limits.setattr(threading.Thread, "start", refuses)
        assert load(tmp_path / "s") is None
    assert "can't start new thread. It is left as it is" in caplog.text
