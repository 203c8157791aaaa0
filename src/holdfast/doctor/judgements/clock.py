"""The clock: durations are measured on one that nobody sets, but the times in journals are the wall clock's. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ..finding import Finding, note, ok, problem
from ..quantity import duration

CHECK = "clock"
JUMP = 0.1
"""Seconds by which the wall clock may leave the monotonic one while it is looked at."""
DRIFT = 0.0005
"""By which share a clock may be slewed. Source: adjtimex(2), 500 ppm."""
SYNC = "have it set by NTP (chronyd, systemd-timesyncd); in a container that is the host's affair"


@dataclass(frozen=True, slots=True)
class Clock:
    """What the clocks say. Times are unix seconds, durations seconds."""

    now: float
    synchronised: bool | None
    """As the kernel has it; None where it may not be asked."""
    newest_file: float
    """When Holdfast's own files were written: now cannot be before that."""
    jumped: float = 0.0
    """By how much wall and monotonic clock went apart while they were looked at."""
    since_boot: float = 0.0
    suspended: float = 0.0
    """How long of that the machine slept."""
    since_journal: float | None = None
    """How long ago the newest journal of this node and boot was written, by the monotonic clock."""
    jumped_since: float = 0.0
    """By how much the clocks went apart since then."""


def judge(found: Clock) -> Finding:
    """Whether times in journals can be trusted."""
    if found.now < found.newest_file - 60:
        return problem(
            CHECK,
            f"it is {duration(found.newest_file - found.now)} behind the time at which Holdfast was installed",
            "set it; until then journals, incidents and certificates have wrong times",
        )
    if abs(found.jumped) > JUMP:
        return problem(CHECK, f"it was set by {found.jumped:+.2f} s while this was looked at", SYNC)
    since = found.since_journal
    if since is not None and not found.suspended and abs(found.jumped_since) > 1 + DRIFT * since:
        return note(
            CHECK,
            f"it was set by {found.jumped_since:+.1f} s since the last job, {duration(since)} ago: times in its "
            "journal are as wrong (limits and durations are not: they use a clock that nobody sets)",
            SYNC,
        )
    up = f"{duration(found.since_boot)} since boot"
    if found.synchronised is False:
        return note(
            CHECK, f"not synchronised, {up}: journals of several nodes will differ in their times", SYNC
        )
    return ok(
        CHECK,
        f"{'synchronised' if found.synchronised else 'whether it is synchronised cannot be told'}, {up}",
    )
