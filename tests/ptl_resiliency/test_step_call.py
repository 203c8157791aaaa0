"""The wrapper of a training step: its section, its heartbeat, and what must not be lost in it."""

from __future__ import annotations

import os
from typing import Any

import pytest

from holdfast.fault_tolerance.board import BoardWriter
from holdfast.fault_tolerance.timeouts.observed_durations import Intervals
from holdfast.ptl_resiliency.step_call import StepCall
from holdfast.straggler.sections import Section


class Steps:
    ready = completed = 0


class Rank:
    """A writer on private memory, and a wrapper that writes with it."""

    def __init__(self) -> None:
        self.steps, self.seen, self.section = Steps(), Intervals(), Section("training_step")
        self.writer = BoardWriter(None, self.seen)
        self.told: list[bool] = []
        self.call: Any = StepCall()
        self.call.original, self.call.counter, self.call.steps = self.body, self.steps, self.steps
        self.call.writer, self.call.section, self.call.told = self.writer, "step", self.told.append
        self.call.measured = self.section
        self.within: Any = lambda: None

    def body(self, result: Any) -> Any:
        self.within()
        if isinstance(result, Exception):
            raise result
        return result

    def do(self, what: str, number: int) -> None:
        if what in ("batch", "again", "raises"):
            self.steps.ready += what != "again"
            self.steps.completed += number
            if what == "raises":
                with pytest.raises(KeyError, match="the body"):
                    self.call(KeyError("the body"))
            else:
                assert self.call(number) == number
        elif what == "beat":
            self.writer.heartbeat(number if number % 2 else None)
        elif what == "open":
            self.writer.start_section("step" if number == 0 else "other")
        elif what == "close":
            self.writer.end_section("step" if number < 5 else "other")
        else:
            self.writer.mark("here", number)

    def measured(self) -> tuple[int, list[int]]:
        """How many times there were, and those that are kept."""
        return self.section.count, list(self.section.kept)


def test_a_section_that_the_program_opened_itself_stays_its_own() -> None:
    rank = Rank()
    rank.writer.start_section("step")
    rank.do("batch", 1)
    assert rank.told == [False] and list(rank.writer.opened_ns) == ["step"]
    rank.writer.end_section("step")
    rank.within = lambda: rank.writer.end_section("step")
    rank.do("batch", 1)
    assert rank.told == [False, True] and not rank.writer.opened_ns


def test_what_ends_the_program_while_a_failed_call_is_closed_is_raised_with_the_failure_beside_it() -> None:
    rank = Rank()

    def stop(_: bool) -> None:  # as a signal handler in an observer
        raise SystemExit(3)

    rank.within, rank.call.told = lambda: rank.writer.end_section("step"), stop
    with pytest.raises(SystemExit) as stopped:
        rank.call(KeyError("the body"))
    failure = stopped.value.__context__
    assert isinstance(failure, KeyError) and failure.__traceback__ is not None
    with pytest.raises(SystemExit) as stopped:
        rank.call(7)
    assert stopped.value.__context__ is None


def test_a_call_within_a_call_passes() -> None:
    rank = Rank()
    inner: list[Any] = []

    def nested() -> None:
        rank.within = lambda: None
        inner.append(rank.call(5))

    rank.within = nested
    rank.do("batch", 2)
    assert inner == [5] and rank.measured()[0] == 1 and rank.writer._opened_ever == 1


def test_a_section_is_closed_though_its_writer_was_taken_away_while_it_was_opened() -> None:
    rank = Rank()
    rank.do("batch", 1)

    def forget(*_: Any) -> None:
        rank.call.writer = rank.call.section = None

    rank.writer._observe_outside = forget
    rank.call = after = StepCall()  # it looks up the observer
    after.original, after.counter, after.told = rank.body, rank.steps, rank.told.append
    after.writer, after.section = rank.writer, "step"
    rank.do("batch", 1)
    assert after.writer is None and rank.told == [] and rank.writer.opened_ns == {}
    assert rank.writer._opened_ever == 2


def test_what_ends_a_call_before_its_body_leaves_no_section_open() -> None:
    """A signal handler, say, while a new session of the detector is looked at."""
    rank = Rank()

    class Detector:
        _session = object()

    def stop() -> None:
        raise SystemExit(0)

    rank.call.detector, rank.call.remeasure = Detector, stop
    with pytest.raises(SystemExit):
        rank.call(1)
    assert rank.writer.opened_ns == {}


def test_after_the_end_and_in_a_forked_child_nothing_is_written() -> None:
    rank = Rank()
    lost: list[bool] = []

    def forget() -> None:
        lost.append(True)
        rank.call.writer = None

    rank.call.lost = forget
    rank.do("batch", 1)
    board = rank.writer._words
    before = bytes(board)
    child = os.fork()
    if child == 0:
        try:
            rank.do("batch", 1)
        finally:
            os._exit(0 if bytes(board) == before else 1)
    assert os.waitpid(child, 0)[1] == 0
    rank.do("batch", 1)
    assert bytes(board) != before
    rank.writer.finish()
    before = bytes(board)
    rank.do("batch", 1)
    rank.writer.detach()
    rank.do("batch", 1)
    assert bytes(board) == before and lost == [True] and rank.measured()[0] == 4


def test_no_time_is_lost_however_rarely_the_section_is_asked() -> None:
    rank = Rank()
    for count in (1, 511, 512, 513, 1300):
        for _ in range(count):
            rank.call(1)
        times, number = rank.section.take()
        assert (len(times), number) == (count, count)
        assert all(0 <= each < 1000 for each in times)


def test_one_section_after_another_and_two_wrappers_of_one() -> None:
    first, second = Rank(), Rank()
    other = Section("validation_step")
    first.call(1)
    second.call.measured = first.section
    second.call(1)
    first.call(1)
    first.call.measured = other
    first.call(1)
    assert first.section.take()[1] == 3 and other.take()[1] == 1
