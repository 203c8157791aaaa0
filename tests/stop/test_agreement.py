"""The whole protocol as a simulation: ranks that train together, launchers that take their turns at any moment.

Real rules, parties and points on pages in private memory; every actor is a generator, and chance decides whose turn it
is. A rank finishes a batch only when all ranks have begun it (or are at most `drift` batches behind), as in a
collective. What nodes write may arrive at any later time: whoever reads is as slow as chance has it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.fault_tolerance.stop import END, StopPoint, position
from holdfast.fault_tolerance.stop import page as P
from holdfast.fault_tolerance.stop.notes import WITHDRAW, Pace, Word
from holdfast.fault_tolerance.stop.parties import Follower, Leader
from holdfast.fault_tolerance.stop.positions import batches_of
from holdfast.fault_tolerance.stop.rules import GO, LATE, STOP, RankView

MANY = 200_000  # turns of all actors together
AT_ONCE = Pace()


class Notes:
    """What the nodes share."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def put(self, key: str, text: str) -> None:
        self.texts[key] = text

    def look(self, key: str) -> str:
        return self.texts.get(key, "")

    def swap(self, key: str, old: str, new: str) -> str:
        if self.look(key) == old:
            self.texts[key] = new
        return self.texts[key]

    def gather(self, keys: Sequence[str]) -> list[str] | None:
        found = [self.texts.get(key) for key in keys]
        return None if None in found else [text for text in found if text is not None]


class Page:
    """A page in private memory, in the place of the file."""

    def __init__(self) -> None:
        self.words = P.private_words()

    def close(self) -> None:
        self.words = P.private_words()


class Rank:
    """Trains `batches`, with a validation of `validation` batches after every `every`."""

    def __init__(self, number: int, batches: int, every: int, validation: int, takes_part: bool) -> None:
        self.number, self.begun, self.end = number, 1, ""
        self._early = random.Random(number * 7919 + batches)
        self.page = Page()
        self._words = self.page.words
        self.point = StopPoint(self.page)  # type: ignore[arg-type]
        self._batches, self._every, self._validation = batches, every, validation
        self.last = 0
        if takes_part:
            self.point.begin()

    def run(self, job: Job) -> Iterator[None]:
        for batch in range(1, self._batches + 1):
            self.begun = batch
            # Long batches are passed when they are done, short ones when they begin; a rank may change its mind.
            passed = (
                job.early and self._early.random() < job.early and self.point.passes_early(position(batch))
            )
            yield
            while any(other.begun < batch - job.drift for other in job.ranks if not other.end):
                yield
            if any(other.end and other.begun < batch - job.drift for other in job.ranks):
                self.end = "lost"  # the others have stopped before
                return
            if passed:
                self.last = position(batch)
            else:
                yield from self._boundary(position(batch))
            if not self.end and batch % self._every == 0:
                for number in range(1, self._validation + 1):
                    yield from self._boundary(position(batch, number))
                yield from self._boundary(position(batch, END))
            if self.end:
                return
        self.end = "finished"
        self.point.end()

    def _boundary(self, place: int) -> Iterator[None]:
        while not self.end:
            yield
            self.last = place
            then = self.point._look(place)
            if then == STOP:
                self.end = "stopped"
            if then == GO:
                return

    def view(self) -> RankView:
        return P.view(self._words, self.number, gone=False)


@dataclass
class Job:
    ranks: list[Rank]
    drift: int
    words: list[Word | None]
    early: float = 0.0
    """How often a rank passes the boundary after a batch when the batch begins."""

    def node(self, number: int, ranks: list[Rank], notes: Notes, world: int, pace: Pace) -> Iterator[None]:
        """The turns of one launcher; others come in between any two of its steps."""
        party = Leader(notes, world) if number == 0 else Follower(notes, number)
        turns, written = 0, None
        while written is None or not written.final:
            turns += 1
            views = [rank.view() for rank in ranks]
            yield
            word = self.words[number] = party.turn(views, LATE * (turns > 50), pace)
            yield
            if word is not None and word != written:
                for rank in ranks:
                    P.write(rank._words, word)
                    yield
                written = word
            if isinstance(party, Follower):
                views = [rank.view() for rank in ranks]
                yield
                party.reply(views)
            yield


def simulate(
    seed: int,
    validations: Sequence[Sequence[int]],
    *,
    batches: int,
    every: int = 3,
    drift: int = 0,
    pace: Pace = AT_ONCE,
    without: int = -1,
    early: float = 0.0,
) -> Job:
    """Run a job with these ranks (by node: how many validation batches each has) until everybody has come to an end."""
    chance = random.Random(seed)
    ranks: list[Rank] = []
    nodes: list[list[Rank]] = []
    for node in validations:
        nodes.append([])
        for count in node:
            takes_part = len(ranks) != without
            ranks.append(Rank(len(ranks), batches, every, count, takes_part))
            nodes[-1].append(ranks[-1])
    job, notes = Job(ranks, drift, [None] * len(nodes), early), Notes()
    actors = [rank.run(job) for rank in ranks]
    actors += [job.node(number, local, notes, len(nodes), pace) for number, local in enumerate(nodes)]
    weights = [chance.choice([1, 3, 30]) for _ in actors]
    for _ in range(MANY):
        if not actors:
            return job
        (turn,) = chance.choices(range(len(actors)), weights)
        if next(actors[turn], "over") == "over":
            del actors[turn], weights[turn]
    pytest.fail(f"no end: {[(rank.end, rank.last) for rank in ranks]}, {job.words}")


NODES = st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=3), min_size=1, max_size=3)
EARLY = st.sampled_from([0.0, 0.5, 1.0])
PACES = st.builds(Pace, st.sampled_from([0.0, 10.0, 1000.0]), st.sampled_from([0.0, 0.01]))


@settings(max_examples=150)
@given(st.integers(0, 2**32), NODES, st.integers(1, 4), st.integers(0, 3), PACES, EARLY)
def test_all_ranks_stop_at_the_same_batch(
    seed: int, validations: list[list[int]], every: int, drift: int, pace: Pace, early: float
) -> None:
    job = simulate(seed, validations, batches=1_000_000, every=every, drift=drift, pace=pace, early=early)
    assert {rank.end for rank in job.ranks} == {"stopped"}
    assert len({batches_of(rank.last) for rank in job.ranks}) == 1
    word = job.words[0]
    assert word is not None and job.words == [word] * len(job.words)
    for rank in job.ranks:
        assert rank.view().position < word.place <= rank.last


@settings(max_examples=100)
@given(st.integers(0, 2**32), NODES, st.integers(0, 40), st.integers(0, 2), EARLY)
def test_a_training_that_ends_meanwhile_ends_on_all_ranks(
    seed: int, validations: list[list[int]], batches: int, drift: int, early: float
) -> None:
    job = simulate(seed, validations, batches=batches, drift=drift, pace=Pace(1000.0, 0.01), early=early)
    assert len({rank.end for rank in job.ranks}) == 1
    if job.ranks[0].end == "stopped":
        assert len({batches_of(rank.last) for rank in job.ranks}) == 1


@settings(max_examples=40)
@given(st.integers(0, 2**32), NODES, st.data())
def test_a_rank_that_takes_no_part_is_named_and_nobody_waits(
    seed: int, validations: list[list[int]], data: st.DataObject
) -> None:
    without = data.draw(st.integers(0, sum(map(len, validations)) - 1))
    job = simulate(seed, validations, batches=60, without=without)
    assert {rank.end for rank in job.ranks} == {"finished"}
    assert {(word.kind, word.absent) for word in job.words if word} <= {
        (WITHDRAW, (without,)),
        (WITHDRAW, ()),
    }
