"""Verdicts in reports: ranks as threads that report over several windows, one of them slow or none."""

from __future__ import annotations

import json
import math
import random
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from holdfast.straggler import Detector, Report, Thresholds
from holdfast.straggler.gpu_facts import FIELDS
from holdfast.straggler.host import HostLosses
from holdfast.straggler.kernels.source import KernelWindow
from holdfast.straggler.scores import Summary, summarise
from holdfast.straggler.session import Session
from holdfast.straggler.state_file import as_bytes
from tests.straggler.doubles import SteadyHost, Table, ThreadChannel, run
from tests.straggler.test_session import ran, session

RUNS = 5
Slow = Callable[[int, str], float]
"""How many times as long a rank takes for a section."""


def window(one: Session, rank: int, slow: Slow, noise: random.Random) -> Report | None:
    for name, milliseconds in (("data_loading", 10.0), ("fwd", 30.0)):
        for _ in range(RUNS):
            ran(one, name, milliseconds * slow(rank, name) * noise.gauss(1.0, 0.01))
    return one.report()


def reports(
    slow: Slow, size: int = 8, windows: int = 4, ranks: Sequence[int] | None = None, **changes: Any
) -> list[Report]:
    """Rank 0's reports; the others must have none."""

    def work(channel: ThreadChannel) -> list[Report | None]:
        one = session(channel, *[{}] * windows, **changes)
        noise = random.Random(channel.rank)
        made = [window(one, channel.rank, slow, noise) for _ in range(windows)]
        one.close()
        return made

    found, _ = run(size, work, ranks)
    assert found[1:] == [[None] * windows] * (size - 1)
    return [report for report in found[0] if report is not None]


def one_loads_slowly(rank: int, section: str) -> float:
    return 1.5 if (rank, section) == (5, "data_loading") else 1.0


def test_a_rank_that_is_slow_in_a_section_is_named_once_it_lasts() -> None:
    first, *learning, fourth, fifth = reports(one_loads_slowly, windows=5)
    assert first.withheld == ("the job is warming up: this report counts for nothing",)
    assert not any(report.verdicts() for report in (first, *learning))
    for report in (fourth, fifth):
        (verdict,) = report.verdicts()
        assert (verdict.rank, verdict.node, verdict.ranks, verdict.since) == (5, "node-1", (5,), 2)
        assert (verdict.kind, verdict.section) == ("section", "data_loading")
        assert verdict.slowdown == pytest.approx(1.5, rel=0.03)
        evidence = r"section data_loading takes \d\d % longer than on the median of 7 "
        assert re.match(evidence, verdict.evidence)
        assert report.withheld == ()


@pytest.mark.parametrize(("seconds", "named"), [(0.25, [5]), (2.5, [])])
def test_what_a_section_costs_depends_on_the_time_between_reports(seconds: float, named: list[int]) -> None:
    """Rank 5 loses 25 ms in its sections, which make 200 ms."""
    last = reports(one_loads_slowly, host=SteadyHost(seconds))[-1]
    assert [verdict.rank for verdict in last.verdicts()] == named
    assert ["% of the measured time is spent there" in why for why in last.withheld] == [True] * (not named)
    assert last.section_relative_perf_scores["data_loading"][5] < 0.75


@pytest.mark.parametrize("interval", [1, 10])
def test_where_few_runs_are_measured_their_share_of_the_time_counts(interval: int) -> None:
    started = monotonic()
    one = session(ThreadChannel(Table(1), 0, [0]), host=HostLosses(), profiling_interval=interval)
    try:
        begun = monotonic()
        while monotonic() < begun + 0.02:
            pass
        least, elapsed = monotonic() - begun, one._take().elapsed
        assert least <= interval * elapsed * (1 + 1e-9) <= monotonic() - started
    finally:
        one.close()


def test_verdicts_are_in_json() -> None:
    last = reports(one_loads_slowly)[-1]
    read = json.loads(last.to_json())
    (told,) = read["verdicts"]
    assert told == {**last.to_dict()["verdicts"][0], "ranks": [5]}
    assert told.keys() == {"rank", "node", "ranks", "kind", "slowdown", "since", "evidence", "section"}
    assert (told["rank"], told["kind"], read["withheld"]) == (5, "section", [])


@pytest.mark.parametrize("groups", [[0] * 4 + ["last"] * 4, lambda rank: rank // 4])
def test_a_slower_stage_is_no_straggler_and_hides_none(groups: Any) -> None:
    def healthy(rank: int, section: str) -> float:
        return 1.5 if rank >= 4 else 1.0

    def with_a_slow_rank(rank: int, section: str) -> float:
        return healthy(rank, section) * (1.6 if (rank, section) == (2, "fwd") else 1.0)

    assert [(one.verdicts(), one.withheld) for one in reports(healthy, groups=groups)[1:]] == [([], ())] * 3
    assert [one.rank for one in reports(with_a_slow_rank, groups=groups)[-1].verdicts()] == [2]
    (node,) = reports(lambda rank, section: 1.5 if rank >= 4 else 1.0)[-1].verdicts()
    assert (node.rank, node.node, node.ranks) == (None, "node-1", (4, 5, 6, 7))
    assert node.evidence.endswith("; if it has other work than these, give groups=")


def test_too_few_comparable_ranks_are_said() -> None:
    why = "ranks are compared with no other: there must be 3 ranks that do the same work"
    assert reports(lambda rank, section: 1.0 + rank, size=2)[-1].withheld == (f"2 of 2 {why}",)
    assert reports(one_loads_slowly, size=5, groups=[0, 0, 0, 1, 1])[-1].withheld == (f"2 of 5 {why}",)


def test_ranks_of_a_process_group_have_their_global_numbers() -> None:
    asked: list[int] = []
    last = reports(one_loads_slowly, ranks=range(10, 18), groups=asked.append)[-1]
    assert [one.rank for one in last.verdicts()] == [15]
    assert asked == list(range(10, 18))  # by rank 0, once


def test_thresholds_can_be_changed_at_run_time() -> None:
    def work(channel: ThreadChannel) -> list[Report | None]:
        one = session(channel, *[{}] * 6, thresholds=Thresholds(min_slowdown=2))
        noise = random.Random(channel.rank)
        found = []
        for number in range(6):
            if number == 3:
                one.verdicts.use(Thresholds())
            found.append(window(one, channel.rank, one_loads_slowly, noise))
        return found

    told = [len(one.verdicts()) for one in run(8, work)[0][0] if one is not None]
    assert told == [0, 0, 0, 1, 1, 1]


def test_set_thresholds_is_checked() -> None:
    Detector.initialize(thresholds=Thresholds(min_slowdown=1.2), groups=[0])
    Detector.set_thresholds(Thresholds(min_slowdown=1.3))
    with pytest.raises(ValueError, match=r"Detector.set_thresholds: thresholds must be .*, not 1.3"):
        Detector.set_thresholds(1.3)  # type: ignore[arg-type]


def test_groups_that_do_not_fit_cost_only_the_verdicts(caplog: pytest.LogCaptureFixture) -> None:
    def fails(rank: int) -> int:
        raise KeyError(rank)

    last = reports(one_loads_slowly, groups=[0, 1, 2])[-1]
    assert last.verdicts() == [] and "3 labels for 8 ranks" in last.withheld[0]
    assert last.section_relative_perf_scores["data_loading"][5] < 0.75
    assert "KeyError: 0" in reports(one_loads_slowly, groups=fails)[-1].withheld[0]
    assert len(caplog.messages) == 2  # once for each job, of four reports


def test_without_gathering_it_is_said() -> None:
    def work(channel: ThreadChannel) -> Report | None:
        return window(session(channel, {}, gather_on_rank0=False), 0, one_loads_slowly, random.Random(0))

    for report in run(3, work)[0]:
        assert report is not None and report.verdicts() == []
        assert "gather_on_rank0=True" in report.withheld[0]


WITHOUT_NUMPY = """
import logging, sys
sys.modules["numpy"] = None
logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
from tests.straggler.test_verdicts import one_loads_slowly, reports
for report in reports(one_loads_slowly, windows=3):
    assert report.verdicts() == [] and report.section_relative_perf_scores["data_loading"][5] < 0.75
    assert "install it there (extra `straggler`)" in report.withheld[0]
"""


def test_without_numpy_there_are_scores_and_one_warning() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_NUMPY], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert line.startswith("straggler reports have no verdicts: numpy cannot be imported on this rank")


def test_only_rank_0_needs_numpy() -> None:
    code = (
        "import sys; from holdfast.straggler import Detector, Thresholds, Verdict\n"
        "Detector.initialize(thresholds=Thresholds(), groups=[0])\n"
        "with Detector.detection_section('a'): pass\n"
        "assert Detector.generate_report().verdicts() == []; assert 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("stale", [-3.0, -0.3])
def test_a_state_of_another_job_blames_nobody(tmp_path: Path, stale: float) -> None:
    from numpy import array  # a test above loads this module without numpy

    levels = array([0.0, 0.0, stale, 0.0, 0.0, 0.0, 0.0, 0.0])
    path = tmp_path / "s"
    nodes = [f"node-{rank // 4}" for rank in range(8)]
    path.write_bytes(as_bytes({"section fwd": levels, "section data_loading": levels}, nodes))
    found = reports(lambda rank, section: 1.06 if rank == 2 else 1.0, windows=6, state_file=str(path))
    assert [report.verdicts() for report in found] == [[]] * 6


@pytest.mark.parametrize("before", [5, 1])
def test_a_rank_that_is_slow_after_a_restart_is_named_whatever_it_was_before(
    tmp_path: Path, before: int
) -> None:
    path = str(tmp_path / "s")
    reports(lambda rank, section: 1.5 if rank == before else 1.0, windows=5, state_file=path)
    assert [one.rank for one in reports(one_loads_slowly, state_file=path)[-1].verdicts()] == [5]


# -- verdicts from GPU kernels, through whole reports


KERNELS, CALLS, RANKS, WINDOWS = 20, 8, 8, 4
Factor = Callable[[int, str], float]
"""How many times as long a kernel takes on a rank; 0: it does not run it."""


def kernel_window(rank: int, seed: int, factor: Factor, waits: str = "all_reduce") -> KernelWindow:
    noise = random.Random(f"{rank} {seed}")

    def summary(name: str, microseconds: float) -> dict[str, Summary]:
        times = [microseconds * factor(rank, name) * noise.gauss(1.0, 0.01) for _ in range(CALLS)]
        return {name: summarise(times)} if times[0] else {}

    compute: dict[str, Summary] = {}
    for number in range(KERNELS):
        compute |= summary(f"gemm_{number}", 100.0 + number)
    collectives = summary(waits, 3000.0)
    return KernelWindow(compute, collectives, (KERNELS + 1) * CALLS)


def kernel_reports(factor: Factor, waits: str = "all_reduce") -> list[Report]:
    def work(channel: ThreadChannel) -> list[Report | None]:
        windows = [kernel_window(channel.rank, number, factor, waits) for number in range(WINDOWS)]
        one = session(channel, *windows)
        return [one.report() for _ in range(WINDOWS)]

    return [report for report in run(RANKS, work)[0][0] if report is not None]


def test_a_slow_gpu_is_named() -> None:
    def factor(rank: int, name: str) -> float:
        if name == "all_reduce":
            return 1.0 if rank != 5 else 0.8  # the others wait for it
        return 1.3 if rank == 5 else 1.0

    last = kernel_reports(factor)[-1]
    (verdict,) = last.verdicts()
    assert (verdict.rank, verdict.node, verdict.kind) == (5, "node-1", "GPU")
    assert verdict.slowdown == pytest.approx(1.3, rel=0.02)
    assert "the others wait" in verdict.evidence
    stragglers = last.identify_stragglers(gpu_rel_threshold=0.8)["straggler_gpus_relative"]
    assert {one.rank for one in stragglers} == {5}
    assert last.local_collective_summaries.keys() == {"all_reduce"}
    assert "all_reduce" not in last.local_kernel_summaries
    assert last.kernel_records == (KERNELS + 1) * CALLS
    assert last.gpu_time_scored == 1.0


@pytest.mark.parametrize(
    ("waits", "named"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL", [0]),
        ("ncclDevKernel_Broadcast_RING_LL", []),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL", []),
        ("ncclDevKernel_SendRecv", []),
    ],
)
def test_a_root_that_hands_over_and_goes_on_is_not_late(waits: str, named: list[int]) -> None:
    last = kernel_reports(lambda rank, name: 0.01 if (rank, name) == (0, waits) else 1.0, waits)[-1]
    late = [(rank, "collective/late arrival") for rank in named]
    assert [(verdict.rank, verdict.kind) for verdict in last.verdicts()] == late
    assert last.local_collective_summaries.keys() == {waits}


def test_kernels_that_some_ranks_do_not_run_cost_the_others_no_verdict() -> None:
    def factor(rank: int, name: str) -> float:
        if name in ("gemm_0", "gemm_1") and rank < 4:
            return 0.0
        return 1.3 if rank == 6 and name != "all_reduce" else 1.0

    last = kernel_reports(factor)[-1]
    assert [verdict.rank for verdict in last.verdicts()] == [6]
    assert 0.85 < last.gpu_time_scored <= 1.0


def test_ranks_that_run_other_kernels_are_compared_among_themselves() -> None:
    """Two stages of a pipeline: rank 0 knows none of the second's kernels."""

    def factor(rank: int, name: str) -> float:
        number = int(name.partition("_")[2]) if name != "all_reduce" else -1
        if number >= 0 and (number < KERNELS // 2) != (rank < 4):
            return 0.0
        return 1.5 if rank == 6 and number >= 0 else 1.0

    last = kernel_reports(factor)[-1]
    assert [(verdict.rank, verdict.kind) for verdict in last.verdicts()] == [(6, "GPU")]
    assert last.gpu_time_scored == 0.0  # no kernel is common to all: the documented scores say nothing


def test_what_is_remarkable_of_a_slow_gpu_stands_beside_its_verdict() -> None:
    def facts(clock: float) -> tuple[float, ...]:
        known = {"sm_clock": clock, "max_sm_clock": 1980.0, "slowed_by": 0x40 if clock < 1500 else 0.0}
        return tuple(known.get(field, math.nan) for field in FIELDS)

    def work(channel: ThreadChannel) -> list[Report | None]:
        slow = channel.rank == 5
        factor = 1.4 if slow else 1.0
        windows = [kernel_window(5, number, lambda rank, name: factor) for number in range(WINDOWS)]
        one = session(channel, *windows)
        one._gpu.take = lambda: facts(1200.0 if slow else 1935.0)  # type: ignore[method-assign]
        return [one.report() for _ in range(WINDOWS)]

    last = run(RANKS, work)[0][0][-1]
    assert last is not None
    (verdict,) = last.verdicts()
    facts_of_it = "; its SM clock is 1,200 of 1,980 MHz (others 1,935), slowed by: HW thermal slowdown"
    assert verdict.evidence.endswith(facts_of_it)
