"""Reports beside the training: which windows are made, what ends them, and that no rank waits for a dead one."""

from __future__ import annotations

import logging
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from holdfast.straggler import Detector
from holdfast.straggler.background import MOST_WAITING, Background
from tests.processes import Spawner, wait_until
from tests.straggler.doubles import Table, ThreadChannel
from tests.straggler.jobs import Rank as Process
from tests.straggler.jobs import printed, start


class Leavable(ThreadChannel):
    """A rank that leaves breaks the others' collectives, as a closed connection does, unless all leave in order."""

    in_order = False

    def give_up(self) -> None:
        self._table._barrier.abort()

    def close(self) -> None:
        if not self.in_order:
            self._table._barrier.abort()


class Rank:
    """One rank: the numbers of the windows that were made, and a gate that window 1 waits at."""

    def __init__(self, channel: Leavable) -> None:
        self.channel = channel
        self.background: Background[str] = Background(channel)
        self.made: list[int] = []
        self.gate = threading.Event()
        self.at_gate = threading.Event()
        self._handed = 0

    def hand_over(self, windows: int, fails: bool = False) -> None:
        for _ in range(windows):
            self._handed += 1
            self.background.hand_over(self._window(self._handed, fails))

    def _window(self, number: int, fails: bool) -> Callable[[], str]:
        def make() -> str:
            self.at_gate.set()
            assert self.gate.wait(60)
            if fails:
                raise KeyError("a fault")
            self.made.append(number)
            return f"window {number}"

        return make

    def wait(self) -> None:
        self.background.ask(lambda: None)


@contextmanager
def ranks(size: int, open: bool = True) -> Iterator[list[Rank]]:
    table = Table(size)
    every = [Rank(Leavable(table, rank, range(size))) for rank in range(size)]
    for one in every:
        if open:
            one.gate.set()
    try:
        yield every
    finally:
        for one in every:
            one.gate.set()
            one.background._closing = True  # all of them, before the first one leaves
        for one in every:
            one.background.close()


def test_windows_are_made_in_order_and_the_newest_is_returned_once() -> None:
    with ranks(3) as every:
        for window in range(1, 4):
            for one in every:
                one.hand_over(1)
            for one in every:
                one.wait()
                assert one.background.newest() == f"window {window}"
                assert one.background.newest() is None
        assert [one.made for one in every] == [[1, 2, 3]] * 3


def test_all_ranks_leave_out_the_same_windows() -> None:
    """Window 1 takes long on rank 1 only; rank 0 received 5 windows meanwhile, rank 1 received 4."""
    with ranks(2, open=False) as (first, second):
        first.gate.set()
        first.hand_over(1)
        second.hand_over(1)
        assert second.at_gate.wait(60)
        wait_until(lambda: first.made == [1])
        second.hand_over(3)
        first.hand_over(4)  # rank 0 agrees on what it has when it is done with window 1: on at least window 2
        second.gate.set()
        wait_until(lambda: second.made and second.made[-1] >= 2 and first.made == second.made)
        second.hand_over(1)
        first.wait()
        second.wait()
        assert first.made == second.made and first.made[0] == 1 and first.made[-1] == 5
        assert len(first.made) < 5


def test_a_window_that_a_rank_has_forgotten_is_made_nowhere() -> None:
    with ranks(2, open=False) as (first, second):
        first.hand_over(1)
        second.gate.set()
        second.hand_over(1)
        assert first.at_gate.wait(60)
        first.hand_over(2 * MOST_WAITING)  # it keeps the last of these
        second.hand_over(2)
        first.gate.set()
        second.hand_over(2 * MOST_WAITING - 2)
        first.wait()
        second.wait()
        assert first.made == second.made
        assert first.made[-1] == 2 * MOST_WAITING + 1 and set(first.made).isdisjoint({2, 3})


def test_a_fault_ends_the_reports_of_all_ranks_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with ranks(2, open=False) as every, caplog.at_level(logging.INFO, "holdfast.straggler"):
        for rank, one in enumerate(every):
            one.hand_over(1, fails=rank == 1)
        for one in every:
            assert one.at_gate.wait(60)
            one.hand_over(1)
            one.gate.set()
        for one in every:
            wait_until(lambda one=one: one.background._ended)  # type: ignore[misc]
            one.hand_over(3)
            assert one.background.ask(lambda: 1) is None
            assert one.background._waiting == {}
    assert every[1].made == [] and every[0].made == [1]
    said = sorted(record.getMessage() for record in caplog.records)
    assert said == [
        "straggler reports have ended: BrokenBarrierError: . Training continues without them",
        "straggler reports have ended: KeyError: 'a fault'. Training continues without them",
    ]


def test_a_question_that_fails_ends_the_reports() -> None:
    with ranks(1) as (one,):
        assert one.background.ask(lambda: 7) == 7
        one.hand_over(1)
        assert one.background.ask(lambda: 1 // 0) is None
        one.hand_over(1)
        assert one.background.ask(lambda: 7) is None
        assert one.made == [1]


def test_closing_finishes_what_waits_and_gives_up_in_time() -> None:
    with ranks(2) as (first, second):
        first.hand_over(1)
        second.hand_over(1)
        first.channel.in_order = second.channel.in_order = True
        first.background.close()
        second.background.close()
        assert (first.made, second.made) == ([1], [1])
        first.hand_over(1)
        assert first.background._waiting == {}
    with ranks(2) as (first, _):
        first.hand_over(1)
        thread = first.background._thread
        first.background.close(0.05)  # rank 1 never comes
        assert thread is not None and not thread.is_alive()


def test_a_forked_process_closes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with ranks(2) as (first, second):
        first.hand_over(1)
        with monkeypatch.context() as patch:
            patch.setattr("os.getpid", lambda: -1)
            first.background.close()
        second.hand_over(1)
        second.wait()
        first.wait()
        assert first.made == second.made == [1]


def test_without_others_there_is_no_thread(caplog: pytest.LogCaptureFixture) -> None:
    Detector.initialize(background=True)
    with Detector.detection_section("a"):
        pass
    report = Detector.generate_report()
    assert report is not None and report.section_relative_perf_scores == {"a": {0: 1.0}}
    assert caplog.records == []


def test_a_group_that_cannot_be_made_ends_the_reports(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("no way to " + "x" * 1000)

    monkeypatch.setattr("holdfast.straggler.session.find", fails)
    Detector.initialize(background=True)
    assert [Detector.generate_report(), Detector.generate_report()] == [None, None]
    (record,) = caplog.records
    assert record.getMessage().startswith("straggler reports have ended: RuntimeError: no way to")
    assert len(record.getMessage()) < 300


def started(spawn: Spawner, folder: Path, size: int, what: str) -> list[Process]:
    return start(spawn, folder, "background.py", size, str(size), what)


def ended(ranks: list[Process]) -> list[list[dict[str, Any]]]:
    told = printed(ranks)
    assert [one[-1] for one in told] == [{"ended": True}] * len(told)
    return told


@pytest.mark.slow
def test_reports_of_some_ranks_by_interval_and_at_the_end(spawn: Spawner, tmp_path: Path) -> None:
    """First ranks 2 and 0, in this order, and rank 0 is slow; rank 1 takes no part, and is in fewer groups.

    Then the interval elapses in the same steps on all ranks. In the end ranks leave while others are still in the same
    exchange, which ends all the same: 10 times with either way.
    """
    told = ended(ranks := started(spawn, tmp_path, 3, "together"))
    first, none, third = ([one for one in of if "scores" in one] for of in told)
    assert none == [] and len(first) == len(third) == 2
    assert [session["scores"] for session in first] == [[None] * 3] * 2
    for session in third:
        assert session["threads"] == [] and session["scores"][0] is None
        for scores in session["scores"][1:]:
            assert scores.keys() == {"0", "2"} and scores["2"] == 1.0 and scores["0"] < 0.7
    by_interval = [next(one for one in of if "seen" in one) for of in told]
    seen = [one["seen"] for one in by_interval]
    assert seen[0] == seen[1] == seen[2] and sum(seen[0]) > 5
    assert [one["got"] > 0 for one in by_interval] == [True, False, False]
    assert max(one["cost_ms"] for one in by_interval) < 5  # well below 1 on a machine with nothing else to do
    last = [next(one["reports"] for one in of if "reports" in one) for of in told]
    assert last == [[True] * 20, [False, True] * 10, [False, True] * 10]
    assert not any(text in rank.err() for rank in ranks for text in ("have ended", "given up"))


@pytest.mark.slow
def test_a_rank_that_is_killed_in_the_middle_costs_the_others_only_the_reports(
    spawn: Spawner, tmp_path: Path
) -> None:
    ranks = started(spawn, tmp_path, 3, "killed")
    assert ranks[2].wait() == -signal.SIGKILL
    for told, rank in zip(ended(ranks[:2]), ranks, strict=False):
        assert told[0]["later"] == [False] * 3 and told[0]["shutdown"] < 60
        assert rank.err().count("straggler reports have ended: ") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "way",
    ["shutdown-destroy", *(pytest.param(way, marks=pytest.mark.variant) for way in ("destroy", "raise"))],
)
def test_the_end_does_not_wait_for_a_rank_that_stands_still(spawn: Spawner, tmp_path: Path, way: str) -> None:
    """With and without shutdown; torch's own end of a group would wait for half an hour."""
    rank, still = started(spawn, tmp_path, 2, f"stopped-{way}")
    assert rank.wait() == (1 if way == "raise" else 0), rank.err()
    (pid,) = re.findall(r'{"pid": (\d+)}', still.out())
    assert psutil.Process(int(pid)).status() == psutil.STATUS_STOPPED
    gave_up = "the straggler report under way was given up after 0.2 s: shutting down"
    assert rank.err().count(gave_up) == int("shutdown" in way)
    assert "straggler reports have ended" not in rank.err()


def test_a_thread_that_cannot_start_ends_the_reports_and_tells_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuses(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    channel = Leavable(Table(1), 0, [0])
    one: Background[str] = Background(channel)
    with monkeypatch.context() as limits:
        limits.setattr(threading.Thread, "start", refuses)
        for _ in range(2):
            one.hand_over(lambda: "made")
    assert one.newest() is None and one.ask(lambda: 1) is None
    one.close()
    (line,) = caplog.messages
    assert line.startswith("straggler reports have ended: RuntimeError: can't start new thread. ")
    assert channel._table._barrier.broken
