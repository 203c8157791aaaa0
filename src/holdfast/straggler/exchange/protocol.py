"""What the ranks say: one exchange for each report.

A rank's medians travel as one list of numbers, in the order of two tables that are the same on all ranks (`tables`),
and one all-reduce makes references of them. The same all-reduce says whether a table has to grow first, and carries
what the ranks agree on about the next report. With gathering, one gather of rows (`rows`) follows; before the first,
one of the names of nodes.

Does not cover: ranks that ask for different reports. As with other collectives, all must do the same.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from . import rows
from .channel import Channel
from .rows import Layout
from .tables import Own, Tables, judged

MOST_ROUNDS = 64
"""Ranks whose news is told in one report; the others' follows in the next."""
_ABSENT = -1.0
_LENGTH = 1 << 24  # beyond any payload; with a rank before it the number is still exact in 64 bits of float
_HEAD = 4
FEW = 0.8
"""If the kernels that are judged have lost so much of some rank's time that less than this is left of it, they are
chosen anew, in the next report but not before `_SETTLED` reports: the first may have been chosen while kernels were
tuned and compiled."""
_SETTLED = 4


@dataclass(frozen=True)
class References:
    """The least medians of all ranks, of what all ranks measured. `sections` are all names that are known, in the
    order that all ranks share; `judged` the keys of the kernels whose figures are gathered."""

    section_times: Mapping[str, float]
    kernel_times: Mapping[int, float]
    sections: tuple[str, ...] = ()
    waiting: frozenset[str] = frozenset()
    judged: tuple[int, ...] = ()
    steps: float | None = None
    """The greatest estimate of steps between reports; None while some rank has none."""
    still_judged: float = 1.0
    """What is left of the share of kernel time that judged kernels had when they were chosen, on the rank where that is
    least."""


@dataclass(frozen=True)
class Identities:
    """Who the ranks are."""

    nodes: dict[int, str]
    """The name of the node of each rank, by rank."""
    labels: Sequence[str]
    """What each rank said of its work, in the same order; empty for most."""


@dataclass(frozen=True)
class Gathered:
    """The rows of all ranks, rank after rank, on rank 0."""

    rows: bytes | bytearray
    layout: Layout

    def extras(self, number: int) -> tuple[float, ...]:
        """What stands after the columns of the rank of that number in the group."""
        return rows.extras_of(self.rows, self.layout, number)

    def scores(self, ranks: Sequence[int]) -> list[dict[int, float]]:
        """For each score a dict from rank to its value."""
        return [dict(zip(ranks, column, strict=True)) for column in rows.scores_of(self.rows, self.layout)]


class Exchange:
    """The tables of one rank, and the exchanges that keep them the same on all ranks."""

    def __init__(self, channel: Channel, node: str, label: str = "") -> None:
        """`label`: what work this rank does, if only it knows."""
        self._channel = channel
        self._identity = json.dumps([node, label]).encode()
        self._told_identities: bytes | bytearray | None = None
        self._longest_identity = 0
        self._tables = Tables()
        self._judged: tuple[int, ...] = ()
        self._judged_share = 0.0  # of this rank's kernel time, when they were chosen
        self._reports_since = 0
        self._choose = False

    def most_steps(self, steps: float) -> float:
        """The greatest of all ranks' estimates. One all-reduce."""
        return -self._channel.least([-steps])[0]

    def references(self, own: Own, steps: float | None, compare: bool) -> References:
        """The least of all ranks' medians; without `compare` only the tables are agreed on. One all-reduce where no
        name is new, for each rank with new ones another and a broadcast."""
        tables = self._tables
        tables.next_report()
        for rounds in range(MOST_ROUNDS + 1):
            news = tables.news(own)
            head = [
                self._channel.rank * _LENGTH + len(news) if news else math.inf,
                -math.inf if steps is None else -steps,
                -float(len(self._identity)),
                self._still_judged(own),
            ]
            shares = [-own.shares.get(one, 0.0) for one in tables.kernels] if self._choose else []
            least = self._channel.least([*head, *self._medians(own, compare), *shares])
            if least[0] == math.inf or rounds == MOST_ROUNDS:
                break
            self._learn(least[0], news)
        self._settle(least, own)
        self._longest_identity = self._longest_identity or int(-least[2])
        return self._found(least, compare)

    def _still_judged(self, own: Own) -> float:
        share = own.share_of(self._judged)
        return share / self._judged_share if own.shares and self._judged_share > 0 else 1.0

    def _settle(self, least: Sequence[float], own: Own) -> None:
        """Choose the judged kernels, if that is due; or find that it is in the next report. Alike on all ranks."""
        kernels = self._tables.kernels
        self._reports_since += 1
        if self._choose:
            self._judged = judged(kernels, [-one for one in least[len(least) - len(kernels) :]])
            self._judged_share = own.share_of(self._judged)
            self._reports_since, self._choose = 0, False
        elif least[3] < FEW and self._reports_since >= _SETTLED:
            self._choose = True

    def gather(self, row: bytes, layout: Layout) -> Gathered | None:
        """On rank 0 the rows of all ranks; None elsewhere. All ranks give rows of one layout, after `references`. One
        gather, and before the first one of the identities."""
        if self._told_identities is None:
            told = self._channel.bytes_to_rank_0(self._identity, self._longest_identity)
            self._told_identities = told or b""
        rows = self._channel.bytes_to_rank_0(row, layout.length)
        return None if rows is None else Gathered(rows, layout)

    @cached_property
    def identities(self) -> Identities:
        """Who all ranks are; on rank 0, after the first `gather`."""
        told, length = self._told_identities or b"", self._longest_identity
        starts = range(0, len(told), length)
        pairs = [json.loads(told[start : start + length].rstrip(b"\0")) for start in starts]
        nodes, labels = zip(*pairs, strict=True)
        return Identities(dict(zip(self._channel.ranks, nodes, strict=True)), labels)

    def _learn(self, news_of: float, news: bytes) -> None:
        root, length = divmod(int(news_of), _LENGTH)
        self._choose |= self._tables.learn(self._channel.from_rank(root, news, length))

    def _medians(self, own: Own, compare: bool) -> list[float]:
        if not compare:
            return []
        sections = [own.sections.get(name, _ABSENT) for name in self._tables.sections]
        return sections + [own.kernels.get(one, _ABSENT) for one in self._tables.kernels]

    def _found(self, least: Sequence[float], compare: bool) -> References:
        tables = self._tables
        times = least[_HEAD:] if compare else ()
        sections = dict(zip(tables.sections, times, strict=False))
        kernels = dict(zip(tables.kernels, times[len(tables.sections) :], strict=False))
        return References(
            {name: time for name, time in sections.items() if time > 0},
            {one: time for one, time in kernels.items() if time > 0},
            tuple(tables.sections),
            frozenset(tables.waiting),
            self._judged,
            -least[1] if least[1] > -math.inf else None,
            min(least[3], 1.0) if self._reports_since else 1.0,
        )
