"""What ranks tell each other: references, names, and how little of it."""

from __future__ import annotations

from holdfast.straggler.exchange import protocol
from holdfast.straggler.exchange.channel import Alone
from holdfast.straggler.exchange.protocol import Exchange, References
from tests.straggler.ranks import ThreadChannel, run


def references(
    channel: ThreadChannel, windows: list[tuple[dict[str, float], dict[str, float]]]
) -> list[References]:
    exchange = Exchange(channel, f"node-{channel.rank}")
    return [exchange.references(sections, kernels, None, True) for sections, kernels in windows]


def test_the_least_median_of_all_ranks_is_the_reference() -> None:
    times = [{"fwd": 3.0, "bwd": 8.0}, {"bwd": 7.0, "fwd": 4.0}, {"fwd": 5.0, "bwd": 9.0}]
    kernels = [{"gemm": 1.0, "add": 5.0}, {"add": 4.0, "gemm": 2.0}, {"gemm": 3.0, "add": 6.0}]
    found, _ = run(3, lambda channel: references(channel, [(times[channel.rank], kernels[channel.rank])]))
    for (one,) in found:
        assert one.section_times == {"fwd": 3.0, "bwd": 7.0}
        assert one.kernel_times == {"gemm": 1.0, "add": 4.0}
        assert one.sections == ("fwd", "bwd")


def test_what_some_rank_did_not_run_has_no_reference() -> None:
    times = [{"fwd": 3.0, "save": 1.0}, {"fwd": 4.0, "load": 1.0}]
    kernels = [{"gemm": 1.0, "first": 5.0}, {"gemm": 2.0, "second": 1.0}]
    found, _ = run(2, lambda channel: references(channel, [(times[channel.rank], kernels[channel.rank])]))
    for (one,) in found:
        assert one.section_times == {"fwd": 3.0}
        assert one.kernel_times == {"gemm": 1.0}
        assert one.sections == ("fwd", "save", "load")


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
    assert len(told) == 2  # rank 0's kernels, and its sections: nobody has others
    assert told[0] == 500 * 8 and told[1] < 100
    assert [kind for kind, _ in calls[-2:]] == ["least"] * 2
    assert sum(length for _, length in calls) < 20_000  # of all three reports together


def test_a_table_follows_the_kernels_of_rank_0() -> None:
    windows: list[tuple[dict[str, float], dict[str, float]]] = [
        ({}, {f"grid_{step}": 1.0}) for step in range(5)
    ]
    found, calls = run(2, lambda channel: references(channel, windows))
    assert [list(one.kernel_times) for one in found[1]] == [[f"grid_{step}"] for step in range(5)]
    assert calls[-1] == ("least", calls[0][1] + 8)  # and forgets those of before


def test_names_of_many_ranks_are_told_over_several_reports(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(protocol, "MOST_ROUNDS", 3)
    found, _ = run(8, lambda channel: references(channel, [({f"s{channel.rank}": 1.0}, {})] * 3))
    assert [len(one.sections) for one in found[7]] == [3, 6, 8]
    assert found[0] == found[7]


def test_the_number_of_sections_is_bounded(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(protocol, "MOST_AGREED", 3)
    times = {f"s{number}": 1.0 for number in range(5)}
    found, _ = run(2, lambda channel: references(channel, [(times, {})] * 2))
    assert [one.sections for one in found[1]] == [("s0", "s1", "s2")] * 2


def test_the_greatest_estimate_of_steps_counts_once_all_have_one() -> None:
    def work(channel: ThreadChannel) -> list[float | None]:
        exchange = Exchange(channel, "node")
        own: list[float | None] = [None if channel.rank else 30.0, 20.0 + channel.rank]
        steps = [exchange.references({}, {}, one, False).steps for one in own]
        return [*steps, exchange.most_steps(5.0 + channel.rank)]

    assert run(3, work)[0] == [[None, 22.0, 7.0]] * 3


def test_scores_and_nodes_come_to_rank_0_under_global_ranks() -> None:
    def work(channel: ThreadChannel) -> list[object]:
        exchange = Exchange(channel, "gpu-" + "x" * channel.rank)
        exchange.references({}, {}, None, False)
        gathered = [exchange.gather([float(channel.rank), 0.5]) for _ in range(2)][1]
        return [gathered, exchange.nodes(), exchange.nodes()]

    nodes = {4: "gpu-", 6: "gpu-x", 9: "gpu-xx"}
    found, calls = run(3, work, ranks=[4, 6, 9])
    scores = [{4: 0.0, 6: 1.0, 9: 2.0}, dict.fromkeys((4, 6, 9), 0.5)]
    assert found[0] == [(scores, b""), nodes, nodes]
    assert found[1:] == [[None, None, None]] * 2
    assert [length for kind, length in calls if kind == "bytes_to_rank_0"] == [16, 16, 6]


def test_a_rank_alone_is_its_own_reference() -> None:
    exchange = Exchange(Alone(3), "here")
    found = exchange.references({"a": 2.0}, {"k": 4.0}, None, True)
    assert (found.section_times, found.kernel_times) == ({"a": 2.0}, {"k": 4.0})
    assert exchange.nodes() == {3: "here"}
    assert exchange.gather([0.5]) == ([{3: 0.5}], b"")
