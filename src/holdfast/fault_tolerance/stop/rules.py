"""The rules by which launchers and ranks agree where all ranks stop. Pure.

A proposal is a number and a place: each rank stops at its first boundary at or beyond the place, once the proposal is
committed. A rank that has gone past the place already says no, and its launcher may say so for it: where it has been
is on its page, and it may be unable to come to its next boundary, waiting in a collective for a rank that stopped.
A rank that says yes goes no farther than its first such boundary until the proposal is committed, withdrawn, or
replaced by one with a higher number. So when all have said yes nobody is past the place, and since all ranks come to
the same boundaries in the same order, all stop at the same one. A rank with fewer validation batches than another
stops at the end of the validation: both have trained the same batches.

Does not cover: ranks that do not take part in the same boundaries; and a rank that waits for another one between its
last validation batch and the boundary at the validation's end, which therefore has to come before any collective.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from .positions import END, LOADER_END, batches_of, in_loader, loader_of, position, validation_of

GO, WAIT, STOP = "go", "wait", "stop"
ASK, COMMIT, WITHDRAW = "ask", "commit", "withdraw"
"""Words of the leader on a proposal."""
NEVER, TAKES_PART, ENDED = 0, 1, 2
"""Whether a rank takes part: it has not begun to, it does, it no longer does."""

LATE = 5.0  # seconds after which a rank that has not begun to take part counts as one that never will
CARE = 1.5  # times as far ahead as the measured speed and delay ask for


@dataclass(frozen=True, slots=True)
class Proposal:
    """The place of the proposal with this number."""

    number: int
    place: int


@dataclass(frozen=True, slots=True)
class Word:
    """The leader's newest proposal, and what becomes of it. A withdrawal has the reason in `why`, unless that is the
    ranks that are `absent`."""

    kind: str
    number: int
    place: int = 0
    absent: tuple[int, ...] = ()
    why: str = ""

    @property
    def final(self) -> bool:
        """Whether nothing follows."""
        return self.kind != ASK

    @property
    def proposal(self) -> Proposal:
        """The proposal that it is about."""
        return Proposal(self.number, self.place)

    def encode(self) -> str:
        """As it stands in the store."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> Word:
        """The reverse of `encode`."""
        values = json.loads(text)
        return cls(**{**values, "absent": tuple(values["absent"])})


@dataclass(frozen=True, slots=True)
class RankView:
    """One rank as its launcher sees it. `position` is the last boundary that it went past, `at` the one at which it
    last looked at a proposal; `answered` and `yes` are its answer. `gone`: its process has ended."""

    rank: int
    state: int
    position: int = 0
    at: int = 0
    answered: int = 0
    yes: bool = False
    gone: bool = False

    @property
    def lost(self) -> bool:
        """Whether its process has ended in the middle of it."""
        return self.gone and self.state == TAKES_PART

    @property
    def over(self) -> bool:
        """Whether it took part, and comes to no boundary any more."""
        return self.state == ENDED or self.lost

    @property
    def farthest(self) -> int:
        """The farthest boundary that it is known to have come to."""
        return max(self.position, self.at)


def at_boundary(past: int, here: int, place: int, *, committed: bool) -> tuple[bool, str]:
    """A rank that went past `past` and is at `here` sees a proposal: its answer, and whether it goes on."""
    if past >= place:
        return False, GO
    if here < place:
        return True, GO
    return True, STOP if committed else WAIT


def answer(view: RankView, proposal: Proposal) -> bool | None:
    """A rank's answer to the proposal, given by itself or, where it is past the place, seen; None: not yet."""
    if view.answered == proposal.number:
        return view.yes
    return False if view.position >= proposal.place else None


def joint_answer(views: Iterable[RankView], proposal: Proposal) -> bool | None:
    """That of all these ranks together; None while one is missing."""
    answers = [answer(view, proposal) for view in views]
    return None if None in answers else all(answers)


def unanswered(views: Iterable[RankView], proposal: Proposal) -> list[RankView]:
    """The ranks whose answer is missing."""
    return [view for view in views if answer(view, proposal) is None]


def farthest(views: Iterable[RankView]) -> int:
    """The farthest boundary that one of these ranks has come to."""
    return max((view.farthest for view in views), default=0)


def absent(views: Sequence[RankView], waited: float) -> list[int] | None:
    """The ranks that take no part; None while it is too early to say, `waited` seconds after the stop was asked for.

    One whose training has ended may begin another: it has the same time for that.
    """
    missing = [view for view in views if view.state != TAKES_PART]
    if waited < LATE and not all(view.gone for view in missing):
        return None
    return [view.rank for view in missing if view.state == NEVER]


def over(views: Iterable[RankView]) -> tuple[int, ...]:
    """The ranks that come to no boundary any more."""
    return tuple(view.rank for view in views if view.over)


def why_over(ranks: Sequence[int]) -> str:
    """The reason that these are."""
    if len(ranks) == 1:
        return f"rank {ranks[0]} has ended its training"
    return f"{len(ranks)} ranks have ended their training, rank {ranks[0]} among them"


def margin(speed: float, delay: float) -> int:
    """How many training batches ahead of the farthest rank to stop: with `speed` of them per second a proposal that
    takes `delay` seconds to reach everybody still finds the place ahead."""
    return 1 + math.ceil(CARE * speed * delay)


def ahead(reached: int, by: int) -> int:
    """The place so many boundaries (1: the next) beyond a boundary; training batches are counted, or inside a
    validation its batches, no farther than to the end of the data loader. One that lies between two training batches
    is the first of a validation, if there is one."""
    batches, validation = batches_of(reached), validation_of(reached)
    if validation == END:
        return position(batches + by)
    if validation:
        return position(batches, _ahead_in_validation(validation, by))
    return position(batches + by - 1, 1)


def _ahead_in_validation(validation: int, by: int) -> int:
    loader, batch = loader_of(validation)
    if batch == LOADER_END:
        loader, batch = loader + 1, 0
    place = in_loader(loader, min(batch + by, LOADER_END))
    return place if place > validation else END  # more loaders than there are places
