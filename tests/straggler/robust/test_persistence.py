"""k of the last n windows."""

from __future__ import annotations

import numpy as np

from holdfast.straggler.robust.persistence import Persistence

YES, NO = np.array([True, False]), np.array([False, False])


def test_signs_are_counted_over_the_last_windows_only() -> None:
    signs: Persistence[str] = Persistence(needed=2, kept=3)
    assert signs.add({"gpu": YES}, 2)["gpu"].tolist() == [1, 0]
    assert signs.add({"gpu": NO}, 2)["gpu"].tolist() == [1, 0]
    assert signs.add({"gpu": YES}, 2)["gpu"].tolist() == [2, 0]
    assert signs.add({}, 2)["gpu"].tolist() == [1, 0]
    assert signs.windows == 3
    assert signs.add({"late": YES}, 2)["late"].tolist() == [1, 0]


def test_another_number_of_ranks_starts_anew() -> None:
    signs: Persistence[str] = Persistence(needed=2, kept=3)
    signs.add({"gpu": YES}, 2)
    assert signs.add({"gpu": np.array([True, False, False])}, 3)["gpu"].tolist() == [1, 0, 0]
