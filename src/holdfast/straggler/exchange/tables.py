"""What stands at which place in the lists of numbers that ranks exchange: two tables, the same on all ranks.

Sections are listed by name, since rank 0 must show those that it does not know. Kernels are listed as 8-byte keys; no
kernel's name ever travels. A rank that measured what is in no table has news, which one rank at a time tells to all.
Tables only grow, so that what ranks share may be missing on some; a full table of kernels begins anew once it has
little to do with what a rank runs (launch shapes may change for ever). That happens at most once in a report, and ever
more rarely: ranks whose kernels do not fit into one table together would else drive each other out of it.

Pure. Does not cover: two kernels of one rank with the same 63-bit hash; sections of all ranks together beyond
`MOST_AGREED`, kernels beyond `MOST_KERNELS`, and kernels with less than `LEAST_SHARE`, which are not compared.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

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


@dataclass(frozen=True)
class Own:
    """What one rank measured in a window. Times are in a unit that all ranks share."""

    sections: Mapping[str, float] = field(default_factory=dict)
    """Medians."""
    waiting: Collection[str] = ()
    """Names of sections that wait for other ranks, which are known and never compared."""
    kernels: Mapping[int, float] = field(default_factory=dict)
    """Medians of kernels that compute, by key."""
    shares: Mapping[int, float] = field(default_factory=dict)
    """Of all kernels, those that wait as well, the share of this rank's kernel time, by key."""

    def share_of(self, kernels: Sequence[int]) -> float:
        """The share of some kernels together."""
        return math.fsum(self.shares.get(one, 0.0) for one in kernels)


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
        self._may_begin_anew = False  # whoever told first had the choice
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
