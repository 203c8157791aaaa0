"""Signs of life, by a clock that the test moves."""

from __future__ import annotations

from holdfast.fault_tolerance.launcher.nodes.stop_notes import MemoryNotes
from holdfast.fault_tolerance.stop.presence import Presence

LIMIT = 30.0


def seen(at: Presence, other: Presence | None, until: float) -> list[tuple[float, int]]:
    """When `at` finds node 1 gone; both are due ten times a second, and `other` is node 1."""
    found = []
    for tenth in range(round(10 * until)):
        now = tenth / 10
        if other is not None:
            other.due(now)
        if at.due(now) and (node := at.gone([1], now)) is not None:
            found.append((now, node))
    return found


def test_who_gives_signs_of_life_is_there_and_who_gives_none_is_gone() -> None:
    notes = MemoryNotes()
    assert not seen(Presence(notes, 0, LIMIT, 0.0), Presence(notes, 1, LIMIT, 0.0), 200)
    (when, node), *_ = seen(Presence(notes, 0, LIMIT, 0.0), None, 60)  # from now on its count stands still
    assert node == 1 and LIMIT <= when <= 1.3 * LIMIT


def test_who_has_left_is_gone_at_the_next_look() -> None:
    notes = MemoryNotes()
    Presence(notes, 1, LIMIT, 0.0).leave()
    (when, node), *_ = seen(Presence(notes, 0, LIMIT, 0.0), None, 60)
    assert node == 1 and when < LIMIT / 4
