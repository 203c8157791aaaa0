"""Reports in the journal: beside the launcher's records, of each cycle, and never at the cost of training."""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.journal.reader import read_run
from holdfast.journal.writer import Journal
from holdfast.straggler.readings.kept import reports
from holdfast.straggler.state_file import WAITING, ReportLog
from tests.processes import Spawner, wait_until
from tests.straggler.readings.history import report

FILE = "journal-n0.rank-0.jsonl"


def test_reports_of_two_cycles_are_read_beside_the_launcher_s_records(tmp_path: Path) -> None:
    launcher = Journal(str(tmp_path), "n0")
    launcher.record("run_start")
    for cycle in range(2):
        launcher.record("cycle_start", cycle=cycle)
        log = ReportLog(str(tmp_path), "n0", 0, cycle)
        for _ in range(2):
            before = time.time()
            log.write(report(8))
            after = time.time()
        log.close(timeout=30)
        log.write(report(8))
    launcher.close(timeout=30)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"journal-n0{end}" for end in (".jsonl", ".rank-0.jsonl")
    ]
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600
    events = [event for event in read_run(str(tmp_path)) if event.kind == "straggler_report"]
    assert [(event.get("cycle"), event.get("report")) for event in events] == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert {event.node for event in events} == {"n0"}
    assert before <= events[-1].t + 1e-6 <= after + 2e-6
    assert [one.cycle for one in reports(read_run(str(tmp_path)))] == [0, 0, 1, 1]


def test_the_directory_is_made_private(tmp_path: Path) -> None:
    log = ReportLog(str(tmp_path / "a" / "run"), "n0", 0)
    log.write(report(2))
    log.close(timeout=30)
    assert stat.S_IMODE((tmp_path / "a" / "run").stat().st_mode) == 0o700
    assert len(read_run(str(tmp_path / "a" / "run"))) == 1


def test_a_directory_that_others_can_write_is_one_warning(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "run"
    place.mkdir()
    place.chmod(0o777)
    log = ReportLog(str(place), "n0", 0)
    for _ in range(3):
        log.write(report(2))
    log.close(timeout=30)
    (line,) = capfd.readouterr().err.splitlines()
    assert "can be written by others (mode 0777)" in line and "Training and supervision continue" in line
    assert list(place.iterdir()) == []


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[Path]:
    """A run directory in which the journal is a FIFO without a reader: writing hangs, as on a dead mount."""
    tmp_path.chmod(0o700)
    os.mkfifo(tmp_path / FILE)
    yield tmp_path
    with open(os.open(tmp_path / FILE, os.O_RDONLY), "rb") as reader:
        reader.read()


def test_a_disk_that_hangs_costs_only_the_records(hanging: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = ReportLog(str(hanging), "n0", 0)
    made = report(64)
    began = time.monotonic()
    for _ in range(WAITING + 10):
        log.write(made)
    assert time.monotonic() - began < 5
    log.close(timeout=0.1)
    assert "some are lost" in capfd.readouterr().err
    assert log._journal._queue.qsize() <= WAITING + 1


ENDS = """
import sys
from holdfast.straggler.state_file import ReportLog
from tests.straggler.readings.history import report
log = ReportLog(sys.argv[1], "n0", 0)
log.write(report(64))
print("bye", flush=True)
"""


def test_the_report_of_a_program_that_ends_without_shutdown_is_kept(tmp_path: Path, spawn: Spawner) -> None:
    process = spawn.python(ENDS, str(tmp_path / "run"))
    assert process.wait() == 0, process.output()
    assert len(read_run(str(tmp_path / "run"))) == 1


def test_a_program_ends_although_its_disk_hangs(tmp_path: Path, spawn: Spawner) -> None:
    tmp_path.chmod(0o700)
    os.mkfifo(tmp_path / FILE)
    process = spawn.python(ENDS, str(tmp_path))
    assert process.wait(20) == 0, process.output()
    assert "not written within 1 s" in process.err()


def test_a_run_directory_that_vanishes_is_told_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = ReportLog(str(tmp_path / "run"), "n0", 0)
    log.write(report(8))
    wait_until(lambda: list((tmp_path / "run").glob("*.jsonl")) and log._journal._queue.empty())
    shutil.rmtree(tmp_path / "run")
    for _ in range(3):
        log.write(report(8))
    log.close(timeout=30)
    assert capfd.readouterr().err.count("it is gone, with the reports that were in it") == 1
