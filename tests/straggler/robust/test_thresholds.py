"""Thresholds are checked when they are made, in one line."""

from __future__ import annotations

import math
from typing import Any

import pytest

from holdfast.straggler.robust import Thresholds


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("min_slowdown", 1.0, "greater than 1"),
        ("min_slowdown", math.nan, "greater than 1"),
        ("min_late_share", 1, "between 0 and 1"),
        ("error_rate", 0, "greater than 0, at most 0.1"),
        ("windows_needed", 0, "1 or more"),
        ("windows_kept", 1, "at most windows_kept, which is 1"),
        ("warmup_windows", -1, "0 or more"),
        ("warmup_windows", 1.5, "a whole number"),
        ("min_ranks", 2, "3 or more"),
        ("max_blamed_share", 0.5, "between 0 and 0.5"),
        ("min_keys", True, "1 or more"),
        ("min_samples", "3", "1 or more"),
    ],
)
def test_a_value_out_of_range_names_the_threshold_and_what_is_allowed(
    name: str, value: Any, allowed: str
) -> None:
    with pytest.raises(ValueError, match=r"^straggler thresholds: ") as error:
        Thresholds(**{name: value})
    assert allowed in str(error.value)
    assert "\n" not in str(error.value)


def test_the_effect_is_a_logarithm() -> None:
    assert Thresholds(min_slowdown=1.25).min_effect == pytest.approx(math.log(1.25))
