"""The evidence on all local ranks after one of them has passed a limit: taken in a thread, while the monitor looks on.

What always holds: it is over after `LONGEST` seconds, whatever the ranks do, and where no thread can be started it is
over at once, without evidence. The monitor never waits for it: it asks.
Does not cover: a thread that hangs in the kernel; it is left behind, and what it finds later is not used.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.incidents.place import Occasion, Place

from ..board import Identity
from .deadlines import Deadline
from .gaps import SECOND

if TYPE_CHECKING:
    from holdfast.in_time import UnderWay
    from holdfast.incidents.evidence import PassedLimit
    from holdfast.incidents.taking import Taken

LONGEST = 2.0  # seconds after which the rank is ended with whatever is known by then
FOR_JUDGING = 0.3  # seconds of it that are left for the verdict and for writing
LOOK = int(0.005 * SECOND)  # between two looks at whether it is done


@dataclass(frozen=True, slots=True)
class Finding:
    """What came out: the evidence with its verdict, and the file that has both. Nothing where it came to nothing."""

    taken: Taken | None = None
    file: str = ""


class Inquest:
    """One that is under way."""

    def __init__(
        self, call: Callable[[], Finding] | None, now_ns: int, over: list[bool] | None = None
    ) -> None:
        """`over` gets an entry once nobody waits for the call any more; without a call there is no evidence."""
        self.until_ns = now_ns + int(LONGEST * SECOND)
        self._over = [] if over is None else over
        self._call: UnderWay[Finding] | None = None
        if call is not None:
            from holdfast.in_time import UnderWay

            with contextlib.suppress(RuntimeError):  # no thread can be started
                self._call = UnderWay(call)

    def finding(self, now_ns: int) -> Finding | None:
        """What it has found; None while it is under way."""
        if self._call is None:
            return Finding()
        from holdfast.in_time import TooLate

        try:
            return self._call.answer(0.0)
        except TooLate:
            if now_ns < self.until_ns:
                return None
            self._over.append(True)
            return Finding()
        except Exception:
            return Finding()  # a hung rank is ended, with or without evidence

    def abandon(self) -> None:
        """What it finds is not wanted any more."""
        self._over.append(True)
        if self._call is not None:
            with contextlib.suppress(Exception):
                forget(self._call.answer(0.0))


def prepare() -> None:
    """Import what an inquest needs: a monitor starts without it, and there is no time for it later."""
    with contextlib.suppress(Exception):  # whatever is wrong with it: a hang is found without evidence, too
        import subprocess

        from holdfast import in_time
        from holdfast.incidents import rules, taking
        from holdfast.incidents.gathering import asking, node

        del asking, in_time, node, rules, taking
        # By vfork a thread that starts a program keeps the interpreter until that is loaded, from whatever disk.
        vars(subprocess)["_USE_VFORK"] = False


def forget(found: Finding) -> None:
    """Remove what was kept: nobody is told of it."""
    if found.file:
        with contextlib.suppress(OSError):
            os.unlink(found.file)


def examine(
    directory: str, cycle: int, ranks: dict[int, Identity], occasion: Occasion, over: list[bool]
) -> Finding:
    """Take the evidence of these ranks (by local rank), judge it, keep it in `directory`. For a thread of its own;
    what it keeps when `over` says that nobody waits any more is removed."""
    from holdfast.incidents.gathering.local_rank import opened
    from holdfast.incidents.taking import keep, take

    folder = os.path.join(directory, f"cycle-{cycle}")
    place = Place.found(folder)
    known = [(who.rank, key, who.pid, who.start_time) for key, who in sorted(ranks.items())]
    with opened(folder, place.node, known) as local:
        until = time.monotonic() + LONGEST - FOR_JUDGING
        taken = take(local, place, occasion, until, ask=True)
        found = Finding(taken, keep(taken, directory))
    if over:
        forget(found)
    return found


def limit(passed: Deadline, now_ns: int) -> PassedLimit:
    """The passed limit as evidence."""
    from holdfast.incidents.evidence import PassedLimit

    waited = round(passed.waited(now_ns), 3)
    return PassedLimit(passed.reason, waited, passed.limit, passed.section, passed.text(now_ns))
