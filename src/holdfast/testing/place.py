"""Where this process stands in the job, and whether a fault is meant for it. Pure but for reading the environment.

What always holds: every rank of a cycle comes to the same answer about a random choice, with no message between them,
because it is drawn from values that are equal on all of them. What this does not cover: processes that were given no
RANK and WORLD_SIZE count as a job of one rank.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

from holdfast.testing.errors import FaultSpecError
from holdfast.testing.fault import Fault

__all__ = ["Place", "delay", "is_for", "resolve", "target"]


@dataclass(frozen=True, slots=True)
class Place:
    """A rank's place: `cycle` counts restarts, `job` is text that is equal on all ranks and differs between jobs."""

    rank: int = 0
    world_size: int = 1
    cycle: int = 0
    job: str = ""

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Place:
        """Reads what torchrun and ft_launcher set. Raises FaultSpecError for a value that is no number."""
        # The port alone tells two jobs apart that were both given no --rdzv-id.
        job = "|".join(
            environ.get(name, "") for name in ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT")
        )
        return cls(
            rank=_number(environ, "RANK", 0),
            world_size=_number(environ, "WORLD_SIZE", 1),
            cycle=_number(environ, "TORCHELASTIC_RESTART_COUNT", 0),
            job=job,
        )


def resolve(fault: Fault, index: int, place: Place) -> Fault:
    """The fault with its own random choices made: kind `random` becomes `kill` or `stop`, rank becomes a number."""
    draw = _draw(fault, index, place, "choice")
    # Always drawn in this order, so that one choice does not depend on whether the other was asked for.
    kind, rank = draw.choice(["kill", "stop"]), draw.randrange(place.world_size)
    return replace(
        fault,
        kind=kind if fault.kind == "random" else fault.kind,
        rank=rank if fault.rank == "random" else fault.rank,
    )


def is_for(fault: Fault, place: Place) -> bool:
    """Whether a resolved fault happens in this cycle at all (on whichever rank)."""
    return fault.cycle in ("each", place.cycle)


def target(fault: Fault, place: Place) -> bool:
    """Whether this rank is the one (or one of those) that a resolved fault names."""
    return fault.rank in ("all", place.rank)


def delay(fault: Fault, index: int, place: Place) -> float:
    """Seconds from arming to a delayed fault: `after` + U(0, 1) · `rand`."""
    return (fault.after or 0.0) + _draw(fault, index, place, "delay").random() * fault.rand


def _draw(fault: Fault, index: int, place: Place, purpose: str) -> random.Random:
    seed = place.job if fault.seed is None else str(fault.seed)
    return random.Random(f"{seed}/{place.cycle}/{index}/{purpose}")


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, "")
    if not text:
        return default
    if not text.isdecimal() or (name == "WORLD_SIZE" and int(text) == 0):
        raise FaultSpecError(f"environment {name}={text!r} is not a number that a launcher would have set")
    return int(text)
