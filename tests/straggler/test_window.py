"""A window whose tables do not fit together is refused in one line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from holdfast.straggler.window import selector

from .simulation import Job, changed


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"totals": np.zeros((8, 3))}, "totals has shape (8, 3), not (8, 15) (ranks, keys)"),
        ({"kinds": ["kernel"]}, "1 kinds for 15 keys"),
        ({"kinds": ["cpu"] * 15}, "unknown kinds ['cpu']; allowed: kernel, section, collective"),
        ({"elapsed": np.zeros(7)}, "elapsed has shape (7,), not (8,)"),
        ({"host_losses": {"CPU steal": np.zeros(7)}}, "losses by CPU steal have shape (7,), not (8,)"),
    ],
)
def test_what_does_not_fit_is_refused(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=r"^window: ") as error:
        changed(Job(8, kernels=10).window(), **wrong)
    assert text in str(error.value)


def test_neighbours_are_a_slice() -> None:
    assert selector(np.array([3, 4, 5])) == slice(3, 6)
    assert np.array_equal(selector(np.array([3, 5])), [3, 5])
    assert len(selector(np.array([], dtype=np.intp))) == 0  # type: ignore[arg-type]
