"""The writer that never blocks, with real files: order, lost lines, the lock, torn lines."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.fault_tolerance.launcher import writer as module
from holdfast.fault_tolerance.launcher.writer import AppendedFile, Stream, Writer
from tests.processes import wait_until


class Troubles(list[tuple[str, str]]):
    def __call__(self, name: str, reason: str) -> None:
        self.append((name, reason))


@pytest.fixture
def troubles() -> Troubles:
    return Troubles()


@pytest.fixture
def writer(troubles: Troubles) -> Iterator[Writer]:
    made = Writer("test-writer", troubles, capacity=1300)
    yield made
    made.close(5)


def test_targets_get_their_lines_in_order(writer: Writer, tmp_path: Path) -> None:
    files = [AppendedFile(str(tmp_path / name), "n") for name in "ab"]
    for number in range(10):
        writer.put(files[number % 2], b"%d\n" % number)
    for file in files:
        writer.end(file)
    assert writer.drain(5)
    assert (tmp_path / "a").read_bytes() == b"0\n2\n4\n6\n8\n"
    assert (tmp_path / "b").read_bytes() == b"1\n3\n5\n7\n9\n"
    assert not [name for name in os.listdir("/proc/self/fd") if _target(name).startswith(str(tmp_path))]


def _target(descriptor: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except FileNotFoundError:
        return ""


def test_lost_lines_are_counted_at_their_place(writer: Writer, troubles: Troubles) -> None:
    reader, descriptor = os.pipe()
    os.write(descriptor, b"." * 65536)  # full
    stream = Stream(descriptor)
    writer.put(stream, b"first\n")
    wait_until(lambda: writer._in_hand, what="the write")
    writer.put(stream, b"x" * 990 + b"\n")
    for _ in range(3):
        writer.put(stream, b"lost\nlost\n")
    assert troubles == [("standard error", "it does not take lines as fast as they come")]
    assert len(os.read(reader, 65536)) == 65536
    assert writer.drain(5)
    writer.put(stream, b"later\n")
    assert writer.drain(5)
    found = os.read(reader, 65536)
    assert (
        found == b"first\n" + b"x" * 990 + b"\n[holdfast] 6 lines lost: standard error was not read\nlater\n"
    )
    os.close(reader)
    os.close(descriptor)


def test_stream_whose_reader_is_gone_takes_everything(writer: Writer, troubles: Troubles) -> None:
    reader, descriptor = os.pipe()
    os.close(reader)
    for _ in range(100):
        writer.put(Stream(descriptor), b"x" * 100 + b"\n")
        assert writer.drain(5)
    os.close(descriptor)
    assert not troubles


def test_folder_that_comes_back_gets_all_lines(writer: Writer, troubles: Troubles, tmp_path: Path) -> None:
    path = tmp_path / "later" / "log"
    file = AppendedFile(str(path), "n")
    writer.put(file, b"one\n")
    wait_until(lambda: troubles, what="the error")
    writer.put(file, b"two\n")
    path.parent.mkdir()
    assert writer.drain(5)
    assert path.read_bytes() == b"one\ntwo\n" and len(troubles) == 1
    writer.end(file)


HOLDS = """
import fcntl, sys
file = open(sys.argv[1], "a")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("limit", [10.0, 0.1])
def test_lock_of_another_launcher_is_waited_for(
    writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: float
) -> None:
    """It may be stopped while it holds the lock: then not forever."""
    monkeypatch.setattr(module, "LOCK_WAIT", limit)
    path = tmp_path / "log"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDS, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout and holder.stdout.readline() == b"held\n"
    file = AppendedFile(str(path), "n")
    writer.put(file, b"line\n")
    if limit < 1:
        assert writer.drain(5)
    else:
        assert not writer.drain(0.3) and not path.read_bytes()
    assert holder.stdin
    holder.communicate()
    assert writer.drain(5)
    assert path.read_bytes() == b"line\n"
    writer.end(file)


def test_patient_caller_loses_nothing_on_a_slow_target(writer: Writer, troubles: Troubles) -> None:
    reader, descriptor = os.pipe()
    fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, 4096)
    copy = subprocess.Popen(
        [sys.executable, "-c", "import time\nwhile __import__('os').read(0, 4096): time.sleep(0.01)"],
        stdin=reader,
    )
    os.close(reader)
    for _ in range(200):
        writer.put(Stream(descriptor), b"x" * 499 + b"\n", is_patient=True)
    assert writer.drain(30) and not troubles
    os.close(descriptor)
    assert copy.wait(10) == 0


def test_patient_caller_does_not_wait_for_a_target_that_hangs(
    writer: Writer, troubles: Troubles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.3)
    reader, descriptor = os.pipe()
    os.write(descriptor, b"." * 65536)
    began = time.monotonic()
    for _ in range(100):
        writer.put(Stream(descriptor), b"x" * 499 + b"\n", is_patient=True)
    assert time.monotonic() - began > 0.2 and troubles
    os.close(reader)  # ends the write
    assert writer.drain(5)
    os.close(descriptor)
