"""The class that training code calls: order of calls, arguments, one rank without torch.distributed."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.straggler import CallableId, Detector, Report, Statistic
from holdfast.straggler.scores import Summary, summarise
from holdfast.straggler.session import Session
from holdfast.straggler.settings import Settings
from tests.straggler.sources import Told

NOT_INITIALIZED: list[Callable[[], object]] = [
    lambda: Detector.detection_section("a"),
    lambda: Detector.detection_section(),
    lambda: Detector.collective_section("barrier"),
    lambda: Detector.wrap_callables([CallableId(str, "upper")]),
    Detector.generate_report,
    Detector.generate_report_if_interval_elapsed,
    Detector.is_interval_elapsed,
]


@pytest.mark.parametrize("call", NOT_INITIALIZED)
def test_before_it_is_initialized(call: Callable[[], object]) -> None:
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
    report = Detector.generate_report()
    assert report is not None and report.local_section_summaries == {}


def test_a_section_that_is_open_at_shutdown_closes_quietly() -> None:
    Detector.initialize()
    with Detector.detection_section("a"):
        Detector.shutdown()
        Detector.initialize()
    report = Detector.generate_report()
    assert report is not None and report.local_section_summaries == {}


@pytest.mark.parametrize(
    ("argument", "value", "allowed"),
    [
        (
            "scores_to_compute",
            "relative",
            "'all' or a list of 'relative_perf_scores' and 'individual_perf_scores'",
        ),
        ("scores_to_compute", ["relative_perf_scores", "typo"], "'all' or a list of"),
        ("scores_to_compute", [], "'all' or a list of"),
        ("scores_to_compute", None, "'all' or a list of"),
        ("gather_on_rank0", 1, "True or False"),
        ("background", 1, "True or False"),
        ("profiling_interval", 0, "a whole number from 1 on"),
        ("profiling_interval", 1.5, "a whole number from 1 on"),
        ("profiling_interval", True, "a whole number from 1 on"),
        ("report_time_interval", -1, "seconds from 0 on"),
        ("report_time_interval", math.nan, "seconds from 0 on"),
        ("report_time_interval", math.inf, "seconds from 0 on"),
        ("report_time_interval", "60", "seconds from 0 on"),
        ("max_profiled_sections", 0, "a whole number from 1 on, or None for all"),
        ("node_name", "", "a non-empty text, or None for the host's name"),
        ("node_name", 7, "a non-empty text, or None for the host's name"),
        ("process_group", "world", "a group that this rank is in"),
        ("groups", "aabb", ""),
        ("groups", [[0], [1]], ""),
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


def test_the_report_of_one_rank() -> None:
    report = one_report()
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
    with caplog.at_level(logging.WARNING, "holdfast.straggler"):
        assert one_report().rank_to_node == {3: "here"}
        Detector.generate_report()
    assert [one.getMessage() for one in caplog.records] == [
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


def test_the_scores_of_kernels() -> None:
    windows: list[dict[str, Summary]] = [{"gemm": summarise([10.0])}, {"gemm": summarise([20.0])}]
    session = Session(Settings(node_name="here"), Told(*windows))
    first, second = session.report(), session.report()
    assert first is not None and second is not None
    assert (first.gpu_individual_perf_scores, second.gpu_individual_perf_scores) == ({0: 1.0}, {0: 0.5})
    assert second.gpu_relative_perf_scores == {0: 1.0}
    assert second.local_kernel_summaries["gemm"][Statistic.MED] == 20.0
    assert second.kernel_source == "told"
    found = second.identify_stragglers()
    assert {one.rank for one in found["straggler_gpus_individual"]} == {0}
