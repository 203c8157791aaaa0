"""The longest intervals that one rank has seen: between heartbeats, in each section, outside of all sections.

Pure: it is told what happened (times and lengths in nanoseconds, monotonic clock) and reads no clock. The board's
writer tells it inside its lock, so its methods are short. Intervals that have not ended are given when the result is
asked for: they bound from below what is normal, since the job that asks is healthy, but alone they show no length.
Does not cover: a rank that has sent no heartbeat yet; how long it has been starting does not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

SECOND = 1e9
INITIAL = "initial"
SUBSEQUENT = "subsequent"
OUT_OF_SECTION = ""
"""Stands for the time outside of all sections, where sections are listed by name; no section has this name."""
RUNNING = "\0"
"""Stands before the name of something that has not ended yet: its age."""


class Intervals:
    """What has been observed since the client was made, also when its supervision ended and began again."""

    __slots__ = ("_first_heartbeat", "_longest", "_longest_gap", "_longest_out")

    def __init__(self) -> None:
        self._first_heartbeat = 0  # when; 0 = none yet
        self._longest_gap = 0  # between two heartbeats; 0 = fewer than two
        self._longest_out = 0
        self._longest: dict[str, int] = {}

    def heartbeat(self, now_ns: int, gap_ns: int) -> None:
        """A heartbeat was sent, so long after the one before; 0: it is the first since supervision began."""
        if gap_ns > self._longest_gap:
            self._longest_gap = gap_ns
        if not self._first_heartbeat:
            self._first_heartbeat = now_ns

    def in_section(self, name: str, spent_ns: int) -> None:
        """A section was closed."""
        longest = self._longest
        if name not in longest or spent_ns > longest[name]:
            longest[name] = spent_ns

    def out_of_section(self, spent_ns: int) -> None:
        """A section was opened after a time without any."""
        if spent_ns > self._longest_out:
            self._longest_out = spent_ns

    def heartbeats(self, started_ns: int, running_ns: int = 0) -> dict[str, float]:
        """Seconds from `started_ns` to the first heartbeat (`INITIAL`) and the longest between two (`SUBSEQUENT`);
        zero where none was seen. `running_ns` is the age of the last heartbeat, if there was one."""
        initial = max(0, self._first_heartbeat - started_ns) if self._first_heartbeat else 0
        running = {RUNNING + SUBSEQUENT: running_ns / SECOND} if running_ns else {}
        return {INITIAL: initial / SECOND, SUBSEQUENT: self._longest_gap / SECOND, **running}

    def sections(
        self, also: Iterable[str] = (), running_out_ns: int = 0, running_ns: Mapping[str, int] | None = None
    ) -> dict[str, float]:
        """The longest seconds spent in each section that was ever closed, zero for those that are named `also`; and,
        as `OUT_OF_SECTION`, outside of all sections. The running stretch counts: the end of a job may be longest.
        `running_ns` has the age of each open section."""
        opened = running_ns or {}
        seconds = dict.fromkeys((*also, *opened), 0.0)
        seconds.update({RUNNING + name: age / SECOND for name, age in opened.items()})
        seconds.update({name: spent / SECOND for name, spent in dict(self._longest).items()})
        seconds[OUT_OF_SECTION] = max(self._longest_out, running_out_ns) / SECOND
        return seconds


def with_running(seconds: Mapping[str, float]) -> dict[str, float]:
    """What `Intervals` gave, agreed over ranks, each with the age of what still runs as its lower bound. What never
    ended on any rank stays zero: a section that has just been opened for the first time says nothing yet."""
    return {
        name: max(longest, seconds.get(RUNNING + name, 0.0)) if longest > 0 else longest
        for name, longest in seconds.items()
        if not name.startswith(RUNNING)
    }
