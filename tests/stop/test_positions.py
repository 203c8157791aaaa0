"""Positions: ordered as the boundaries of a training are, and readable for people."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.fault_tolerance.stop import END, position
from holdfast.fault_tolerance.stop.positions import MOST_BATCHES, batches_of, describe, validation_of

BATCHES = st.integers(0, MOST_BATCHES)
WITHIN = st.integers(0, END)


@given(BATCHES, WITHIN, BATCHES, WITHIN)
def test_positions_are_ordered_as_boundaries_are(k: int, v: int, other_k: int, other_v: int) -> None:
    assert (position(k, v) < position(other_k, other_v)) == ((k, v) < (other_k, other_v))
    assert (batches_of(position(k, v)), validation_of(position(k, v))) == (k, v)
    assert 0 <= position(k, v) < 1 << 63


def test_a_validation_that_is_too_long_stays_before_its_end() -> None:
    assert position(3, END - 1) == position(3, END + 5) < position(3, END) < position(4)


@pytest.mark.parametrize(("batches", "validation"), [(-1, 0), (0, -1), (MOST_BATCHES + 1, 0)])
def test_what_is_no_position(batches: int, validation: int) -> None:
    with pytest.raises(ValueError, match=f"no position: {batches} batches, {validation} of a validation"):
        position(batches, validation)


@pytest.mark.parametrize(
    ("place", "words"),
    [
        (position(120), "after batch 120"),
        (position(120, 7), "after batch 120, in validation, batch 7"),
        (position(120, END), "after batch 120, at the end of validation"),
        (position(0), "before the first batch"),
        (position(0, 2), "before the first batch, in validation, batch 2"),
    ],
)
def test_a_position_in_words(place: int, words: str) -> None:
    assert describe(place) == words
