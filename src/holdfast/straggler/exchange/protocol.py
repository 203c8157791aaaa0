"""What the ranks say: one exchange for each report.

A rank's medians travel as one list of numbers, in the order of two tables that are the same on all ranks, and one
all-reduce makes references of them. Only kernels that *all* ranks ran have a reference, so rank 0's kernels are the
table, as 8-byte hashes; no kernel's name ever travels. Sections are listed by name, since rank 0 must show those that
it does not know; each name travels once, from the lowest rank that has it. The same all-reduce says whether a table has
to grow first, and carries what the ranks agree on about the next report. With gathering, one gather of scores and
figures of sections (see `rows`) follows; before the first, one of the names of nodes.

Does not cover: two kernels of one rank with the same 64-bit hash; sections of all ranks together beyond `MOST_AGREED`.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from . import rows
from .channel import Channel

MOST_AGREED = 1000
"""Names of sections that the ranks agree on; further ones are scored nowhere."""
MOST_ROUNDS = 64
"""Ranks whose new names of sections are told in one report; the others' follow in the next."""
_ABSENT = -1.0
_LENGTH = 1 << 24  # beyond any payload; with a rank before it the number is still exact in 64 bits of float


@dataclass(frozen=True)
class References:
    """The least medians of all ranks. `sections` are all names that are known, in the order that all ranks share."""

    section_times: Mapping[str, float]
    kernel_times: Mapping[str, float]
    sections: tuple[str, ...]
    steps: float | None
    """The greatest estimate of steps between reports; None while some rank has none."""


class Exchange:
    """The tables of one rank, and the exchanges that keep them the same on all ranks."""

    def __init__(self, channel: Channel, node: str) -> None:
        self._channel = channel
        self._node = node.encode()
        self._nodes: dict[int, str] = {}
        self._node_length = 0
        self._kernels: list[int] = []
        self._sections: list[str] = []

    def most_steps(self, steps: float) -> float:
        """The greatest of all ranks' estimates. One all-reduce."""
        return -self._channel.least([-steps])[0]

    def references(
        self, sections: Mapping[str, float], kernels: Mapping[str, float], steps: float | None, compare: bool
    ) -> References:
        """The least of all ranks' medians; without `compare` only the tables are agreed on. One all-reduce where no
        name is new, for each rank with new ones another and a broadcast."""
        names = {hashed(name): name for name in kernels}
        by_hash = {key: kernels[name] for key, name in names.items()} if compare else {}
        for rounds in range(MOST_ROUNDS + 1):
            news = self._news(sections)
            head = [
                self._kernels_to_tell(by_hash),
                self._channel.rank * _LENGTH + len(news) if news else math.inf,
                -math.inf if steps is None else -steps,
                -float(len(self._node)),
            ]
            least = self._channel.least([*head, *self._medians(sections, by_hash, compare)])
            if not self._grow(least[0], least[1] if rounds < MOST_ROUNDS else math.inf, by_hash, news):
                break
        self._node_length = int(-least[3])
        times = [time if time > 0 else None for time in least[len(head) :]] if compare else []
        own_kernels = zip(self._kernels, times, strict=False)
        own_sections = zip(self._sections, times[len(self._kernels) :], strict=False)
        return References(
            {name: time for name, time in own_sections if time is not None},
            {names[key]: time for key, time in own_kernels if time is not None},
            tuple(self._sections),
            -least[2] if least[2] > -math.inf else None,
        )

    def nodes(self) -> dict[int, str] | None:
        """On rank 0 the node of each rank, None elsewhere. One gather at the first call, after `references`."""
        if not self._nodes:
            width = max(self._node_length, 1)
            gathered = self._channel.bytes_to_rank_0(self._node, width)
            told = [node.rstrip(b"\0").decode() for node in gathered or [self._node]]
            self._nodes = dict(zip(self._channel.ranks, told, strict=False))
        return self._nodes if self._channel.rank == 0 else None

    def gather(
        self, scores: Sequence[float], figures: Sequence[float] = ()
    ) -> tuple[list[dict[int, float]], bytes] | None:
        """On rank 0, for each score a dict from rank to its value, and the figures of all ranks, packed, rank after
        rank; None elsewhere. All ranks give equally many. One gather."""
        row = rows.pack(scores, figures)
        told = self._channel.bytes_to_rank_0(row, len(row))
        if told is None:
            return None
        columns, packed = rows.unpack(told, len(scores))
        return [dict(zip(self._channel.ranks, column, strict=True)) for column in columns], packed

    def _news(self, sections: Iterable[str]) -> bytes:
        known = set(self._sections)
        new = [name for name in sections if name not in known][: MOST_AGREED - len(known)]
        return json.dumps(new).encode() if new else b""

    def _kernels_to_tell(self, by_hash: Mapping[int, float]) -> float:
        """Minus the number of rank 0's kernels if there is a new one. The whole list: old ones leave the table."""
        new = self._channel.rank == 0 and not by_hash.keys() <= set(self._kernels)
        return -float(len(by_hash)) if new else 0.0

    def _medians(
        self, sections: Mapping[str, float], by_hash: Mapping[int, float], compare: bool
    ) -> list[float]:
        if not compare:
            return []
        kernels = [by_hash.get(key, _ABSENT) for key in self._kernels]
        return kernels + [sections.get(name, _ABSENT) for name in self._sections]

    def _grow(self, kernels: float, news_of: float, by_hash: Mapping[int, float], news: bytes) -> bool:
        """Take in what some rank has to tell; False if nobody has."""
        if kernels < 0:
            count = int(-kernels)
            told = self._channel.from_rank(0, struct.pack(f"<{len(by_hash)}Q", *by_hash), 8 * count)
            self._kernels = list(struct.unpack(f"<{count}Q", told))
        if news_of < math.inf:
            root, length = divmod(int(news_of), _LENGTH)
            self._sections += json.loads(self._channel.from_rank(root, news, length))
        return kernels < 0 or news_of < math.inf


@functools.lru_cache(maxsize=20_000)
def hashed(name: str) -> int:
    """The 8-byte number that stands for a name on all ranks."""
    return int.from_bytes(
        hashlib.blake2b(name.encode(errors="surrogatepass"), digest_size=8).digest(), "little"
    )
