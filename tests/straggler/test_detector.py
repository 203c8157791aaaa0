"""The class that training code calls: order of calls, arguments, one rank alone; and sections in the hot path."""

from __future__ import annotations

import inspect
import logging
import math
import re
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

from holdfast.straggler import CallableId, Detector, Report, Statistic, Thresholds
from holdfast.straggler.sections import KEPT, MOST_SECTIONS, Sections


def test_before_it_is_initialized() -> None:
    calls: list[Callable[[], object]] = [
        lambda: Detector.detection_section("a"),
        lambda: Detector.detection_section(),
        lambda: Detector.collective_section("barrier"),
        lambda: Detector.wrap_callables([CallableId(str, "upper")]),
        lambda: Detector.set_thresholds(Thresholds()),
        Detector.generate_report,
        Detector.generate_report_if_interval_elapsed,
        Detector.is_interval_elapsed,
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match=r"^Detector is not initialized\. "):
            call()


def test_initializing_twice_is_said_and_changes_nothing() -> None:
    Detector.initialize()
    with Detector.detection_section("a"):
        pass
    with pytest.raises(RuntimeError, match=r"Detector is initialized already: call Detector\.shutdown"):
        Detector.initialize(profiling_interval=7)
    report = Detector.generate_report()
    assert report is not None and report.local_section_summaries["a"][Statistic.NUM] == 1


def test_a_new_session_knows_nothing_of_the_old_one() -> None:
    for _ in range(2):
        Detector.initialize()
        with Detector.detection_section("a"):
            pass
        Detector.shutdown()
        with pytest.raises(RuntimeError):
            Detector.detection_section("a")
    Detector.initialize()
    with Detector.detection_section("open at shutdown"):
        Detector.shutdown()
        Detector.initialize()
    report = Detector.generate_report()
    assert report is not None and report.local_section_summaries == {}


@pytest.mark.parametrize(
    ("argument", "value", "allowed"),
    [
        *(
            (
                "scores_to_compute",
                wrong,
                "'all' or a list of 'relative_perf_scores' and 'individual_perf_scores'",
            )
            for wrong in ("relative", ["relative_perf_scores", "typo"], [], None)
        ),
        ("gather_on_rank0", 1, "True or False"),
        ("background", 1, "True or False"),
        *(("profiling_interval", wrong, "a whole number from 1 on") for wrong in (0, 1.5, True)),
        *(("report_time_interval", wrong, "seconds from 0 on") for wrong in (-1, math.nan, math.inf, "60")),
        ("max_profiled_sections", 0, "a whole number from 1 on, or None for all"),
        ("node_name", "", "a non-empty text, or None for the host's name"),
        ("node_name", 7, "a non-empty text, or None for the host's name"),
        ("process_group", "world", "a group that this rank is in"),
        *(("groups", wrong, "one label") for wrong in ("aabb", b"ab", 3, {0: 1}, [[0], [1]])),
        ("thresholds", 1.2, ""),
    ],
)
def test_a_wrong_argument_is_named_with_what_is_allowed(argument: str, value: Any, allowed: str) -> None:
    text = f"Detector.initialize: {argument} must be {allowed}"
    with pytest.raises(ValueError, match=f"^{re.escape(text)}.*not {re.escape(repr(value))}$"):
        Detector.initialize(**{argument: value})
    assert not Detector.initialized


def one_report(**arguments: Any) -> Report:
    Detector.initialize(node_name="here", **arguments)
    for name in ("data_loading", "fwd"):
        with Detector.detection_section(name, profile_cuda=False):
            pass
    report = Detector.generate_report()
    assert report is not None
    return report


def test_the_report_of_one_rank(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "holdfast.straggler"):
        report = one_report()
        for _ in range(2):
            Detector.generate_report()
    assert caplog.messages == [
        "straggler reports have no verdicts: the only rank is compared with no other: there must be 3 ranks that do "
        "the same work. Scores are not affected"
    ]
    assert report.section_relative_perf_scores == {"data_loading": {0: 1.0}, "fwd": {0: 1.0}}
    assert report.section_individual_perf_scores == {"data_loading": {0: 1.0}, "fwd": {0: 1.0}}
    assert math.isnan(report.gpu_relative_perf_scores[0]) and math.isnan(report.gpu_individual_perf_scores[0])
    assert report.rank_to_node == {0: "here"}
    assert (report.rank, report.gather_on_rank0, report.kernel_source) == (0, True, "none")
    assert 0 < report.generate_report_elapsed_time < 10_000
    assert report.local_kernel_summaries == {}


@pytest.mark.parametrize("gather", [True, False])
def test_scores_that_were_not_asked_for_are_empty(gather: bool) -> None:
    report = one_report(scores_to_compute=["individual_perf_scores"], gather_on_rank0=gather)
    assert report.gpu_relative_perf_scores == report.section_relative_perf_scores == {}
    assert set(report.section_individual_perf_scores) == {"data_loading", "fwd"}
    Detector.shutdown()
    report = one_report(scores_to_compute="relative_perf_scores", gather_on_rank0=gather)
    assert report.gpu_individual_perf_scores == report.section_individual_perf_scores == {}
    assert set(report.section_relative_perf_scores) == {"data_loading", "fwd"}


def test_one_of_several_ranks_without_a_process_group_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert one_report().rank_to_node == {3: "here"}
    Detector.generate_report()
    assert caplog.messages == [
        "this is rank 3 of 8, but torch.distributed is not initialised: its straggler reports are about itself only. "
        "Call init_process_group() before the first report"
    ]


@pytest.mark.parametrize("interval", [1e-6, 0, 0.0])
def test_reports_by_interval(interval: float) -> None:
    """Every step is longer than the first; 0 asks for reports as often as possible."""
    Detector.initialize(report_time_interval=interval)
    made = []
    for _ in range(20):
        report = Detector.generate_report_if_interval_elapsed()
        assert Detector.is_interval_elapsed() == (report is not None)
        made.append(report is not None)
    assert made == [False] * 16 + [True] * 4


# -- sections in the hot path: what is measured, what is skipped, what is bounded


def numbers(sections: Sections) -> dict[str, float]:
    return {name: one[Statistic.NUM] for name, one in sections.take().items()}


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
    assert numbers(sections) == {"a": 3, "b": 1}
    run(sections, "a", 2)
    assert numbers(sections) == {"a": 2}
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
    assert numbers(sections) == {"a": KEPT + 100}


def test_too_many_names_are_told_once(sections: Sections, caplog: pytest.LogCaptureFixture) -> None:
    for step in range(MOST_SECTIONS + 5):
        run(sections, f"step_{step}")
    assert len(sections.take()) == MOST_SECTIONS
    assert caplog.messages == [
        "section 'step_1000' is not measured, nor any further one: there are 1000 already. "
        "A section's name should not contain a step or a batch number"
    ]


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
    assert numbers(sections) == dict.fromkeys(("barrier", "work"), 6 // interval)


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
    summaries = report.local_section_summaries
    assert {name: one[Statistic.NUM] for name, one in summaries.items()} == {"fwd": 2, "barrier": 2}
