"""The C core's strokes and those in Python leave the same words on a page, the same counts, and the same intervals."""

from __future__ import annotations

import gc
import os
import weakref
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.fault_tolerance.board import BoardWriter, counts, strokes
from holdfast.fault_tolerance.board import layout as L
from holdfast.fault_tolerance.intervals import Intervals
from holdfast.ptl_resiliency import step_call
from holdfast.ptl_resiliency.step_call import PlainStepCall, StepCall
from holdfast.straggler.measurement import Section

needs_core = pytest.mark.skipif(
    counts.core is None, reason="the step core was not built: setup.py build_ext --inplace"
)
OPS = st.lists(
    st.tuples(
        st.sampled_from(["batch", "again", "raises", "beat", "open", "close", "mark"]), st.integers(0, 9)
    ),
    max_size=40,
)


class Steps:
    ready = completed = 0


class Rank:
    """A writer on private memory, and a wrapper of this kind that writes with it."""

    def __init__(self, kind: type[Any]) -> None:
        self.steps, self.seen, self.section = Steps(), Intervals(), Section("training_step")
        self.writer = BoardWriter(None, self.seen)
        self.told: list[bool] = []
        self.call = kind()
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
        self.section.collected()
        return self.section.count, list(self.section.kept)

    def state(self) -> Any:
        numbers = {name: getattr(self.writer, name) for name in counts.PlainCounts.__slots__}
        return (
            bytes(self.writer._words),
            numbers,
            self.writer.opened_ns,
            self.seen.sections(),
            self.seen.heartbeats(0),
            (self.told, *self.measured()),
        )


@needs_core
@settings(max_examples=150, deadline=None)
@given(OPS)
def test_both_write_the_same(ops: list[tuple[str, int]]) -> None:
    core, plain = Rank(StepCall), Rank(PlainStepCall)
    assert type(core.call) is not PlainStepCall
    began = ended = 0
    with pytest.MonkeyPatch.context() as patch:
        for what, number in ops:
            entered: list[int] = []
            core.within = lambda entered=entered: entered.append(core.writer._words[L.LAST_EDGE])
            core.do(what, number)
            ended = core.writer._words[L.LAST_EDGE]
            if what == "beat":
                began = core.writer._words[L.LAST_HEARTBEAT]
            elif not entered:
                began = ended
            elif core.told and not core.told[-1]:  # it was open already, so nothing says when
                core.told.append(False)
                return
            else:
                began = entered[0]
            now = [began]
            plain.within = lambda now=now, ended=ended: now.__setitem__(0, ended)
            for module in (strokes, step_call):
                patch.setattr(module, "monotonic_ns", lambda now=now: now[0])
            patch.setattr("holdfast.fault_tolerance.board.writer.monotonic_ns", lambda now=now: now[0])
            plain.do(what, number)
            assert core.state() == plain.state()
            patch.undo()


@pytest.mark.parametrize("kind", [PlainStepCall, StepCall])
def test_a_section_that_the_program_opened_itself_stays_its_own(kind: type[Any]) -> None:
    rank = Rank(kind)
    rank.writer.start_section("step")
    rank.do("batch", 1)
    assert rank.told == [False] and rank.writer.open_sections == ("step",)
    rank.writer.end_section("step")
    rank.within = lambda: rank.writer.end_section("step")
    rank.do("batch", 1)
    assert rank.told == [False, True] and not rank.writer.open_sections


@pytest.mark.parametrize("kind", [PlainStepCall, StepCall])
def test_what_ends_the_program_while_a_failed_call_is_closed_is_raised_with_the_failure_beside_it(
    kind: type[Any],
) -> None:
    rank = Rank(kind)

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


@pytest.mark.parametrize("kind", [PlainStepCall, StepCall])
def test_a_call_within_a_call_passes(kind: type[Any]) -> None:
    rank = Rank(kind)
    inner: list[Any] = []

    def nested() -> None:
        rank.within = lambda: None
        inner.append(rank.call(5))

    rank.within = nested
    rank.do("batch", 2)
    assert inner == [5] and rank.measured()[0] == 1 and rank.writer._opened_ever == 1


@pytest.mark.parametrize("kind", [PlainStepCall, StepCall])
def test_a_section_is_closed_though_its_writer_was_taken_away_while_it_was_opened(kind: type[Any]) -> None:
    rank = Rank(kind)
    rank.do("batch", 1)

    def forget(*_: Any) -> None:
        rank.call.writer = rank.call.section = None

    rank.writer._observe_outside = forget
    rank.call = after = kind()  # it looks up the observer
    after.original, after.counter, after.told = rank.body, rank.steps, rank.told.append
    after.writer, after.section = rank.writer, "step"
    rank.do("batch", 1)
    assert after.writer is None and rank.told == [] and rank.writer.opened_ns == {}
    assert rank.writer._opened_ever == 2


@pytest.mark.parametrize("kind", [PlainStepCall, StepCall])
def test_what_ends_a_call_before_its_body_leaves_no_section_open(kind: type[Any]) -> None:
    """A signal handler, say, while a new session of the detector is looked at."""
    rank = Rank(kind)

    class Detector:
        _session = object()

    def stop() -> None:
        raise SystemExit(0)

    rank.call.detector, rank.call.remeasure = Detector, stop
    with pytest.raises(SystemExit):
        rank.call(1)
    assert rank.writer.open_sections == ()


@pytest.mark.parametrize("kind", [PlainStepCall, StepCall])
def test_after_the_end_and_in_a_forked_child_nothing_is_written(kind: type[Any]) -> None:
    rank = Rank(kind)
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


@pytest.mark.parametrize("kind", [PlainStepCall, StepCall])
def test_no_time_is_lost_however_rarely_the_section_is_asked(kind: type[Any]) -> None:
    rank = Rank(kind)
    for count in (1, 511, 512, 513, 1300):
        for _ in range(count):
            rank.call(1)
        times, number = rank.section.take()
        assert (len(times), number) == (count, count)
        assert all(0 <= each < 1000 for each in times)


@pytest.mark.parametrize("kind", [PlainStepCall, StepCall])
def test_one_section_after_another_and_two_wrappers_of_one(kind: type[Any]) -> None:
    first, second = Rank(kind), Rank(kind)
    other = Section("validation_step")
    first.call(1)
    second.call.measured = first.section
    second.call(1)
    first.call(1)
    first.call.measured = other
    first.call(1)
    assert first.section.take()[1] == 3 and other.take()[1] == 1


@needs_core
def test_a_measured_section_does_not_keep_its_wrapper_for_ever() -> None:
    rank = Rank(StepCall)
    rank.call(1)
    gone = weakref.ref(rank.call)
    rank.writer.detach()
    del rank
    gc.collect()
    assert gone() is None
