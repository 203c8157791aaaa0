"""Which nodes did not come back: read from a real store, as the nodes of a job fill it."""

from __future__ import annotations

import pytest
from torch.distributed import HashStore, PrefixStore, Store

from holdfast.fault_tolerance.launcher.nodes.returning import Silence, not_back


@pytest.fixture
def notes() -> Store:
    return PrefixStore("holdfast/job", HashStore())


def _begin(notes: Store, cycle: int, *names: str) -> None:
    _gather(notes, cycle, *names)
    notes.set(f"rank_store/{cycle}", "an address")


def _gather(notes: Store, cycle: int, *names: str) -> None:
    for rank, name in enumerate(names):
        notes.set(f"node/{cycle}/{rank}", name)
        notes.add(f"present/{cycle}", 1)


def test_nobody_is_missing_at_the_first_start(notes: Store) -> None:
    _begin(notes, 0, "a:1", "b:1")
    assert not_back(notes, 0) == (0, [])


def test_all_came_back_in_another_order_and_one_more(notes: Store) -> None:
    _begin(notes, 0, "a:1", "b:1")
    _begin(notes, 1, "b:1", "c:1", "a:1")
    assert not_back(notes, 1) == (0, [])


def test_a_launcher_that_was_started_again_is_another_one(notes: Store) -> None:
    _begin(notes, 0, "a:1", "b:1")
    _begin(notes, 1, "a:1", "b:2")
    assert not_back(notes, 1) == (0, ["b:1"])


def test_compared_with_the_last_cycle_that_began(notes: Store) -> None:
    """Cycle 1 was called off: not all who took part had answered, and who had is of no meaning."""
    _begin(notes, 0, "a:1", "b:1", "c:1")
    _gather(notes, 1, "a:1")
    _begin(notes, 2, "a:1", "d:1", "c:1")
    assert not_back(notes, 2) == (0, ["b:1"])


def test_who_is_silent_while_the_others_wait(notes: Store) -> None:
    _begin(notes, 0, "a:1", "b:1", "c:1")
    for name in "a:1", "b:1":  # c never got to show any sign
        notes.add(f"alive/{name}", 7)
    silence = Silence(notes, 1)
    notes.add("alive/a:1", 1)
    assert silence.names() == ["b:1", "c:1"]


def test_before_the_first_cycle_nobody_is_known(notes: Store) -> None:
    assert Silence(notes, 0).names() == []
