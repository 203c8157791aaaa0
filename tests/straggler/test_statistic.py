"""The six figures of a summary."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.straggler import Statistic
from holdfast.straggler.scores import summarise

TIMES = st.lists(st.floats(0, 1e6), min_size=1, max_size=40)


def test_the_median_of_an_even_number_is_the_lower_one() -> None:
    assert summarise([4.0, 1.0, 3.0, 2.0])[Statistic.MED] == 2.0


def test_a_single_time_has_no_deviation() -> None:
    summary = summarise([2.5])
    assert math.isnan(summary.pop(Statistic.STD))
    assert summary == {
        Statistic.MIN: 2.5,
        Statistic.MAX: 2.5,
        Statistic.MED: 2.5,
        Statistic.AVG: 2.5,
        Statistic.NUM: 1,
    }


def test_the_number_counts_times_that_were_not_kept() -> None:
    assert summarise([1.0, 2.0], number=9000)[Statistic.NUM] == 9000


def test_nothing_has_no_summary() -> None:
    with pytest.raises(ValueError):
        summarise([])


@given(TIMES)
def test_as_the_standard_library_has_it(times: list[float]) -> None:
    summary = summarise(times)
    assert summary[Statistic.MED] == statistics.median_low(times)
    assert summary[Statistic.AVG] == pytest.approx(statistics.fmean(times))
    if len(times) > 1:
        assert summary[Statistic.STD] == pytest.approx(statistics.stdev(times), abs=1e-6)


def test_how_a_statistic_is_written() -> None:
    assert (str(Statistic.MED), repr(Statistic.MED)) == ("MED", "Statistic.MED")
    assert [one.name for one in Statistic] == ["MIN", "MAX", "MED", "AVG", "STD", "NUM"]
