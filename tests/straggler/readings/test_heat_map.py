"""Ranks over time as a table: bounded, and no slow rank is lost in it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from holdfast.straggler.readings.kept import KeptReport
from holdfast.straggler.readings.plot import heat_map, labels
from holdfast.straggler.report import Verdict

Scores = dict[int, float | None]


def told(t: float, overall: Scores, cycle: int = 0, named: dict[int, float] | None = None) -> KeptReport:
    fields: dict[str, Any] = dict.fromkeys(
        ("holders", "kernels", "withheld", "columns", "rows", "worst_nodes"), ()
    )
    verdicts = tuple(
        Verdict(rank, f"n{rank}", (rank,), "GPU", slow, 1, "") for rank, slow in (named or {}).items()
    )
    return KeptReport(
        number=0, t=t, run=1, cycle=cycle, step=None, elapsed_ms=None, verdicts=verdicts, nodes=1,
        overall=overall, **fields,
    )  # fmt: skip


def test_a_column_for_each_report_and_a_row_for_each_rank() -> None:
    found = heat_map([told(60.0, {0: 1.0, 1: 0.5}), told(120.0, {0: 0.9, 1: None, 5: 0.8})])
    assert (found.ranks, found.per_row, found.per_column) == ((0, 1, 5), 1, 1)
    assert found.columns == ((0.0, 60.0), (60.0, 120.0))
    np.testing.assert_array_equal(found.scores, [[1.0, 0.9], [0.5, np.nan], [np.nan, 0.8]])


def test_a_cell_of_many_shows_the_worst() -> None:
    reports = [told(60.0 * n, dict.fromkeys(range(1000), 1.0)) for n in range(1, 101)]
    reports[42] = told(60.0 * 43, {rank: 0.3 if rank == 765 else 1.0 for rank in range(1000)})
    found = heat_map(reports, rows=100, columns=25)
    assert (found.scores.shape, found.per_row, found.per_column) == ((100, 25), 10, 4)
    assert np.argwhere(found.scores == 0.3).tolist() == [[76, 10]]


@pytest.mark.parametrize("ranks", [1, 511, 512, 513, 16_384])
@pytest.mark.parametrize("reports", [1, 480, 481])
def test_it_is_never_larger_than_a_picture(ranks: int, reports: int) -> None:
    scores: Scores = dict.fromkeys(range(ranks), 0.9)
    found = heat_map([told(60.0 * n, scores) for n in range(reports)])
    assert 1 <= len(found.scores) <= 512 and len(found.columns) <= 480
    assert found.scores.shape[1] == len(found.columns)


def test_a_break_is_no_part_of_any_column_and_a_restart_is_marked() -> None:
    scores: Scores = {0: 1.0}
    reports = [
        told(t, scores, cycle) for t, cycle in ((60, 0), (120, 0), (180, 0), (1000, 0), (1060, 1), (1120, 1))
    ]
    found = heat_map(reports)
    assert list(found.columns) == [
        (0, 60), (60, 120), (120, 180), (940, 1000), (1000, 1060), (1060, 1120),
    ]  # fmt: skip
    assert found.restarts == ((1000, 1),)


def test_who_was_named_when() -> None:
    named = [{}, {3: 1.2}, {3: 1.4, 1: 1.1}, {1: 1.1}, {}, {3: 1.3}]
    scores: Scores = dict.fromkeys(range(4), 1.0)
    reports = [told(60.0 * n, scores, named=who) for n, who in enumerate(named, 1)]
    found = heat_map(reports)
    assert [(one.rank, one.node, one.row, *one.span, one.slowdown) for one in found.marks] == [
        (3, "n3", 3, 60.0, 180.0, 1.4),
        (1, "n1", 1, 120.0, 240.0, 1.1),
        (3, "n3", 3, 300.0, 360.0, 1.3),
    ]


def test_reports_of_one_moment_do_no_harm() -> None:
    scores: Scores = {0: 1.0}
    found = heat_map([told(60.0, scores), told(60.0, scores), told(60.0, scores, 1)])
    assert all(start <= end for start, end in found.columns)


def test_a_label_for_each_node_and_what_has_no_room() -> None:
    scores: Scores = dict.fromkeys(range(6), 1.0)
    reports = [told(60.0, scores, named={0: 1.2, 4: 1.5}), told(120.0, scores, named={2: 1.1, 4: 1.3})]
    found = heat_map(reports)
    assert labels(found, 8) == [(0, "rank 0, 1.20x\nn0"), (2, "rank 2, 1.10x\nn2"), (4, "rank 4, 1.50x\nn4")]
    assert labels(found, 1) == [(4, "rank 4, 1.50x\nn4"), (5, "and ranks on\n2 more nodes")]
