"""A verdict: which rank, where, what about it is slow, by how much, how sure, and how we know, in one sentence."""

from __future__ import annotations

from dataclasses import dataclass

GPU, SECTION, LATE, HOST = "GPU", "section", "collective/late arrival", "host"
KINDS = (GPU, HOST, SECTION, LATE)
"""Most specific first: a rank gets the first of these that holds for it."""

NO_CPU, STOLEN = "waiting for a CPU", "CPU stolen"
CONTENTION = (NO_CPU, STOLEN)
"""Losses that come and go with other programs on the host."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One slow rank.

    Does not cover: why a GPU is slow (clocks, temperature, errors); and whether the rank should be replaced.
    """

    rank: int
    node: str
    kind: str
    """"GPU", "host", "section" or "collective/late arrival"."""
    slowdown: float
    """Time over the reference: 1.15 takes 15 % longer."""
    confidence: float
    """From 0 to below 1; it orders verdicts and is no probability. 0.5 just passes all thresholds."""
    evidence: str
    """One sentence."""
    section: str | None = None
    """The section, for the kind "section" and where a host's loss shows in one."""

    def __str__(self) -> str:
        return (
            f"rank {self.rank} (node {self.node}): {self.kind}, {self.slowdown:.2f}x, "
            f"confidence {self.confidence:.2f}: {self.evidence}"
        )


def confidence(margin: float, hits: int, needed: int, supported: bool | None) -> float:
    """From how far the thresholds are passed (`margin`, 1: just), for how many windows, and what arrival says.

    `supported`: True if the others wait for this rank, False if it waits for them, None if nothing is known.
    """
    steps = min(margin, 4.0) + 0.5 * (hits - needed) + {True: 1.0, False: -0.75, None: 0.0}[supported]
    return round(float(min(0.99, max(0.05, 1 - 0.5**steps))), 2)


def percent(slowdown: float) -> str:
    """1.152 -> "15 % longer"; from 3 on, "3.4 times as long"."""
    return f"{(slowdown - 1) * 100:.0f} % longer" if slowdown < 3 else f"{slowdown:.1f} times as long"


def seconds(value: float) -> str:
    """A time as people write it."""
    return (
        f"{value:.1f} s"
        if value >= 1
        else f"{value * 1000:.0f} ms"
        if value >= 1e-3
        else f"{value * 1e6:.0f} µs"
    )
