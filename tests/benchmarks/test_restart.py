"""What the figures of a restart are taken from: the ranks' own lines, and the restarts that took longest."""

from __future__ import annotations

import random

from benchmarks.restart import cycles
from benchmarks.table import percentile

LINES = """\
joined 0 1 11 100.5
joined 0 0 10 100.25
some other line
joined 1 0 20 103.5
joined 2 0 30 105.0
joined 2 1 31 104.75
"""


def test_a_cycle_is_told_when_its_last_rank_has_joined() -> None:
    told = list(cycles(iter(LINES.splitlines()), 2))
    assert told == [({0: 10, 1: 11}, 100.5), ({0: 30, 1: 31}, 105.0)], (
        "cycle 1 ended before rank 1 had joined"
    )


def test_the_99th_percentile_of_few_values_is_the_largest() -> None:
    values = [float(number) for number in range(1, 101)]
    random.Random(1).shuffle(values)
    assert percentile(values, 99) == 99.0
    assert percentile(values, 50) == 50.0
    assert percentile(values[:50], 99) == max(values[:50])
