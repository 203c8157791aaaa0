"""From what a rank measured to what travels, and back to a window of all ranks."""

from __future__ import annotations

import math

import pytest

from holdfast.straggler import Statistic
from holdfast.straggler.exchange import Gathered, Layout, key, pack
from holdfast.straggler.kernels.source import KernelWindow
from holdfast.straggler.scores import summarise
from holdfast.straggler.session import Snapshot
from holdfast.straggler.window import of_rows


def test_what_travels() -> None:
    sections = {"fwd": {**summarise([1.0, 2.0, 6.0]), Statistic.NUM: 10}}
    kernels = KernelWindow({"gemm": summarise([50.0])}, {"all_reduce": summarise([70.0])})
    columns = Snapshot(sections, kernels).columns(("bwd", "fwd"), (key("all_reduce", True), key("gemm"), 2))
    told = [list(figures) for figures in columns]
    assert math.isnan(told[0].pop(0)) and math.isnan(told[4].pop(0)) and told[0] == told[4] == [0, 0]
    assert told[1] == pytest.approx([0.002, 0.030, 10])
    assert told[2:4] == [pytest.approx([70e-6, 70e-6, 1]), pytest.approx([50e-6, 50e-6, 1])]

    third, layout = 1 / 3, Layout(2, 5, 2)
    rows = [pack(scores, columns, [9.0, 60.0]) for scores in ([third, 0.5], [1.0, math.pi])]
    assert [len(row) for row in rows] == [layout.length] * 2
    assert Gathered(b"".join(rows), layout).scores(range(2)) == [
        {0: third, 1: 1.0},
        {0: 0.5, 1: math.pi},
    ]  # exactly
    kinds = [("bwd", "section"), ("fwd", "section"), ("1", "collective"), ("2", "kernel"), ("3", "kernel")]
    window = of_rows(b"".join(rows), 16, kinds, ["here"] * 2, ["steal"])
    assert window.medians[1] == pytest.approx([math.nan, 0.002, 70e-6, 50e-6, math.nan], nan_ok=True)
    assert window.totals[0] == pytest.approx([0, 0.030, 70e-6, 50e-6, 0])
    assert window.counts[0].tolist() == [0, 10, 1, 1, 0]
    assert window.host_losses["steal"].tolist() == [9.0, 9.0]
    assert window.elapsed is not None and window.elapsed.tolist() == [60.0, 60.0]


def test_what_was_lost_and_what_elapsed_travel_before_the_facts() -> None:
    assert Snapshot({}, losses={"steal": 9.0}, elapsed=60.0, facts=(1980.0,)).extras() == (9.0, 60.0, 1980.0)


def test_collectives_with_a_root_are_not_offered_for_comparison() -> None:
    names = ("ncclDevKernel_Broadcast_RING_LL", "ncclDevKernel_SendRecv", "ncclDevKernel_AllGather_RING_LL")
    mine = Snapshot({}, KernelWindow({}, {name: summarise([70.0]) for name in names}))
    assert mine.own.shares == {key(names[2], True): 1.0}
    told = mine.columns((), [key(name, True) for name in names])
    assert [figures[2] for figures in told] == [0, 0, 1]


def test_shares_are_of_all_kernels_and_times_of_those_that_compute() -> None:
    kernels = KernelWindow({"gemm": summarise([30.0, 30.0])}, {"gemm": summarise([20.0])})
    own = Snapshot({"fwd": summarise([1.0]), "reduce": summarise([2.0])}, kernels, waiting={"reduce"}).own
    assert own.kernels == {key("gemm"): 30.0}
    assert own.shares == {key("gemm"): 0.75, key("gemm", True): 0.25}
    assert (own.sections, list(own.waiting)) == ({"fwd": 1.0}, ["reduce"])
    assert Snapshot({}).own.shares == {}
