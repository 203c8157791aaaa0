"""Thresholds are checked when they are made, in one line."""

from __future__ import annotations

import math
from typing import Any

import pytest

from holdfast.straggler import Thresholds


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("min_slowdown", 1.0, "greater than 1"),
        ("min_slowdown", math.nan, "greater than 1"),
        ("min_cost_share", 1, "from 0 to below 1"),
        ("error_rate", 0, "greater than 0, at most 0.1"),
        ("noise_floor", -0.1, "from 0 to 1"),
        ("warmup_windows", -1, "from 0 on"),
        ("warmup_windows", 1.5, "a whole number"),
        ("min_ranks", 2, "from 3 on"),
        ("min_samples", True, "from 1 on"),
        ("min_samples", "3", "from 1 on"),
    ],
)
def test_a_value_out_of_range_names_what_is_allowed(name: str, value: Any, allowed: str) -> None:
    with pytest.raises(ValueError, match=r"^straggler thresholds: ") as error:
        Thresholds(**{name: value})
    assert allowed in str(error.value)
    assert "\n" not in str(error.value)
