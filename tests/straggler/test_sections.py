"""Sections in the hot path: what is measured, what is skipped, what is bounded."""

from __future__ import annotations

import inspect
import logging
import threading
from contextlib import ExitStack

import pytest

from holdfast.straggler import Detector, Statistic
from holdfast.straggler.kernels.source import Capture
from holdfast.straggler.sections import KEPT, MOST_SECTIONS, Sections
from tests.straggler.sources import Told


def number(sections: Sections, name: str) -> float:
    return sections.take()[name][Statistic.NUM]


@pytest.fixture
def sections() -> Sections:
    return Sections(1, None)


def run(sections: Sections, name: str, times: int = 1) -> None:
    for _ in range(times):
        with sections.enter(name, False):
            pass


def test_times_are_milliseconds_of_wall_time(sections: Sections) -> None:
    waiting = threading.Event()
    with sections.enter("wait", False):
        waiting.wait(0.02)
    summary = sections.take()["wait"]
    assert 20 <= summary[Statistic.MED] < 5000
    assert summary[Statistic.NUM] == 1


def test_each_window_has_its_own_times(sections: Sections) -> None:
    run(sections, "a", 3)
    run(sections, "b", 1)
    assert {name: one[Statistic.NUM] for name, one in sections.take().items()} == {"a": 3, "b": 1}
    run(sections, "a", 2)
    assert {name: one[Statistic.NUM] for name, one in sections.take().items()} == {"a": 2}
    assert sections.take() == {}


def test_a_skipped_body_that_raises_raises() -> None:
    sections = Sections(10, None)
    for _ in range(3):
        with pytest.raises(KeyError), sections.enter("fails", False):
            raise KeyError("x")


@pytest.mark.parametrize("interval", [1, 2, 3, 7, 1000, 2500])
def test_of_n_entries_the_first_is_measured(interval: int) -> None:
    sections = Sections(interval, None)
    measured = []
    for entry in range(3 * interval + 1):
        run(sections, "a")
        if sections.take():
            measured.append(entry)
    assert measured == [0, interval, 2 * interval, 3 * interval]


@pytest.mark.parametrize("interval", [1, 4])
def test_threads_do_not_mix_their_times(interval: int) -> None:
    sections = Sections(interval, None)
    gate = threading.Barrier(4)

    def work() -> None:
        gate.wait()
        run(sections, "a", 2000)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    summary = sections.take()["a"]
    # With skipping, an entry that comes while another begins may be measured as well.
    assert 8000 / interval <= summary[Statistic.NUM] <= (8000 if interval == 1 else 8000 / interval * 1.5)
    assert summary[Statistic.MIN] >= 0


def test_memory_is_bounded_and_the_number_is_not(sections: Sections) -> None:
    run(sections, "a", KEPT + 100)
    assert len(sections._known["a"].kept) == KEPT
    assert number(sections, "a") == KEPT + 100


def test_too_many_names_are_told_once(sections: Sections, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "holdfast.straggler"):
        for step in range(MOST_SECTIONS + 5):
            run(sections, f"step_{step}")
    assert len(sections.take()) == MOST_SECTIONS
    assert [one.getMessage() for one in caplog.records] == [
        "section 'step_1000' is not measured, nor any further one: there are 1000 already. "
        "A section's name should not contain a step or a batch number"
    ]


def test_a_raising_body_stops_the_capture() -> None:
    source = Told()
    sections = Sections(1, Capture(source))
    for _ in range(2):
        with pytest.raises(KeyError), sections.enter("a", True):
            raise KeyError("x")
    assert source.calls == ["start a", "stop"] * 2


def line() -> int:
    caller = inspect.currentframe().f_back  # type: ignore[union-attr]
    assert caller is not None
    return caller.f_lineno


def test_a_section_without_a_name_is_called_after_its_place() -> None:
    Detector.initialize(scores_to_compute="individual_perf_scores", gather_on_rank0=False)
    with Detector.detection_section():
        first = line() - 1
    with ExitStack() as stack:
        stack.enter_context(Detector.detection_section(profile_cuda=False))
        second = line() - 1
    report = Detector.generate_report()
    assert report is not None
    assert set(report.local_section_summaries) == {f"{__file__}:{first}", f"{__file__}:{second}"}


@pytest.mark.parametrize("name", ["", 3, b"fwd", ["fwd"], "x" * 1001])
def test_what_is_no_name_is_logged_once_and_not_measured(
    name: object, caplog: pytest.LogCaptureFixture
) -> None:
    Detector.initialize()
    ran = 0
    for _ in range(2):
        with Detector.detection_section(name):  # type: ignore[arg-type]
            ran += 1
    (said,) = caplog.messages
    assert "detection_section: name must be a text of 1 to 1000 characters, not" in said
    report = Detector.generate_report()
    assert ran == 2 and report is not None and report.local_section_summaries == {}


@pytest.mark.parametrize("interval", [1, 3])
def test_a_section_that_waits_is_measured_and_known_as_such(interval: int) -> None:
    sections = Sections(interval, None)
    for _ in range(6):
        with sections.enter("barrier", False, waits=True), sections.enter("work", False):
            pass
    assert sections.waiting == {"barrier"}
    assert {name: one[Statistic.NUM] for name, one in sections.take().items()} == dict.fromkeys(
        ("barrier", "work"), 6 // interval
    )


def test_a_name_is_for_work_or_for_waiting(caplog: pytest.LogCaptureFixture) -> None:
    Detector.initialize()
    for _ in range(2):
        with Detector.detection_section("fwd"), Detector.collective_section("barrier", profile_cuda=False):
            pass
        with Detector.collective_section("fwd"), Detector.detection_section("barrier"):
            pass
        with Detector.detection_section("barrier", False), Detector.collective_section(""):
            pass
    fwd, barrier, nothing = caplog.messages
    assert "collective_section: 'fwd' is a detection_section already; a name is" in fwd
    assert "detection_section: 'barrier' is a collective_section already; a" in barrier
    assert "collective_section: name must be a text of 1 to 1000 characters" in nothing
    report = Detector.generate_report()
    assert report is not None
    numbers = {name: one[Statistic.NUM] for name, one in report.local_section_summaries.items()}
    assert numbers == {"fwd": 2, "barrier": 2}
