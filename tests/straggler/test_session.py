"""Whole reports of several ranks with given times, what they say, and the log's lines on verdicts."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from holdfast.straggler import Report, Statistic, StragglerId
from holdfast.straggler.host import HostLosses
from holdfast.straggler.kernels.cuda_events import CudaEventSource
from holdfast.straggler.kernels.source import KernelWindow
from holdfast.straggler.log_texts import VerdictNews
from holdfast.straggler.scores import Summary, summarise
from holdfast.straggler.session import ESTIMATION_STEPS, ReportInterval, Session
from holdfast.straggler.settings import Settings
from tests.straggler.doubles import Gpu, SteadyHost, ThreadChannel, Told, run
from tests.straggler.readings.history import verdict

DATA_LOADING = dict(enumerate([0.961, 0.919, 0.941, 0.999, 1.0, 0.847, 0.591, 0.788]))
FWD = dict(enumerate([0.994, 0.949, 0.994, 0.998, 1.0, 0.947, 0.991, 0.988]))
SECTIONS = {"data_loading": DATA_LOADING, "fwd": FWD}
GPU = dict(enumerate([0.703, 0.978, 0.689, 0.663, 0.673, 0.925, 0.720, 0.737]))
NODES = {rank: f"node-{rank // 4}" for rank in range(8)}


def made(**changes: Any) -> Report:
    fields: dict[str, Any] = {
        "gpu_relative_perf_scores": GPU,
        "section_relative_perf_scores": SECTIONS,
        "gpu_individual_perf_scores": dict.fromkeys(range(8), 1.0),
        "section_individual_perf_scores": {"data_loading": FWD, "fwd": FWD},
        "rank_to_node": NODES,
        "local_section_summaries": {"fwd": summarise([1.0])},
        "local_kernel_summaries": {},
        "generate_report_elapsed_time": 1.5,
        "gather_on_rank0": True,
        "rank": 0,
    }
    return Report(**{**fields, **changes})


def test_the_stragglers_of_the_documented_example() -> None:
    found = made().identify_stragglers()
    assert found == {
        "straggler_gpus_relative": {StragglerId(rank, NODES[rank]) for rank in (0, 2, 3, 4, 6, 7)},
        "straggler_gpus_individual": set(),
        "straggler_sections_relative": {"data_loading": {StragglerId(6, "node-1")}},
        "straggler_sections_individual": {},
    }


def test_a_threshold_for_each_kind() -> None:
    found = made().identify_stragglers(
        gpu_rel_threshold=0.67, section_rel_threshold=0.8, section_indiv_threshold=0.948
    )
    assert found["straggler_gpus_relative"] == {StragglerId(3, "node-0")}
    assert {one.rank for one in found["straggler_sections_relative"]["data_loading"]} == {6, 7}
    assert {one.rank for one in found["straggler_sections_individual"]["fwd"]} == {5}
    found = made(gpu_relative_perf_scores={0: 0.75, 1: math.nan}).identify_stragglers()
    assert found["straggler_gpus_relative"] == set()  # the threshold itself is good enough


@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf, "0.7", None, True])
def test_a_threshold_must_be_a_number(value: Any) -> None:
    with pytest.raises(ValueError, match=r"gpu_indiv_threshold must be a number from 0 on, not"):
        made().identify_stragglers(gpu_indiv_threshold=value)


def test_json_has_all_fields_and_no_nan() -> None:
    told = made(gpu_individual_perf_scores={0: math.nan})
    read = json.loads(told.to_json())
    assert read.keys() == told.to_dict().keys() == vars(told).keys() - {"_verdicts"} | {"verdicts"}
    assert read["gpu_individual_perf_scores"] == {"0": None}
    assert read["section_relative_perf_scores"]["data_loading"]["6"] == 0.591
    assert read["local_section_summaries"]["fwd"] == {
        "MIN": 1.0, "MAX": 1.0, "MED": 1.0, "AVG": 1.0, "STD": None, "NUM": 1,
    }  # fmt: skip
    assert told.to_dict()["rank_to_node"] == NODES


# -- one line in the log for each verdict that begins or ends


def test_a_verdict_is_told_when_it_begins_and_when_it_is_over_and_not_between() -> None:
    news, slow = VerdictNews(), verdict(3, "n0", 1.31, gpu=False)
    assert news.of([]) == []
    (line,) = news.of([slow])
    assert line == f"STRAGGLER: {slow}"
    assert line.startswith("STRAGGLER: rank 3 (node n0): section, 1.31 × slower since report 3: section ")
    assert news.of([verdict(3, "n0", 1.4, gpu=False)]) == []
    both = [verdict(3, "n0", 1.4, gpu=False), verdict(1, "n0", 1.2)]
    assert [text.partition(": GPU")[0] for text in news.of(both)] == ["STRAGGLER: rank 1 (node n0)"]
    assert news.of(both[1:]) == []
    assert news.of(both[1:]) == ["STRAGGLER: rank 3 (node n0) is no longer slow: section data_loading"]
    assert news.of([]) == []
    assert news.of([]) == ["STRAGGLER: rank 1 (node n0) is no longer slow: GPU"]
    assert news.of([]) == []
    assert news.of([slow]) == [f"STRAGGLER: {slow}"]


def test_a_verdict_that_comes_and_goes_or_is_withheld_is_told_once() -> None:
    news, slow = VerdictNews(), verdict(3, "n0", 1.31)
    assert len(news.of([slow])) == 1
    for _ in range(5):
        assert news.of([]) == []
        assert news.of([slow]) == []
    why = "9 of 64 compared ranks are slow (GPU): too many"
    assert news.of([], (why,)) == []
    assert news.of([], (why,)) == [f"STRAGGLER: rank 3 (node n0) is no longer named for GPU: {why}"]


def test_very_many_verdicts_are_few_lines() -> None:
    news = VerdictNews()
    slow = [verdict(rank, f"n{rank}", 1.3) for rank in range(1600)]
    lines = news.of(slow)
    assert lines[:16] == [f"STRAGGLER: {one}" for one in slow[:16]]
    assert lines[16:] == [
        "STRAGGLER: 1584 more verdicts, on 1584 ranks named as slow: rank 16–1599. The report has each in full"
    ]
    assert news.of(slow) == news.of([]) == []
    lines = news.of([])
    assert len(lines) == 17
    assert lines[-1].startswith("STRAGGLER: 1584 more verdicts, on 1584 ranks no longer named: rank 16–1599.")
    scattered = news.of([verdict(rank, "n", 1.3) for rank in range(0, 16_000, 10)])
    assert len(scattered) == 17 and len(scattered[-1]) < 1000 and ", …. The report" in scattered[-1]


def test_nothing_in_a_name_acts_on_a_terminal() -> None:
    odd = "\x1b[31m\n\x07"
    (line,) = VerdictNews().of([verdict(3, odd, 1.31)])
    assert r"(node \x1b[31m\n\x07)" in line and line.isprintable()


# -- whole reports of several ranks with given times


def session(
    channel: ThreadChannel,
    *kernels: KernelWindow | dict[str, Summary],
    host: HostLosses | None = None,
    **changes: object,
) -> Session:
    settings = Settings(**{"node_name": f"node-{channel.rank // 4}", **changes})  # type: ignore[arg-type]
    return Session(settings, Told(*kernels), channel, host or SteadyHost())


def ran(session: Session, section: str, milliseconds: float) -> None:
    """As if a body had taken so long."""
    with session.sections.enter(section, False):
        pass
    kept = session.sections._known[section].kept
    kept.pop()
    kept.append(round(milliseconds * 1e6))


def eight_ranks(channel: ThreadChannel, **changes: object) -> list[Report | None]:
    """Two windows: in the first all ranks are fast, in the second as slow as in the documented example."""
    rank = channel.rank
    kernels = [
        {"gemm": summarise([1.0])},
        {"gemm": summarise([1.0 / GPU[rank]]), f"own_{rank}": summarise([1.0])},
    ]
    one = session(channel, *kernels, **changes)
    reports = []
    for window in range(2):
        for name, scores in SECTIONS.items():
            ran(one, name, 10.0 / scores[rank] if window else 10.0)
        reports.append(one.report())
    return reports


def test_the_documented_example_of_eight_ranks() -> None:
    found, calls = run(8, eight_ranks)
    # The identities once, then one row for each report.
    assert [kind for kind, _ in calls].count("bytes_to_rank_0") == 3
    assert found[1:] == [[None, None]] * 7
    first, second = found[0]
    assert first is not None and second is not None
    assert first.identify_stragglers()["straggler_sections_relative"] == {}
    for name, scores in SECTIONS.items():
        assert second.section_relative_perf_scores[name] == pytest.approx(scores, rel=1e-6)
        assert second.section_individual_perf_scores[name] == pytest.approx(scores, rel=1e-6)
    best = max(GPU.values())
    assert second.gpu_relative_perf_scores == pytest.approx({rank: one / best for rank, one in GPU.items()})
    assert second.rank_to_node == NODES
    stragglers = second.identify_stragglers()["straggler_sections_relative"]
    assert stragglers == {"data_loading": {StragglerId(6, "node-1")}}
    assert second.local_section_summaries["fwd"][Statistic.NUM] == 1


def test_each_rank_its_own() -> None:
    found, calls = run(8, lambda channel: eight_ranks(channel, gather_on_rank0=False))
    for rank, (_, second) in enumerate(found):
        assert second is not None and second.rank == rank
        assert second.section_relative_perf_scores["fwd"] == pytest.approx({rank: FWD[rank]}, rel=1e-6)
        assert second.rank_to_node == {rank: NODES[rank]}
    assert {kind for kind, _ in calls} == {"least", "from_rank"}


def test_a_section_of_one_rank_has_an_individual_score_and_blames_nobody() -> None:
    def work(channel: ThreadChannel) -> Report | None:
        one = session(channel, {})
        ran(one, "step", 1.0)
        if channel.rank == 1:
            ran(one, "save", 5.0)
        return one.report()

    report = run(2, work)[0][0]
    assert report is not None
    assert all(math.isnan(score) for score in report.section_relative_perf_scores["save"].values())
    assert math.isnan(report.section_individual_perf_scores["save"][0])
    assert report.section_individual_perf_scores["save"][1] == 1.0
    assert report.identify_stragglers()["straggler_sections_relative"] == {}
    assert report.local_section_summaries.keys() == {"step"}


@pytest.mark.parametrize("gathered", [True, False])
def test_a_section_that_waits_is_shown_and_never_scored(gathered: bool) -> None:
    """The fast rank waits longest: as work it would be the slow one."""

    def work(channel: ThreadChannel) -> Report | None:
        one = session(channel, {}, gather_on_rank0=gathered)
        ran(one, "fwd", 10.0 + channel.rank)
        with one.sections.enter("barrier", False, waits=True):
            pass
        one.sections._known["barrier"].kept[0] = 5_000_000 * (4 - channel.rank)
        return one.report()

    found, _ = run(4, work)
    for report in found if not gathered else found[:1]:
        assert report is not None
        assert set(report.local_section_summaries) == {"fwd", "barrier"}
        assert set(report.section_relative_perf_scores) == {"fwd"}
        assert set(report.section_individual_perf_scores) == {"fwd"}


def test_gpu_times_of_sections_that_wait_are_no_compute() -> None:
    """Rank 2 is slow, and the others wait for it: only its own section is scored."""

    def work(channel: ThreadChannel) -> Report | None:
        gpu, slow = Gpu(), channel.rank == 2
        one = Session(Settings(node_name="n"), CudaEventSource(cuda=gpu), channel, SteadyHost())
        for _ in range(3):
            for _ in range(5):
                with one.sections.enter("forward", True):
                    gpu.now += 30.0 if slow else 20.0
                with one.sections.enter("barrier", True, waits=True):
                    gpu.now += 0.2 if slow else 10.2
            report = one.report()
        one.close()
        return report

    report = run(4, work)[0][0]
    assert report is not None
    assert report.gpu_relative_perf_scores == pytest.approx({0: 1, 1: 1, 2: 2 / 3, 3: 1})
    assert {one.rank for one in report.identify_stragglers()["straggler_gpus_relative"]} == {2}
    assert report.local_kernel_summaries.keys() == {"forward"}
    assert report.local_collective_summaries["barrier"][Statistic.MED] == pytest.approx(10200)


def steps(interval: ReportInterval, seconds: float, count: int, now: float = 0.0) -> list[int]:
    """The steps, of so many of so many seconds each, in which a report is due."""
    due = []
    for number in range(1, count + 1):
        interval.step(now + number * seconds)
        estimate = interval.estimate()
        if not interval.agreed and estimate is not None:
            interval.agree(estimate)
        if interval.due():
            due.append(number)
    return due


@pytest.mark.parametrize(
    ("interval", "least", "seconds", "count", "due"),
    [
        (60.0, 1, 2.0, 100, [30, 60, 90]),
        (1.0, 1, 1.0, ESTIMATION_STEPS + 3, [17, 18, 19]),  # none before steps are known
        (1.0, 1, 5.0, 19, [17, 18, 19]),  # steps longer than the interval
        (0.0, 1, 1.0, ESTIMATION_STEPS + 3, [17, 18, 19]),  # as often as possible
        (0.0, 20, 1.0, 60, [20, 40, 60]),  # but with something measured in between
        (1.0, 40, 1.0, 100, [40, 80]),
    ],
)
def test_in_which_steps_a_report_is_due(
    interval: float, least: int, seconds: float, count: int, due: list[int]
) -> None:
    assert steps(ReportInterval(interval, least), seconds, count) == due


def test_all_ranks_follow_the_greatest_estimate() -> None:
    fast, slow = ReportInterval(60.0, 1), ReportInterval(60.0, 1)
    due = []
    for number in range(1, 200):
        fast.step(number * 1.0)
        slow.step(number * 3.0)
        if number == ESTIMATION_STEPS + 1:
            estimates = [fast.estimate(), slow.estimate()]
            assert estimates == [60.0, 20.0]
            for one in (fast, slow):
                one.agree(60.0)
        due_here = [fast.due(), slow.due()]
        assert due_here[0] == due_here[1]
        due += [number] if due_here[0] else []
    assert due == [60, 120, 180]


def test_a_revised_number_counts_from_the_next_report_on() -> None:
    interval = ReportInterval(60.0, 1)
    assert steps(interval, seconds=10.0, count=18) == [18]
    interval.agree(3)
    assert steps(interval, seconds=10.0, count=8, now=180.0) == [6]  # the one of the old number, then
    assert steps(interval, seconds=10.0, count=4, now=260.0) == [1, 4]


def test_the_time_of_a_report_is_no_step() -> None:
    interval = ReportInterval(60.0, 1)
    for number in range(ESTIMATION_STEPS + 1):
        interval.step(number * 10.0 + 8.0)
        interval.resume(number * 10.0 + 9.0)
    assert interval.estimate() == 60.0 / 9.0
