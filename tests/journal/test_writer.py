"""The writer keeps every record when it can, and costs its caller nothing when it cannot."""

from __future__ import annotations

import json
import os
import signal
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.journal.event import Event, encode
from holdfast.journal.reader import read_run
from holdfast.journal.writer import Journal, file_name
from tests.processes import Spawner, wait_until


def kinds(run_dir: Path) -> list[str]:
    return [event.kind for event in read_run(str(run_dir))] if any(run_dir.glob("journal-*")) else []


def written(run_dir: Path, kind: str = "run_start", node: str = "a", **fields: object) -> list[Event]:
    """The journal after one more record."""
    journal = Journal(str(run_dir), node)
    journal.record(kind, **fields)
    journal.close(timeout=30)
    return read_run(str(run_dir))


def test_records_are_written_in_order_and_private(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path), "gpu-12")
    before = time.time(), time.monotonic()
    for number in range(100):
        journal.record("first_step", step=number)
    wait_until(lambda: len(kinds(tmp_path)) == 100, what="they are on disk without a close")
    journal.close(timeout=30)
    journal.close(timeout=30)
    journal.record("late")
    events = read_run(str(tmp_path))
    assert [event.get("step") for event in events] == list(range(100))
    assert before <= (events[0].t + 1e-6, events[0].mono + 1e-6) <= (time.time(), time.monotonic())
    assert {event.node for event in events} == {"gpu-12"}
    assert stat.S_IMODE((tmp_path / "journal-gpu-12.jsonl").stat().st_mode) == 0o600


def test_nothing_recorded_makes_no_file_and_no_thread(tmp_path: Path) -> None:
    threads = threading.active_count()
    journal = Journal(str(tmp_path), "a")
    assert threading.active_count() == threads
    journal.close(timeout=30)
    assert list(tmp_path.iterdir()) == []


def test_a_successor_appends_even_after_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "journal-a.jsonl"
    path.write_text('{"t": 1, "mono": 1, "node": "a", "kind": "run_start"}\n{"t": 2, "mo')
    assert [event.kind for event in written(tmp_path)] == ["run_start", "run_start"]


def test_many_threads_lose_and_mix_nothing(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path), "a")
    threads = [
        threading.Thread(target=lambda who=who: [journal.record("step", who=who, n=n) for n in range(200)])
        for who in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    journal.close(timeout=30)
    events = read_run(str(tmp_path))
    for who in range(4):
        assert [event.get("n") for event in events if event.get("who") == who] == list(range(200))


def test_a_signal_handler_may_record(tmp_path: Path) -> None:
    """At any moment: here hundreds of times in the middle of other records."""
    journal = Journal(str(tmp_path), "a", capacity=1 << 20)  # the alarms of a busy machine are many
    previous = signal.signal(signal.SIGALRM, lambda *_: journal.record("from_handler"))
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        for _ in range(2000):
            journal.record("from_main", text="x" * 100)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    journal.close(timeout=30)
    assert kinds(tmp_path).count("from_main") == 2000
    assert "from_handler" in kinds(tmp_path)


def test_a_record_that_cannot_be_encoded_is_still_noted(tmp_path: Path) -> None:
    class Rude:
        def __str__(self) -> str:
            raise RuntimeError("no")

        __repr__ = __str__

    (event,) = written(tmp_path, "odd", mapping={Rude(): 1})
    assert event.kind == "odd"
    assert "RuntimeError" in event.get("unrecordable")


def test_a_deferred_record_is_made_by_the_thread_and_has_the_time_of_the_call(tmp_path: Path) -> None:
    makers: list[str] = []

    def make() -> dict[str, object]:
        makers.append(threading.current_thread().name)
        return {"rank": 3, "node": "another"}

    journal = Journal(str(tmp_path), "a")
    before = time.time()
    journal.defer("straggler_report", make)
    after = time.time()
    journal.close(timeout=30)
    journal.defer("late", make)
    (event,) = read_run(str(tmp_path))
    assert (event.get("rank"), event.node, makers) == (3, "another", ["holdfast-journal"])
    assert before <= event.t + 1e-6 <= after + 2e-6


def test_a_deferred_record_that_cannot_be_made_is_one_warning(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def fails() -> dict[str, object]:
        raise KeyError("rank 3")

    journal = Journal(str(tmp_path), "a")
    for _ in range(3):
        journal.defer("straggler_report", fails)
    journal.record("step")
    journal.close(timeout=30)
    assert kinds(tmp_path) == ["step"]
    (line,) = capfd.readouterr().err.splitlines()
    assert "journal-a.jsonl: KeyError: 'rank 3'." in line


@pytest.mark.parametrize("node", ["a/b", "../../etc", "", "naïve host", "."])
def test_a_node_s_name_never_leaves_the_directory(tmp_path: Path, node: str) -> None:
    assert os.path.basename(file_name(node)) == file_name(node)
    assert [event.node for event in written(tmp_path, node=node)] == [node]


def test_a_symbolic_link_is_not_followed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "journal-a.jsonl").symlink_to(tmp_path / "elsewhere")
    journal = Journal(str(tmp_path), "a")
    journal.record("run_start")
    journal.close(timeout=30)
    assert not (tmp_path / "elsewhere").exists()
    assert "symbolic link" in capfd.readouterr().err


def test_a_vanished_directory_is_one_warning(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    journal = Journal(str(tmp_path / "gone"), "a")
    for _ in range(10):
        journal.record("step")
    journal.close(timeout=30)
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"[holdfast] warning: journal {tmp_path}/gone/journal-a.jsonl: No such file")


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[Path]:
    """A run directory whose journal is a FIFO without a reader: opening and writing hang, as on a dead mount."""
    path = tmp_path / "journal-a.jsonl"
    os.mkfifo(path)
    yield tmp_path
    # Let the thread that is left behind continue, so that the leak check sees it end.
    with open(os.open(path, os.O_RDONLY), "rb") as reader:
        reader.read()


def test_a_filesystem_that_hangs_blocks_neither_record_nor_close(
    hanging: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """And a journal of large records keeps few of them."""
    made: list[int] = []
    journal = Journal(str(hanging), "a", capacity=3)
    for number in range(20):  # a blocked one would last forever
        journal.record("step")
        journal.defer("report", lambda number=number: {"number": made.append(number)})
    journal.close(timeout=0.2)
    (line,) = capfd.readouterr().err.splitlines()
    assert "some are lost" in line
    assert len(made) <= 4


def test_a_close_that_gives_up_says_so(hanging: Path, capfd: pytest.CaptureFixture[str]) -> None:
    journal = Journal(str(hanging), "a")
    journal.record("step")
    journal.close(timeout=0.05)
    assert "not written within 0.05 s" in capfd.readouterr().err


def test_a_filesystem_that_stops_answering_is_told_while_the_job_runs(
    hanging: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.journal.writer.UNANSWERED", 0.01)
    journal = Journal(str(hanging), "a")

    def told() -> bool:
        journal.record("step")
        return "has not answered" in capfd.readouterr().err

    wait_until(told)
    journal.close(timeout=0.05)


def test_a_process_ends_while_its_filesystem_hangs(tmp_path: Path, spawn: Spawner) -> None:
    os.mkfifo(tmp_path / "journal-a.jsonl")
    code = "import sys; from holdfast.journal.writer import Journal; j = Journal(sys.argv[1], 'a'); "
    process = spawn.python(code + "j.record('run_end'); j.close(0.1); print('bye')", str(tmp_path))
    assert (process.wait(60), process.out()) == (0, "bye\n")


def test_records_wait_for_a_slow_filesystem(tmp_path: Path) -> None:
    """A stall that ends loses nothing."""
    path = tmp_path / "journal-a.jsonl"
    os.mkfifo(path)
    journal = Journal(str(tmp_path), "a")
    for number in range(1000):
        journal.record("step", number=number)
    with path.open("rb") as reader:
        journal.close(timeout=0.01)  # says that the rest may be lost; it is not, since the process lives on
        seen = [json.loads(line)["number"] for line in reader]
    assert seen == list(range(1000))


def test_a_full_disk_is_one_warning_and_the_journal_goes_on_when_there_is_room(
    small_disk: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    journal = Journal(str(small_disk), "a")
    journal.record("before")
    wait_until(lambda: (small_disk / "journal-a.jsonl").exists() and kinds(small_disk) == ["before"])
    filler = small_disk / "filler"
    with pytest.raises(OSError, match="No space"), filler.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    for _ in range(100):
        journal.record("lost", text="x" * 2000)
    warning = ""

    def warned() -> bool:
        nonlocal warning
        warning += capfd.readouterr().err
        return "\n" in warning

    wait_until(warned, what="the warning")
    wait_until(lambda: journal._queue.empty(), what="all of them were tried")
    filler.unlink()
    journal.record("after")
    journal.close(timeout=30)
    warning += capfd.readouterr().err
    assert len(warning.splitlines()) == 1
    assert "No space left" in warning or "disk full" in warning
    seen = kinds(small_disk)
    assert (seen[0], seen[-1]) == ("before", "after")
    assert seen.count("lost") < 100


def test_the_newest_event_is_read_as_a_line_and_goes_with_the_writer(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path), "a")
    journal.record("cycle_start")
    for step in (10**9, 2):
        journal.show("progress", steps_most=step)
    wait_until(lambda: list(tmp_path.glob("newest-*")))
    wait_until(lambda: [event.get("steps_most") for event in read_run(str(tmp_path))] == [None, 2])
    assert {event.source for event in read_run(str(tmp_path))} == {"a"}
    (newest,) = tmp_path.glob("newest-*")
    assert stat.S_IMODE(newest.stat().st_mode) == 0o600
    journal.close(timeout=30)
    assert [path.name for path in tmp_path.iterdir()] == ["journal-a.jsonl"]


def test_what_a_killed_launcher_has_shown_is_taken_over(tmp_path: Path) -> None:
    """In a container the next launcher has the same pid; nodes with a longer name are others."""
    for name, step in ((f"a.{os.getpid()}", 7), ("a.b.12", 8), ("a.12.13", 9)):
        line = encode("progress", {"steps_most": step}, node="a", t=1.0, mono=1.0)
        (tmp_path / f"newest-{name}.jsonl").write_bytes(line)
    (tmp_path / "newest-a.99.jsonl").write_bytes(b'{"torn"')
    written(tmp_path)
    lines = (tmp_path / "journal-a.jsonl").read_text().splitlines()
    assert ["progress" in line for line in lines] == [True, False]
    others = ["newest-a.12.13.jsonl", "newest-a.b.12.jsonl"]
    assert sorted(path.name for path in tmp_path.glob("newest-*")) == others
