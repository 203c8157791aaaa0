"""Positions in a training, and the rules by which launchers and ranks agree where all ranks stop. Pure.

A rank comes from boundary to boundary: after each training batch, and inside a validation after each of its batches
and at its end. A position names a boundary in 63 bits, and positions are ordered as the boundaries are:
(k, 0) < (k, 1) < … < (k, END) < (k+1, 0) for k training batches. A validation with several data loaders has its
batches and an end in each of them: (loader, 1) < (loader, 2) < … < (loader, LOADER_END) < (loader+1, 1) < … < END.

A proposal is a number and a place: each rank stops at its first boundary at or beyond the place, once the proposal is
committed. A rank that has already passed the place answers no, and its launcher may answer for it: its position is on
its page, and it may be unable to come to its next boundary, waiting in a collective for a rank that stopped.
A rank that answers yes passes no further than its first such boundary until the proposal is committed, withdrawn, or
replaced by one with a higher number. So when all have answered yes no rank is past the place, and since all ranks come
to the same boundaries in the same order, all stop at the same one. A rank with fewer validation batches than another
stops at the end of the validation: both have trained the same batches.

Does not cover: ranks that do not take part in the same boundaries; a rank that waits for another one between its last
validation batch and the boundary at the validation's end, which therefore has to come before any collective; nested
validations; more than 255 data loaders, or 65534 batches in one (the rest counts as one place). The position of a plain
loop with more batches in a validation is right, but described as if it had loaders.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

VALIDATION_BITS = 24
LOADER_BITS = 16  # of these
MOST_BATCHES = (1 << 63 - VALIDATION_BITS) - 1

END = (1 << VALIDATION_BITS) - 1
"""The end of a validation, whatever number of batches it had."""
LOADER_END = (1 << LOADER_BITS) - 1
"""The end of a validation's data loader, whatever number of batches it had."""
MOST_LOADERS = END >> LOADER_BITS


def position(batches: int, validation: int = 0) -> int:
    """After `batches` training batches of this start of the rank; in a validation, after `validation` of its batches.

    `validation` is 0 outside, `END` at the end of one, and `in_loader` where a validation has several data
    loaders. Raises ValueError for what is negative or too large.
    """
    if not (0 <= batches <= MOST_BATCHES and validation >= 0):
        raise ValueError(f"no position: {batches} batches, {validation} of a validation")
    if validation >= END:
        validation = END if validation == END else END - 1
    return batches << VALIDATION_BITS | validation


def in_loader(loader: int, batch: int) -> int:
    """The `validation` of `position` at this batch (from 1) of a validation's data loader (from 0).

    `batch` is `LOADER_END` at the loader's end. Raises ValueError for what is below that.
    """
    if loader < 0 or batch < 1:
        raise ValueError(f"no position: batch {batch} of data loader {loader}")
    if loader >= MOST_LOADERS:
        return END - 1
    if batch != LOADER_END:
        batch = min(batch, LOADER_END - 1)
    return loader << LOADER_BITS | batch


def batches_of(place: int) -> int:
    """How many training batches lie before it."""
    return place >> VALIDATION_BITS


def validation_of(place: int) -> int:
    """Where in a validation it is: 0 outside of one, END at the end of one."""
    return place & END


def loader_of(validation: int) -> tuple[int, int]:
    """The data loader (from 0) and its batch, as they were given to `in_loader`."""
    return validation >> LOADER_BITS, validation & LOADER_END


def describe(place: int) -> str:
    """For people: `after batch 120`, `after batch 120, in validation, batch 7` (`…, loader 2, batch 7`)."""
    batches, validation = batches_of(place), validation_of(place)
    text = f"after batch {batches}" if batches else "before the first batch"
    if validation == END:
        return f"{text}, at the end of validation"
    return f"{text}, in validation, {_in_validation(validation)}" if validation else text


def _in_validation(validation: int) -> str:
    loader, batch = loader_of(validation)
    if batch == LOADER_END:
        return f"at the end of loader {loader + 1}"
    return f"loader {loader + 1}, batch {batch}" if loader else f"batch {batch}"


GO, WAIT, STOP = "go", "wait", "stop"
ASK, COMMIT, WITHDRAW = "ask", "commit", "withdraw"
"""Words of the leader on a proposal."""
NEVER, TAKES_PART, ENDED = 0, 1, 2
"""Whether a rank takes part: it has not begun to, it does, it no longer does."""

LATE = 5.0  # seconds after which a rank that has not begun to take part counts as one that never will


@dataclass(frozen=True, slots=True)
class Word:
    """The leader's newest proposal, and what becomes of it. A withdrawal has the reason in `why`, unless that is the
    ranks that are `absent`, or the node whose launcher is `lost`."""

    kind: str
    number: int
    place: int = 0
    absent: tuple[int, ...] = ()
    why: str = ""
    lost: str = ""

    @property
    def final(self) -> bool:
        """Whether nothing follows."""
        return self.kind != ASK

    def encode(self) -> str:
        """The text in the store. Without `lost` it is that of earlier versions, which launchers of a job may have."""
        return json.dumps({name: value for name, value in asdict(self).items() if value or name != "lost"})

    @classmethod
    def decode(cls, text: str) -> Word:
        """The reverse of `encode`."""
        values = json.loads(text)
        return cls(**{**values, "absent": tuple(values["absent"])})


@dataclass(frozen=True, slots=True)
class RankView:
    """One rank as its launcher sees it. `position` is the last boundary that it went past, `at` the one at which it
    last read a proposal; `answered` and `yes` are its answer. `gone`: its process has ended."""

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
        """The farthest boundary that it has reached as far as its page shows."""
        return max(self.position, self.at)


def at_boundary(past: int, here: int, place: int, *, committed: bool) -> tuple[bool, str]:
    """A rank that went past `past` and is at `here` sees a proposal: its answer, and whether it continues."""
    if past >= place:
        return False, GO
    if here < place:
        return True, GO
    return True, STOP if committed else WAIT


def answer(view: RankView, proposal: Word) -> bool | None:
    """A rank's answer to the proposal, given by itself or, where it is past the place, seen; None: not yet."""
    if view.answered == proposal.number:
        return view.yes
    return False if view.position >= proposal.place else None


def joint_answer(views: Iterable[RankView], proposal: Word) -> bool | None:
    """That of all these ranks together; None while one is missing."""
    answers = [answer(view, proposal) for view in views]
    return None if None in answers else all(answers)


def unanswered(views: Iterable[RankView], proposal: Word) -> list[RankView]:
    """The ranks whose answer is missing."""
    return [view for view in views if answer(view, proposal) is None]


def farthest(views: Iterable[RankView]) -> int:
    """The farthest boundary that one of these ranks has come to."""
    return max((view.farthest for view in views), default=0)


def absent(views: Sequence[RankView], waited: float) -> list[int] | None:
    """The ranks that take no part; None while it is too early to decide, `waited` seconds after the stop was asked for.

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


def ahead(reached: int, by: int) -> int:
    """The place `by` boundaries (1: the next) beyond a boundary; training batches are counted, or inside a
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
