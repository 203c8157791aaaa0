"""What ranks send each other: figures of times, documented scores, references, names, and how little of it."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.straggler import exchange as module
from holdfast.straggler import scores
from holdfast.straggler.exchange import Exchange, Gathered, Layout, Snapshot, Tables, judged, key, pack
from holdfast.straggler.kernels.source import KernelWindow
from holdfast.straggler.scores import Best, Own, References, Statistic, Summary, medians, summarise
from holdfast.straggler.window import of_rows
from tests.straggler.doubles import ThreadChannel, run


def references(
    channel: ThreadChannel, windows: list[tuple[dict[str, float], dict[str, float]]]
) -> list[References]:
    exchange = Exchange(channel, f"node-{channel.rank}")
    return [exchange.references(own(*window), None, True) for window in windows]


def own(sections: dict[str, float], kernels: dict[str, float]) -> Own:
    """All kernels take equally long in sum."""
    keys = {key(name): time for name, time in kernels.items()}
    return Own(sections, kernels=keys, shares=dict.fromkeys(keys, 1 / max(len(keys), 1)))


def times(one: References, *kernels: str) -> dict[str, float]:
    """The references of kernels by name; there must be no others."""
    assert one.kernel_times.keys() <= {key(name) for name in kernels}
    return {name: one.kernel_times[key(name)] for name in kernels if key(name) in one.kernel_times}


def test_a_rank_that_measured_nothing_takes_part() -> None:
    found, _ = run(
        2, lambda channel: references(channel, [({"a": 1.0}, {"k": 1.0}) if channel.rank else ({}, {})])
    )
    assert [one.section_times for (one,) in found] == [{}, {}]
    assert found[0][0].sections == ("a",)


def test_names_travel_once_and_a_report_without_new_ones_is_one_collective() -> None:
    kernels = {f"kernel_{number}_" + "x" * 200: 1.0 + number for number in range(500)}
    sections = {f"section_{number}": 1.0 for number in range(5)}
    windows = [(sections, kernels)] * 3
    found, calls = run(4, lambda channel: references(channel, windows))
    assert [len(one[2].kernel_times) for one in found] == [500] * 4
    told = [length for kind, length in calls if kind == "from_rank"]
    (length,) = told  # rank 0's: no rank has others
    assert 500 * 8 < length < 500 * 8 + 200
    assert [kind for kind, _ in calls[-2:]] == ["least"] * 2
    assert sum(length for _, length in calls) < 30_000  # of all three reports together


def test_a_full_table_begins_anew_once_a_rank_runs_other_kernels(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(module, "MOST_KERNELS", 3)
    windows: list[tuple[dict[str, float], dict[str, float]]] = [
        ({}, {"same": 1.0, f"grid_{step}": 1.0, f"other_{step}": 1.0}) for step in range(3)
    ]
    found, _ = run(2, lambda channel: references(channel, windows))
    for ranks in found:
        assert [
            times(one, "same", f"grid_{step}", f"other_{step}").keys() for step, one in enumerate(ranks)
        ] == [{"same", f"grid_{step}", f"other_{step}"} for step in range(3)]


def test_ranks_whose_kernels_do_not_fit_together_do_not_drive_each_other_out(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(module, "MOST_KERNELS", 30)
    reports = 60

    def work(channel: ThreadChannel) -> None:
        exchange = Exchange(channel, "node")
        kernels = {f"{channel.rank}_{number}": 1.0 for number in range(20)}
        for _ in range(reports):
            exchange.references(own({}, kernels), None, True)

    _, calls = run(4, work)
    told = sum(kind == "from_rank" for kind, _ in calls)
    # At first, and two each time the table begins anew: after 0, 1, 2, 4, 8 and 16 reports' pause, and the last one.
    assert told <= 2 + 2 * 7
    assert [kind for kind, _ in calls[-10:]] == ["least"] * 10


def test_kernels_with_next_to_no_time_are_not_told() -> None:
    assert Tables().news(Own(shares={2: 1 - 1e-5, 4: 1e-5}))[:4] == b"\x01\0\0\0"


def test_kernels_of_the_warm_up_do_not_stay_the_judged_ones(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(module, "JUDGED_KERNELS", 4)
    tuning = {2 * number: 0.2 for number in range(1, 5)} | {100: 0.1, 102: 0.1}
    steady = Own(shares={100: 0.5, 102: 0.5})

    def work(channel: ThreadChannel) -> list[References]:
        exchange = Exchange(channel, "node")
        first = exchange.references(Own(shares=tuning), None, True)
        return [first, *[exchange.references(steady, None, True) for _ in range(8)]]

    for one in run(2, work)[0]:
        assert set(one[0].judged) == {2, 4, 6, 8}
        assert [one[0].still_judged, one[1].still_judged] == [1.0, 0.0]
        assert {100, 102} <= set(one[-1].judged)
        assert one[-1].still_judged == 1.0


def test_a_full_table_keeps_what_most_of_the_time_is_spent_in(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(module, "MOST_KERNELS", 2)
    one = Tables()
    one.learn(one.news(Own(shares={2: 0.5, 4: 0.1, 6: 0.4})))
    assert one.kernels == [2, 6]  # the longest
    assert one.news(Own(shares={2: 0.5, 4: 0.5})) == b""


def test_the_longest_kernels_of_any_rank_are_judged_and_some_that_wait(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(module, "JUDGED_KERNELS", 4)
    monkeypatch.setattr(module, "JUDGED_COLLECTIVES", 1)
    assert judged([2, 4, 6, 8, 10, 3, 5], [0.1, 0.2, 0.05, 0.3, 0.2, 0.01, 0.02]) == (8, 4, 10, 5)


def test_names_of_many_ranks_are_told_over_several_reports(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(module, "MOST_ROUNDS", 3)
    found, _ = run(8, lambda channel: references(channel, [({f"s{channel.rank}": 1.0}, {})] * 3))
    assert [len(one.sections) for one in found[7]] == [3, 6, 8]
    assert found[0] == found[7]


def test_the_number_of_sections_is_bounded(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(module, "MOST_AGREED", 3)
    sections = {f"s{number}": 1.0 for number in range(5)}
    found, _ = run(2, lambda channel: references(channel, [(sections, {})] * 2))
    assert [one.sections for one in found[1]] == [("s0", "s1", "s2")] * 2


def test_the_greatest_estimate_of_steps_counts_once_all_have_one() -> None:
    def work(channel: ThreadChannel) -> list[float | None]:
        exchange = Exchange(channel, "node")
        own: list[float | None] = [None if channel.rank else 30.0, 20.0 + channel.rank]
        steps = [exchange.references(Own(), one, False).steps for one in own]
        return [*steps, exchange.greatest(5.0 + channel.rank)]

    assert run(3, work)[0] == [[None, 22.0, 7.0]] * 3


# -- figures of times, documented scores, and what one rank sends


def kernel(median: float, number: int = 1, average: float | None = None) -> Summary:
    return {**summarise([median]), Statistic.NUM: number, Statistic.AVG: average or median}


def gpu_score(kernels: dict[str, Summary], references: dict[str, float]) -> float:
    return scores.gpu_score(medians(kernels), scores.weights(kernels), references)


@pytest.mark.parametrize(
    ("kernels", "references", "score"),
    [
        (  # weighted by the time spent
            {"gemm": kernel(10.0, number=3, average=20.0), "add": kernel(4.0, number=5, average=2.0)},
            {"gemm": 5.0, "add": 4.0},
            (60 * 5 / 10 + 10 * 4 / 4) / (60 + 10),
        ),
        ({"gemm": kernel(10.0), "own": kernel(1000.0)}, {"gemm": 5.0}, 0.5),
        ({"own": kernel(1.0)}, {"gemm": 1.0}, math.nan),
        ({"gemm": kernel(0.0)}, {"gemm": 1.0}, math.nan),  # no measurement
        ({}, {}, math.nan),
    ],
)
def test_the_gpu_s_score(kernels: dict[str, Summary], references: dict[str, float], score: float) -> None:
    assert gpu_score(kernels, references) == pytest.approx(score, nan_ok=True)


def test_the_individual_reference_is_the_best_so_far_this_window_included() -> None:
    best = Best()
    assert best.update({"fwd": 5.0}) == {"fwd": 5.0}
    assert best.update({"fwd": 7.0, "bwd": 1.0}) == {"fwd": 5.0, "bwd": 1.0}
    assert best.update({"bwd": 2.0}) == {"bwd": 1.0}
    assert best.update({"fwd": 4.0}) == {"fwd": 4.0}


def test_best_times_do_not_grow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scores, "MOST_REMEMBERED", 10)
    best = Best()
    best.update({"gemm": 1.0})
    for step in range(100):
        best.update({"gemm": 2.0, f"grid_{step}": 1.0})
    assert best.update({"gemm": 3.0}) == {"gemm": 1.0}
    assert len(best._least) <= 11


TIMES = st.lists(st.floats(0, 1e6), min_size=1, max_size=40)


@given(TIMES)
def test_as_the_standard_library_has_it(times: list[float]) -> None:
    summary = summarise(times)
    assert summary[Statistic.MED] == statistics.median_low(times)
    assert summary[Statistic.AVG] == pytest.approx(statistics.fmean(times))
    if len(times) > 1:
        assert summary[Statistic.STD] == pytest.approx(statistics.stdev(times), abs=1e-6)


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
    window = of_rows(b"".join(rows), 16, kinds, ["here"] * 2, ["steal"], 0)
    assert window.medians[1] == pytest.approx([math.nan, 0.002, 70e-6, 50e-6, math.nan], nan_ok=True)
    assert window.totals[0] == pytest.approx([0, 0.030, 70e-6, 50e-6, 0])
    assert window.counts[0].tolist() == [0, 10, 1, 1, 0]
    assert window.host_losses["steal"].tolist() == [9.0, 9.0]
    assert window.elapsed is not None and window.elapsed.tolist() == [60.0, 60.0]


def test_shares_are_of_all_kernels_and_times_of_those_that_compute() -> None:
    kernels = KernelWindow({"gemm": summarise([30.0, 30.0])}, {"gemm": summarise([20.0])})
    own = Snapshot({"fwd": summarise([1.0]), "reduce": summarise([2.0])}, kernels, waiting={"reduce"}).own
    assert own.kernels == {key("gemm"): 30.0}
    assert own.shares == {key("gemm"): 0.75, key("gemm", True): 0.25}
    assert (own.sections, list(own.waiting)) == ({"fwd": 1.0}, ["reduce"])
    assert Snapshot({}).own.shares == {}
