"""Chains of attempts in shorthand, for the tests of what follows from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.autoresume.ledger import Attempt, Chain
from holdfast.autoresume.outcome import Kind

KINDS = {
    "F": Kind.FAILED,
    "N": Kind.NODE_LOST,
    "P": Kind.PREEMPTED,
    "T": Kind.TIME_LIMIT,
    "E": Kind.ENDED,
    "L": Kind.LOST,
    "D": Kind.FINISHED,
    "S": Kind.SHUT_DOWN,
    "C": Kind.CANCELLED,
    "R": Kind.REFUSED,
}


def attempt(kind: str, number: int = 1, *, seconds: float = 10.0, **fields: Any) -> Attempt:
    """One that ended as the letter says, after so many seconds."""
    fields = {"why": "exit code 1", **fields}
    return Attempt(number, 0.0, ended=seconds, kind=KINDS[kind], **fields)


def chain(
    letters: str, *, seconds: float | Sequence[float] = 10.0, steps: Sequence[int | None] = ()
) -> Chain:
    """A letter for each attempt; `seconds` for all or each, `steps` where each resumed."""
    each = list(seconds) if isinstance(seconds, Sequence) else [seconds] * len(letters)
    resumed = [*steps, *[None] * (len(letters) - len(steps))]
    attempts = [
        attempt(letter, number, seconds=ran, resumed_step=step)
        for number, (letter, ran, step) in enumerate(zip(letters, each, resumed, strict=True), 1)
    ]
    return Chain(1, 0.0, tuple(attempts))
