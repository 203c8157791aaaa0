"""Rows and columns of a window's tables."""

from __future__ import annotations

import numpy as np

from holdfast.straggler.window import selector


def test_neighbours_are_a_slice() -> None:
    assert selector(np.array([3, 4, 5])) == slice(3, 6)
    assert np.array_equal(selector(np.array([3, 5])), [3, 5])
    assert len(selector(np.array([], dtype=np.intp))) == 0  # type: ignore[arg-type]
