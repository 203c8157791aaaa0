"""From positions that a launcher sees to the place that it proposes: near, wherever the ranks are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.fault_tolerance.launcher.agent.meter import Meter
from holdfast.fault_tolerance.launcher.nodes.stop_notes import MemoryNotes
from holdfast.fault_tolerance.stop import END, LOADER_END, in_loader, position
from holdfast.fault_tolerance.stop.notes import ASK, Pace, Report, Word, answer_key
from holdfast.fault_tolerance.stop.parties import Follower, Leader
from holdfast.fault_tolerance.stop.positions import batches_of
from holdfast.fault_tolerance.stop.rules import CARE, TAKES_PART, RankView

WINDOW = 0.02


def boundaries(loaders: list[int]) -> list[int]:
    """The places of a validation whose data loaders have so many batches."""
    found = []
    for loader, batches in enumerate(loaders):
        found += [in_loader(loader, batch) for batch in range(1, batches + 1)]
        found.append(in_loader(loader, LOADER_END))
    return [*found, END]


def training(every: int, loaders: list[int]) -> list[int]:
    """All positions of 40 batches, with a validation after every so many."""
    found = []
    for batch in range(1, 41):
        found.append(position(batch))
        if batch % every == 0:
            found += [position(batch, place) for place in boundaries(loaders)]
    return found


@given(
    st.integers(1, 9),
    st.lists(st.integers(1, 5), min_size=1, max_size=3),
    st.data(),
    st.sampled_from([0.003, 0.01, 0.2, 0.6]),
)
def test_the_place_is_no_farther_than_training_goes_meanwhile(
    every: int, loaders: list[int], data: st.DataObject, delay: float
) -> None:
    """However many boundaries a rank came to while it was measured, of whatever kind."""
    positions = training(every, loaders)
    first = data.draw(st.integers(0, len(positions) - 1))
    last = data.draw(st.integers(first, len(positions) - 1))
    leader_at = data.draw(st.sampled_from(positions[max(0, last - 3) : last + 3]))
    meter = Meter(WINDOW)
    meter.speed([RankView(1, TAKES_PART, positions[first])], 0.0)
    speed = meter.speed([RankView(1, TAKES_PART, positions[last])], WINDOW)
    notes = MemoryNotes()
    leader, follower = Leader(notes, 2), Follower(notes, 1)
    follower.turn([RankView(1, TAKES_PART, positions[last])], WINDOW, Pace(speed, delay))
    word = leader.turn([RankView(0, TAKES_PART, leader_at)], WINDOW, Pace(0.0, delay))
    assert word is not None and word.kind == ASK
    reached = max(positions[last], leader_at)
    trained = batches_of(positions[last]) - batches_of(positions[first])
    assert reached < word.place
    assert batches_of(word.place) <= batches_of(reached) + 1 + CARE * trained / WINDOW * 2 * delay + 1


def test_what_was_doubled_in_a_validation_does_not_count_in_training() -> None:
    notes = MemoryNotes()
    leader = Leader(notes, 2)
    notes.put("arrived/1", Report().encode())
    at = position(7, 1)
    word: Word | None = None
    for _ in range(9):  # the ranks fly through the validation
        word = leader.turn([RankView(0, TAKES_PART, at)], WINDOW, Pace())
        assert word is not None
        notes.put(answer_key(word.number, 1), Report(yes=False, farthest=at).encode())
        at = word.place + 1
    at = position(8)
    leader.turn([RankView(0, TAKES_PART, at)], WINDOW, Pace())
    assert leader.word is not None and batches_of(leader.word.place) == 8


@pytest.mark.parametrize("state", ["ended", "lost"])
def test_a_leader_whose_ranks_have_ended_waits_for_nobody(state: str) -> None:
    leader = Leader(MemoryNotes(), 2)
    view = RankView(0, TAKES_PART, gone=True) if state == "lost" else RankView(0, 2)
    word = leader.turn([view], 9.0, Pace())
    assert word is not None and word.final and word.why == "rank 0 has ended its training"


def test_a_speed_counts_only_after_a_window() -> None:
    meter = Meter(WINDOW)
    here = [RankView(0, TAKES_PART, position(5))]
    assert meter.speed([RankView(0, 0)], 1.0) == 0.0 and not meter.ready(2.0)
    meter.speed(here, 3.0)
    there = [RankView(0, TAKES_PART, position(6))]
    assert meter.speed(there, 3.0 + WINDOW / 2) == 0.0 and not meter.ready(3.0 + WINDOW / 2)
    assert meter.speed(there, 3.1) == pytest.approx(10) and meter.ready(3.1)
