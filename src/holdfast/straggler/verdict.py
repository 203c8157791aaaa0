"""A verdict: which rank or node is slow, in what, by how much, since when, and how this is known in one sentence."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

GPU, HOST, SECTION, LATE = "GPU", "host", "section", "collective/late arrival"
UNKNOWN_SINCE = 0
"""Of a verdict that is read from a journal which does not have it."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One slow rank, or a node most of whose ranks are slow.

    Does not cover: why a GPU is slow (clocks, temperature, errors); and whether the rank should be replaced.
    """

    rank: int | None
    """None: the whole node."""
    node: str
    ranks: tuple[int, ...]
    """The rank, or all ranks of the node."""
    kind: str
    """"GPU", "host", "section" or "collective/late arrival"."""
    slowdown: float
    """Time over that of comparable ranks: 1.15 takes 15 % longer."""
    since: int
    """The first report in which it was slow; the job's first report is 1."""
    evidence: str
    """One sentence."""
    section: str | None = None
    """The section, for the kind "section" and where a host's loss shows in one."""

    def __str__(self) -> str:
        text = f"{self.kind}, {self.slowdown:.2f} × slower"
        if self.since != UNKNOWN_SINCE:
            text += f" since report {self.since}"
        if self.rank is None:
            return f"node {self.node}: {text}, on its {len(self.ranks)} ranks: {self.evidence}"
        return f"rank {self.rank} (node {self.node}): {text}" + (
            f": {self.evidence}" if self.evidence else ""
        )


def longer(slowdown: float) -> str:
    """1.152 -> "15 % longer than"; from 3 on, "3.4 times as long as"."""
    return f"{(slowdown - 1) * 100:.0f} % longer than" if slowdown < 3 else f"{slowdown:.1f} times as long as"


def seconds(value: float) -> str:
    """A time as people write it."""
    if value >= 1:
        return f"{value:.1f} s"
    return f"{value * 1000:.0f} ms" if value >= 1e-3 else f"{value * 1e6:.0f} µs"


def ranks_text(ranks: Iterable[int], most: int | None = None) -> str:
    """3, 4, 5, 9 as "rank 3–5, 9"; of more than `most` series, the first and an ellipsis."""
    runs: list[list[int]] = []
    for rank in sorted(set(ranks)):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    texts = [str(a) if a == b else f"{a}, {b}" if b == a + 1 else f"{a}–{b}" for a, b in runs]
    if most is not None and len(texts) > most:
        texts[most:] = ["…"]
    return f"rank {', '.join(texts)}" if texts else ""
