"""What the ranks exchange: once for each report.

A rank's medians travel as one list of numbers, in the order of two tables that are the same on all ranks, and one
all-reduce makes references of them. It also says whether a table has to grow first, and carries what the ranks agree on
about the next report. With gathering, one gather of rows follows; before the first, one of the names of nodes.

Tables: sections are listed by name, kernels as 8-byte keys. A rank that measured what is in no table has news, which
one rank at a time tells to all. Tables only grow; a full table of kernels begins anew once it has little to do with
what a rank runs, once in a report at most, and ever more rarely.

Rows, of fixed length: a rank's scores with all 64 bits, since they are compared with thresholds and printed; then
32-bit floats: of each column (sections, then kernels) the medians, the totals and the counts; and what its host lost.
Rows are whole words of 8 bytes, in the machine's byte order. Times are in seconds; NaN says: not measured.

Pure but for the channel. Does not cover: ranks that ask for different reports. As with other collectives, all must do
the same. Two kernels of one rank with the same 63-bit hash; sections of all ranks together beyond `MOST_AGREED`,
kernels beyond `MOST_KERNELS`, and kernels with less than `LEAST_SHARE`, which are not compared.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from .gpu_facts import UNKNOWN
from .kernels.names import is_rooted
from .kernels.source import KernelWindow
from .scores import Own, References, Statistic, Summary, medians, weights

MOST_AGREED = 1000
"""Names of sections that the ranks agree on; further ones are scored nowhere."""
MOST_KERNELS = 3000
"""Keys of kernels in the table: 24 kB of references in each report."""
LEAST_SHARE = 1e-4
"""Of a rank's kernel time: what has less is not told. With launch shapes in their names, kernels have a long tail."""
JUDGED_KERNELS, JUDGED_COLLECTIVES = 128, 32
"""Kernels whose figures are gathered for verdicts: those that take most time, of both kinds together."""
STALE = 0.5
"""A full table begins anew if less than this share of a rank's kernel time is in it."""
LONGEST_PAUSE = 64
"""Reports before a table may begin anew again: none after the first time, then twice as many each time, up to these."""
MOST_ROUNDS = 64
"""Ranks whose news is exchanged in one report; that of the others follows in the next."""
_ABSENT = -1.0
_LENGTH = 1 << 24  # beyond any payload; with a rank before it the number is still exact in 64 bits of float
_HEAD = 4
FEW = 0.8
"""If the kernels that are judged have lost so much of some rank's time that less than this is left of it, they are
chosen anew, in the next report but not before `_SETTLED` reports: the first may have been chosen while kernels were
tuned and compiled."""
_SETTLED = 4
Figures = tuple[float, float, float]
"""Median and total in seconds, and count."""
ABSENT: Figures = (math.nan, 0.0, 0.0)


# -- rows ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """How many numbers of each kind a row has."""

    scores: int
    columns: int
    extras: int

    @property
    def length(self) -> int:
        """Bytes."""
        return 8 * self.words

    @property
    def words(self) -> int:
        """Of 8 bytes; two floats each."""
        return self.scores + (3 * self.columns + self.extras + 1) // 2


def pack(scores: Sequence[float], columns: Sequence[Figures], extras: Sequence[float]) -> bytes:
    """One rank's row."""
    medians, totals, counts = zip(*columns, strict=True) if columns else ((), (), ())
    floats = (*medians, *totals, *counts, *extras)
    padding = len(floats) % 2
    return struct.pack(f"={len(scores)}d{len(floats)}f{4 * padding}x", *scores, *floats)


@dataclass(frozen=True)
class Gathered:
    """The rows of all ranks, rank after rank, on rank 0."""

    rows: bytes | bytearray
    layout: Layout

    def extras(self, number: int) -> tuple[float, ...]:
        """What stands after the columns of the rank of that number in the group."""
        start = number * self.layout.length + 8 * self.layout.scores + 12 * self.layout.columns
        return struct.unpack_from(f"={self.layout.extras}f", self.rows, start)

    def scores(self, ranks: Sequence[int]) -> list[dict[int, float]]:
        """For each score a dict from rank to its value."""
        numbers = memoryview(self.rows).cast("d")
        columns = [numbers[score :: self.layout.words] for score in range(self.layout.scores)]
        return [dict(zip(ranks, column, strict=True)) for column in columns]


# -- tables ----------------------------------------------------------------------------------------------------------


def key(kernel: str, collective: bool = False) -> int:
    """The number that stands for a kernel on all ranks; odd for one that waits for others."""
    return _hashed(kernel) & ~1 | collective


def is_collective(key: int) -> bool:
    """Whether a key is that of a kernel that waits for others."""
    return bool(key & 1)


class Tables:
    """The tables as one rank has them; they stay alike because all ranks `learn` the same in the same order."""

    def __init__(self) -> None:
        self.sections: list[str] = []
        self.waiting: set[str] = set()
        self.kernels: list[int] = []
        self._known: tuple[set[str], set[int]] = set(), set()
        self._pause, self._paused = 0, 0
        self._may_begin_anew = False

    def next_report(self) -> None:
        """Another report begins, on all ranks."""
        self._may_begin_anew = self._paused == 0
        self._paused = max(self._paused - 1, 0)

    def news(self, own: Own) -> bytes:
        """What this rank has to tell; empty if nothing."""
        sections, kernels = self._known
        names = [name for name in (*own.sections, *own.waiting) if name not in sections]
        names = names[: MOST_AGREED - len(self.sections)]
        keys = [one for one, share in own.shares.items() if one not in kernels and share >= LEAST_SHARE]
        room = MOST_KERNELS - len(self.kernels)
        missing = sum(own.shares[one] for one in keys)
        anew = self._may_begin_anew and len(keys) > room and missing > 1 - STALE
        if anew:
            keys, room = [one for one, share in own.shares.items() if share >= LEAST_SHARE], MOST_KERNELS
        keys = sorted(keys, key=lambda one: -own.shares[one])[:room]
        if not names and not keys:
            return b""
        told = {"sections": names, "waiting": [name for name in names if name in own.waiting], "anew": anew}
        return struct.pack(f"<I{len(keys)}Q", len(keys), *keys) + json.dumps(told).encode()

    def learn(self, told: bytes) -> bool:
        """Take in the news of some rank; whether the table of kernels is another now."""
        (count,) = struct.unpack_from("<I", told)
        keys = struct.unpack_from(f"<{count}Q", told, 4)
        news = json.loads(told[4 + 8 * count :])
        self._may_begin_anew = False  # the first rank had the choice
        if news["anew"]:
            self.kernels = []
            self._paused = self._pause
            self._pause = min(max(2 * self._pause, 1), LONGEST_PAUSE)
        self.kernels += keys
        self.sections += news["sections"]
        self.waiting |= set(news["waiting"])
        self._known = set(self.sections), set(self.kernels)
        return bool(keys)


def judged(kernels: Sequence[int], shares: Sequence[float]) -> tuple[int, ...]:
    """Which kernels are judged, by key: those with the largest shares of any rank's time. The same on all ranks, if
    they give the same."""
    order = sorted(zip(kernels, shares, strict=True), key=lambda pair: (-pair[1], pair[0]))
    waiting = [one for one, _ in order if is_collective(one)][:JUDGED_COLLECTIVES]
    return tuple(
        [one for one, _ in order if not is_collective(one)][: JUDGED_KERNELS - len(waiting)] + waiting
    )


@functools.lru_cache(maxsize=20_000)
def _hashed(name: str) -> int:
    digest = hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little")


# -- what one rank measured ----------------------------------------------------------------------------------------

_MS, _US = 1e-3, 1e-6


@dataclass(frozen=True)
class Snapshot:
    """One window of one rank."""

    sections: Mapping[str, Summary]
    kernels: KernelWindow = field(default_factory=KernelWindow)
    waiting: Collection[str] = ()
    """Sections whose bodies wait for other ranks."""
    losses: Mapping[str, float] = field(default_factory=dict)
    """Seconds that the host lost, by cause; the same causes on all ranks."""
    elapsed: float = math.nan
    """Seconds of wall time that this was measured in: where only every n-th run is, an n-th of the window."""
    facts: Sequence[float] = UNKNOWN
    """Of this rank's GPU; see `gpu_facts`."""
    steps: float | None = None
    """The estimate of steps between reports, once there is one."""

    @cached_property
    def section_times(self) -> dict[str, float]:
        """Medians of the sections that are compared."""
        return {name: time for name, time in medians(self.sections).items() if name not in self.waiting}

    @cached_property
    def kernel_times(self) -> dict[int, float]:
        """Medians of the kernels that are compared, by key."""
        return medians(self._compute)

    @cached_property
    def kernel_weights(self) -> dict[int, float]:
        """The time that was spent in each of them."""
        return weights(self._compute)

    @cached_property
    def own(self) -> Own:
        """For the exchange."""
        spent = self.kernel_weights | weights(self._collectives)
        total = math.fsum(spent.values())
        shares = {one: weight / total for one, weight in spent.items()} if total > 0 else {}
        waiting = [name for name in self.sections if name in self.waiting]
        return Own(self.section_times, waiting, self.kernel_times, shares)

    def extras(self) -> tuple[float, ...]:
        """What travels after the columns."""
        return (*self.losses.values(), self.elapsed, *self.facts)

    def columns(self, sections: Iterable[str], kernels: Iterable[int]) -> list[Figures]:
        """What travels of these sections and kernels."""
        summaries = self._compute | self._collectives
        return [_figures(self.sections.get(name), _MS) for name in sections] + [
            _figures(summaries.get(one), _US) for one in kernels
        ]

    @cached_property
    def _compute(self) -> dict[int, Summary]:
        return {key(name): summary for name, summary in self.kernels.compute.items()}

    @cached_property
    def _collectives(self) -> dict[int, Summary]:
        # The others know only keys, so that what says nothing about who is late must be left out here.
        return {
            key(name, True): summary
            for name, summary in self.kernels.collectives.items()
            if not is_rooted(name)
        }


def _figures(summary: Summary | None, unit: float) -> Figures:
    if summary is None:
        return ABSENT
    number = summary[Statistic.NUM]
    return summary[Statistic.MED] * unit, number * summary[Statistic.AVG] * unit, number


# -- exchange --------------------------------------------------------------------------------------------------------


class Channel(Protocol):
    """Rank `rank` of `size` within the group. `rank` is not the global rank: that is `ranks[rank]`."""

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def ranks(self) -> Sequence[int]: ...

    def least(self, values: list[float]) -> list[float]:
        """The least of each value over all ranks; the same on all."""

    def from_rank(self, root: int, payload: bytes, length: int) -> bytes:
        """The payload of the rank `root`, `length` bytes; what other ranks give is not looked at."""

    def bytes_to_rank_0(self, payload: bytes, length: int) -> bytes | bytearray | None:
        """On rank 0 the payloads of all ranks, rank after rank, each padded with zeros to `length`; None elsewhere."""


@dataclass(frozen=True)
class Identities:
    """Who the ranks are."""

    nodes: dict[int, str]
    """The name of the node of each rank, by rank."""
    labels: Sequence[str]
    """What each rank said of its work, in the same order; empty for most."""


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

    def greatest(self, value: float) -> float:
        """Of all ranks' values. One all-reduce."""
        return -self._channel.least([-value])[0]

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
            identities = self._channel.bytes_to_rank_0(self._identity, self._longest_identity)
            self._told_identities = identities or b""
        told = self._channel.bytes_to_rank_0(row, layout.length)
        return None if told is None else Gathered(told, layout)

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
