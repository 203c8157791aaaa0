"""The table behind the picture: bounded, and no slow rank is lost in it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from holdfast.straggler.readings.kept import KeptReport
from holdfast.straggler.readings.plot import heat_map

Scores = dict[int, float | None]


def told(t: float, overall: Scores) -> KeptReport:
    fields: dict[str, Any] = dict.fromkeys(
        ("holders", "kernels", "verdicts", "withheld", "columns", "rows", "worst_nodes"), ()
    )
    return KeptReport(number=0, t=t, run=1, cycle=0, elapsed_ms=None, nodes=1, overall=overall, **fields)


def test_a_column_for_each_report_and_a_row_for_each_rank() -> None:
    cells, *shape = heat_map([told(60.0, {0: 1.0, 1: 0.5}), told(120.0, {0: 0.9, 1: None, 5: 0.8})])
    assert shape == [[0, 1, 5], 1, 1]
    np.testing.assert_array_equal(cells, [[1.0, 0.9], [0.5, np.nan], [np.nan, 0.8]])


def test_a_cell_of_many_shows_the_worst() -> None:
    reports = [told(60.0 * n, dict.fromkeys(range(1000), 1.0)) for n in range(1, 101)]
    reports[42] = told(60.0 * 43, {rank: 0.3 if rank == 765 else 1.0 for rank in range(1000)})
    cells, _, per_row, per_column = heat_map(reports, rows=100, columns=25)
    assert (cells.shape, per_row, per_column) == ((100, 25), 10, 4)
    assert np.argwhere(cells == 0.3).tolist() == [[76, 10]]


@pytest.mark.parametrize(("ranks", "reports"), [(1, 1), (512, 480), (513, 481), (16_384, 481)])
def test_it_is_never_larger_than_a_picture(ranks: int, reports: int) -> None:
    scores: Scores = dict.fromkeys(range(ranks), 0.9)
    rows, columns = heat_map([told(60.0 * n, scores) for n in range(reports)])[0].shape
    assert 1 <= rows <= 512 and 1 <= columns <= 480
