"""Whole reports of several ranks with given times: the documented example of eight ranks, from times to stragglers."""

from __future__ import annotations

import math

import pytest

from holdfast.straggler import Report, Statistic
from holdfast.straggler.kernels.cuda_events import CudaEventSource
from holdfast.straggler.scores import Summary, summarise
from holdfast.straggler.session import ESTIMATION_STEPS, ReportInterval, Session
from holdfast.straggler.settings import Settings
from tests.straggler.ranks import ThreadChannel, run
from tests.straggler.sources import Gpu, Told
from tests.straggler.test_report import DATA_LOADING, FWD, GPU

SECTIONS = {"data_loading": DATA_LOADING, "fwd": FWD}


def session(channel: ThreadChannel, *kernels: dict[str, Summary], **changes: object) -> Session:
    settings = Settings(**{"node_name": f"node-{channel.rank // 4}", **changes})  # type: ignore[arg-type]
    return Session(settings, Told(*kernels), channel)


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
    assert second.rank_to_node == {rank: f"node-{rank // 4}" for rank in range(8)}
    stragglers = second.identify_stragglers()["straggler_sections_relative"]
    assert {name: {one.rank for one in who} for name, who in stragglers.items()} == {"data_loading": {6}}
    assert second.local_section_summaries["fwd"][Statistic.NUM] == 1


def test_each_rank_its_own() -> None:
    found, calls = run(8, lambda channel: eight_ranks(channel, gather_on_rank0=False))
    for rank, (_, second) in enumerate(found):
        assert second is not None
        assert second.rank == rank
        assert second.section_relative_perf_scores["fwd"] == pytest.approx({rank: FWD[rank]}, rel=1e-6)
        assert second.rank_to_node == {rank: f"node-{rank // 4}"}
    assert {kind for kind, _ in calls} == {"least", "from_rank"}


def test_individual_scores_that_are_not_gathered_send_nothing() -> None:
    changes = {"gather_on_rank0": False, "scores_to_compute": "individual_perf_scores"}
    found, calls = run(8, lambda channel: eight_ranks(channel, **changes))
    assert calls == []
    assert found[5][1] is not None
    assert found[5][1].section_individual_perf_scores["data_loading"] == pytest.approx({5: 0.847}, rel=1e-6)


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
        settings = Settings(node_name="n")
        one = Session(settings, CudaEventSource(cuda=gpu), channel)
        report = None
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
