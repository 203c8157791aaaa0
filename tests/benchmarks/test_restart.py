"""What the figures of a restart are taken from: the restarts that took longest."""

from __future__ import annotations

import random

from benchmarks.table import percentile


def test_the_99th_percentile_of_few_values_is_the_largest() -> None:
    values = [float(number) for number in range(1, 101)]
    random.Random(1).shuffle(values)
    assert percentile(values, 99) == 99.0
    assert percentile(values, 50) == 50.0
    assert percentile(values[:50], 99) == max(values[:50])
