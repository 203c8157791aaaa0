"""When a spare may take a place: the store's real values, and times as arguments."""

from __future__ import annotations

import pytest
from torch.distributed import HashStore

from holdfast.fault_tolerance.launcher.nodes.precedence import MOMENT, Turn
from holdfast.fault_tolerance.launcher.nodes.records import FIRST, Record

LATEST = 100.0
SECOND = Record(1, "restart", back=2)
"""The cycle after one of two nodes; both are expected back."""


def _turn(places: int, record: Record = SECOND) -> tuple[Turn, HashStore]:
    return Turn(record, places, LATEST), HashStore()


def test_where_those_who_come_back_fill_all_places_a_spare_waits_until_the_cycle_has_begun() -> None:
    """That they have counted themselves is not enough: they do so before torch's rendezvous counts them."""
    turn, notes = _turn(places=2)
    notes.add("joined/1", 2)
    assert not turn.has_come(notes, 0.0)
    assert not turn.has_come(notes, LATEST - 0.1)
    notes.set("rank_store/1", "an address")
    assert turn.has_come(notes, 10.0)


def test_what_other_cycles_left_in_the_store_means_nothing() -> None:
    turn, notes = _turn(places=2)
    for key in "rank_store/0", "rank_store/2", "cycle/1", "cycle/0":
        notes.set(key, "")
    assert not turn.has_come(notes, 10.0)


@pytest.mark.parametrize("places", [2, 3])
def test_nobody_is_waited_for_in_a_cycle_that_was_called_off(places: int) -> None:
    turn, notes = _turn(places)
    assert not turn.has_come(notes, 0.0)
    notes.set("cycle/2", "a record")
    assert turn.has_come(notes, 0.1)


@pytest.mark.parametrize("places", [2, 3])
def test_those_who_never_come_are_waited_for_until_the_latest(places: int) -> None:
    turn, notes = _turn(places)
    notes.add("joined/1", 1)
    assert not turn.has_come(notes, LATEST - 0.1)
    assert turn.has_come(notes, LATEST)


def test_a_vacant_place_is_taken_a_moment_after_all_who_come_back_were_counted() -> None:
    turn, notes = _turn(places=3)
    notes.add("joined/1", 1)
    assert not turn.has_come(notes, 5.0)
    notes.add("joined/1", 1)
    assert not turn.has_come(notes, 10.0)
    assert not turn.has_come(notes, 10.0 + MOMENT - 0.01)
    assert turn.has_come(notes, 10.0 + MOMENT)


def test_at_once_where_nobody_trained_before() -> None:
    turn, notes = _turn(places=2, record=FIRST)
    assert turn.has_come(notes, 0.0)
