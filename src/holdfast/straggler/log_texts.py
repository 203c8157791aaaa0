"""What the detector logs: a line for each verdict that is new or over, and its own failures, once and never raised.

What always holds: names are escaped, so that nothing of them acts on a terminal; a report adds few lines.
Does not cover: an `Exception` that a signal handler of the program raises while the detector works: it is taken for the
detector's own.
"""

from __future__ import annotations

import logging
import textwrap
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from holdfast.visible import escaped

from .report import ranks_text

if TYPE_CHECKING:
    from .report import Verdict

MOST = 16
"""Verdicts that one report tells as new, and as many as over; a line names the ranks of the others."""
_SERIES = 64  # of consecutive ranks in such a line
ABSENT = 2
"""A verdict is over when so many reports in a row are without it: one that comes and goes is not told each time."""


_Subject = tuple[int | None, str, str, str | None]
"""Rank, node, kind and section."""


class VerdictNews:
    """Which verdicts are new and which are over, report after report: each is logged once."""

    def __init__(self) -> None:
        self._told: dict[_Subject, Verdict] = {}
        self._absent: Counter[_Subject] = Counter()  # reports in a row without it

    def of(self, verdicts: Sequence[Verdict], withheld: Sequence[str] = ()) -> list[str]:
        """A line for each verdict that is new, and for each that the last two reports did not have any more.

        Of more than `MOST` of a kind, the others are one line.
        """
        now = {(one.rank, one.node, one.kind, one.section): one for one in verdicts}
        new = [one for key, one in now.items() if key not in self._told]
        for key in now:
            self._absent.pop(key, None)
        self._absent.update(self._told.keys() - now.keys())
        over = [key for key in self._told if self._absent[key] >= ABSENT]
        self._told |= now
        ended = [self._told.pop(key) for key in over]
        for key in over:
            del self._absent[key]
        began = [f"STRAGGLER: {one}" for one in new[:MOST]] + _others("named as slow", new[MOST:])
        began += [_over(one, withheld) for one in ended[:MOST]] + _others("no longer named", ended[MOST:])
        return [escaped(line) for line in began]


def _over(verdict: Verdict, withheld: Sequence[str]) -> str:
    what = f"section {verdict.section}" if verdict.section else verdict.kind
    who = f"rank {verdict.rank} (node {verdict.node})" if verdict.rank is not None else f"node {verdict.node}"
    who = f"STRAGGLER: {who}"
    if withheld:  # it may be slow still
        return f"{who} is no longer named for {what}: {'; '.join(withheld)}"
    return f"{who} is no longer slow: {what}"


def _others(what: str, verdicts: Sequence[Verdict]) -> list[str]:
    if not verdicts:
        return []
    ranks = {rank for one in verdicts for rank in one.ranks}
    return [
        f"STRAGGLER: {len(verdicts)} more verdicts, on {len(ranks)} rank{'s' if len(ranks) > 1 else ''} {what}: "
        f"{ranks_text(ranks, _SERIES)}. The report has each in full"
    ]


T = TypeVar("T")

_LONGEST_REASON = 200  # gloo's texts are long

log = logging.getLogger("holdfast.straggler")


class Failures:
    """The failures of one use of the detector. Each part is logged when it fails for the first time."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def log(self, part: str, error: Exception) -> None:
        """Log that a part failed, unless it was logged before."""
        if part not in self._logged:
            self._logged.add(part)
            log.warning(
                "straggler detector: %s failed: %s. Training continues; this is logged once",
                part,
                reason(error),
            )

    def guarded(self, part: str, call: Callable[[], T], otherwise: T) -> T:
        """The result of `call`, or `otherwise` where it fails."""
        try:
            return call()
        except Exception as error:
            self.log(part, error)
            return otherwise


def reason(error: BaseException) -> str:
    """The error in one line of bounded length."""
    return f"{type(error).__name__}: {textwrap.shorten(str(error), _LONGEST_REASON)}"


def log_ended(error: BaseException) -> None:
    """Log that the ranks can exchange no more reports."""
    log.warning("straggler reports have ended: %s. Training continues without them", reason(error))
