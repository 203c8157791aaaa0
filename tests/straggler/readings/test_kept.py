"""Reports as they are read back: in order, whole, and whatever else stands in the journal."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.journal.event import Event, decode
from holdfast.journal.reader import read_run
from holdfast.straggler.readings.kept import KeptReport, reports
from tests.straggler.readings.history import job, line, report


def read(*lines: bytes) -> list[KeptReport]:
    events = [decode(one) for one in lines]
    assert None not in events
    return reports([event for event in events if event is not None])


def test_a_run_with_a_restart(tmp_path: Path) -> None:
    found = reports(read_run(str(job(tmp_path, 512, reports=5, restart=3))))
    assert [(one.number, one.cycle) for one in found] == [(1, 0), (2, 0), (3, 0), (4, 1), (5, 1)]
    last = found[-1]
    assert (len(last.overall), last.nodes, len(last.columns)) == (512, 64, 6)
    (verdict,) = last.verdicts
    assert str(verdict) == (
        "rank 76 (node gpu-0009): GPU, 1.31 × slower since report 3: kernels take 31 % longer than on the median of "
        "511 comparable ranks"
    )
    assert min(last.overall, key=lambda rank: last.overall[rank] or 1.0) == 76 == last.rows[0][0]


def test_verdicts_beyond_those_kept_in_full_are_there_too() -> None:
    (found,) = read(line(1, 0.0, report(1000, dict.fromkeys(range(90), 1.3))))
    assert len(found.verdicts) == 90
    assert str(found.verdicts[-1]) == f"rank 89 (node {found.verdicts[-1].node}): GPU, 1.30 × slower"


def own(rank: int, number: int, **more: Any) -> bytes:
    """A report of one rank about itself, as with `gather_on_rank0=False`."""
    whole = report(6, {4: 1.5}, gpu=False, seed=number)

    def mine(scores: Any) -> dict[int, float]:
        return {rank: scores[rank]}

    told = replace(
        whole,
        gather_on_rank0=False,
        rank=rank,
        rank_to_node={rank: f"n{rank // 2}"},
        gpu_relative_perf_scores={},
        gpu_individual_perf_scores={},
        section_relative_perf_scores={n: mine(s) for n, s in whole.section_relative_perf_scores.items()},
        section_individual_perf_scores={n: mine(s) for n, s in whole.section_individual_perf_scores.items()},
        generate_report_elapsed_time=1.0 + rank,
        _verdicts=(),
        withheld=("not gathered",),
    )
    return line(number, 300.0 * number + rank, told, **more)


def test_the_ranks_own_reports_of_one_step_are_one() -> None:
    order = [3, 1, 0, 2, 5, 4]
    found = read(*(own(rank, number) for number in (1, 2) for rank in order))
    assert [(one.number, list(one.overall), one.nodes) for one in found] == [
        (1, [0, 1, 2, 3, 4, 5], 3),
        (2, [0, 1, 2, 3, 4, 5], 3),
    ]
    whole = report(6, {4: 1.5}, gpu=False, seed=2)
    last = found[-1]
    assert (last.rows[0][0], last.rows[0][1]) == (4, "n2")
    titles = [(column["section"], column["score"]) for column in last.columns]
    assert titles == [(name, kind) for name in ("data_loading", "fwd") for kind in ("relative", "individual")]
    for rank, _, scores in last.rows:
        assert scores[0] == round(whole.section_relative_perf_scores["data_loading"][rank], 3)
        assert scores[3] == round(whole.section_individual_perf_scores["fwd"][rank], 3)
    assert (last.withheld, last.elapsed_ms, sorted(last.holders)) == (("not gathered",), 6.0, [*range(6)])


def test_a_rank_that_never_told_is_missing_and_a_second_run_is_not_mixed_in() -> None:
    found = read(own(0, 1), own(1, 1), own(0, 2), own(0, 1), own(1, 1))
    assert [list(one.overall) for one in sorted(found, key=lambda one: (one.t, len(one.overall)))] == [
        [0, 1],
        [0, 1],
        [0],
    ]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ranks", None),
        ("ranks", [[0]]),
        ("ranks", [[0, 7]]),
        ("overall", 3),
        ("rows", [[1]]),
        ("rows", {"a": 1}),
        ("columns", [{"of": "gpu"}]),
        ("verdicts", ["x"]),
        ("verdicts", [{"rank": 1}]),
        ("kernels", 3),
        ("rank", "x"),
        ("nodes", math.inf),
        ("ranks", [[0, 2**31 + 1]]),
        ("ranks", [[0, 9], [9, -1]]),
        ("overall", [math.inf] * 8),
        ("rows", [[1, "n", []]]),
        ("elapsed_ms", 10**400),
    ],
)
def test_a_record_that_makes_no_sense_does_not_spoil_the_others(name: str, value: object) -> None:
    event = decode(line(1, 0.0, report(8)))
    assert event is not None
    odd = Event(event.kind, event.t + 1, event.mono + 1, event.node, {**event.fields, name: value})
    later = decode(line(2, 600.0, report(8)))
    assert later is not None
    assert [one.t for one in reports([event, odd, later])] == [event.t, later.t]


def test_what_a_newer_version_says_of_a_verdict_is_no_matter() -> None:
    event = decode(line(1, 0.0, report(8, {3: 1.3})))
    assert event is not None
    (told,) = event.fields["verdicts"]
    newer = {**event.fields, "verdicts": [{**told, "clock_mhz": 1200}]}
    (found,) = reports([Event(event.kind, event.t, event.mono, event.node, newer)])
    assert [one.rank for one in found.verdicts] == [3]


def test_a_time_that_no_calendar_has_does_not_spoil_the_others() -> None:
    event = decode(line(1, 0.0, report(8)))
    assert event is not None
    assert [one.t for one in reports([event, replace(event, t=1e18)])] == [event.t]
