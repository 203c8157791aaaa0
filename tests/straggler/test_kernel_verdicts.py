"""Verdicts from GPU kernels, through whole reports: ranks as threads, with sources that receive what they measure."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from holdfast.straggler import Report
from holdfast.straggler.gpu_facts import FIELDS
from holdfast.straggler.kernels.source import KernelWindow
from holdfast.straggler.scores import Summary, summarise
from tests.straggler.ranks import ThreadChannel, run
from tests.straggler.test_session import session

KERNELS, CALLS, RANKS, WINDOWS = 20, 8, 8, 4
Factor = Callable[[int, str], float]
"""How many times as long a kernel takes on a rank; 0: it does not run it."""


def window(rank: int, seed: int, factor: Factor, waits: str = "all_reduce") -> KernelWindow:
    noise = random.Random(f"{rank} {seed}")

    def summary(name: str, microseconds: float) -> dict[str, Summary]:
        times = [microseconds * factor(rank, name) * noise.gauss(1.0, 0.01) for _ in range(CALLS)]
        return {name: summarise(times)} if times[0] else {}

    compute: dict[str, Summary] = {}
    for number in range(KERNELS):
        compute |= summary(f"gemm_{number}", 100.0 + number)
    collectives = summary(waits, 3000.0)
    return KernelWindow(compute, collectives, (KERNELS + 1) * CALLS)


def reports(factor: Factor, waits: str = "all_reduce") -> list[Report]:
    def work(channel: ThreadChannel) -> list[Report | None]:
        one = session(channel, *[window(channel.rank, number, factor, waits) for number in range(WINDOWS)])
        return [one.report() for _ in range(WINDOWS)]

    return [report for report in run(RANKS, work)[0][0] if report is not None]


def test_a_slow_gpu_is_named() -> None:
    def factor(rank: int, name: str) -> float:
        if name == "all_reduce":
            return 1.0 if rank != 5 else 0.8  # the others wait for it
        return 1.3 if rank == 5 else 1.0

    last = reports(factor)[-1]
    (verdict,) = last.verdicts()
    assert (verdict.rank, verdict.node, verdict.kind) == (5, "node-1", "GPU")
    assert verdict.slowdown == pytest.approx(1.3, rel=0.02)
    assert "the others wait" in verdict.evidence
    assert {
        one.rank for one in last.identify_stragglers(gpu_rel_threshold=0.8)["straggler_gpus_relative"]
    } == {5}
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
    last = reports(lambda rank, name: 0.01 if (rank, name) == (0, waits) else 1.0, waits)[-1]
    late = [(rank, "collective/late arrival") for rank in named]
    assert [(verdict.rank, verdict.kind) for verdict in last.verdicts()] == late
    assert last.local_collective_summaries.keys() == {waits}


def test_kernels_that_some_ranks_do_not_run_cost_the_others_no_verdict() -> None:
    def factor(rank: int, name: str) -> float:
        if name in ("gemm_0", "gemm_1") and rank < 4:
            return 0.0
        return 1.3 if rank == 6 and name != "all_reduce" else 1.0

    last = reports(factor)[-1]
    assert [verdict.rank for verdict in last.verdicts()] == [6]
    assert 0.85 < last.gpu_time_scored <= 1.0


def test_ranks_that_run_other_kernels_are_compared_among_themselves() -> None:
    """Two stages of a pipeline: rank 0 knows none of the second's kernels."""

    def factor(rank: int, name: str) -> float:
        number = int(name.partition("_")[2]) if name != "all_reduce" else -1
        if number >= 0 and (number < KERNELS // 2) != (rank < 4):
            return 0.0
        return 1.5 if rank == 6 and number >= 0 else 1.0

    last = reports(factor)[-1]
    assert [(verdict.rank, verdict.kind) for verdict in last.verdicts()] == [(6, "GPU")]
    assert last.gpu_time_scored == 0.0  # no kernel is common to all: the documented scores say nothing


def test_what_is_remarkable_of_a_slow_gpu_stands_beside_its_verdict() -> None:
    def facts(clock: float) -> tuple[float, ...]:
        known = {"sm_clock": clock, "max_sm_clock": 1980.0, "slowed_by": 0x40 if clock < 1500 else 0.0}
        return tuple(known.get(field, math.nan) for field in FIELDS)

    def work(channel: ThreadChannel) -> list[Report | None]:
        slow = channel.rank == 5
        windows = [window(5, number, lambda rank, name: 1.4 if slow else 1.0) for number in range(WINDOWS)]
        one = session(channel, *windows)
        one._gpu.take = lambda: facts(1200.0 if slow else 1935.0)  # type: ignore[method-assign]
        return [one.report() for _ in range(WINDOWS)]

    last = run(RANKS, work)[0][0][-1]
    assert last is not None
    (verdict,) = last.verdicts()
    assert verdict.evidence.endswith(
        "; its SM clock is 1,200 of 1,980 MHz (others 1,935), slowed by: HW thermal slowdown"
    )
