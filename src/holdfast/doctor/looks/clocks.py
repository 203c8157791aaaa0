"""The clocks of this machine. Source: adjtimex(2), clock_gettime(2)."""

from __future__ import annotations

import ctypes
import os
import time

from ..judgements.clock import Clock
from . import journals

STA_UNSYNC = 0x40
READINGS = 9


class _Timex(ctypes.Structure):
    """struct timex of 64-bit Linux, as far as it is read here."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 512),
    )


def offset() -> float:
    """The wall clock less the monotonic one, seconds: it changes when somebody sets the wall clock.

    Of several readings the one in which the least time passed: others may run between two looks at a clock.
    """
    readings = [(time.monotonic(), time.time(), time.monotonic()) for _ in range(READINGS)]
    before, wall, after = min(readings, key=lambda each: each[2] - each[0])
    return wall - (before + after) / 2


def look(before: float) -> Clock:
    """The clocks now; `before` is what `offset` was a while ago."""
    apart = offset()
    monotonic = time.monotonic()
    now = monotonic + apart
    boot = time.clock_gettime(time.CLOCK_BOOTTIME)
    last = journals.last_event()
    known = last is not None and last.t > now - boot and last.mono < monotonic
    return Clock(
        now=now,
        synchronised=_synchronised(),
        newest_file=os.stat(__file__).st_mtime,
        jumped=apart - before,
        since_boot=boot,
        suspended=0.0 if boot - monotonic < 0.5 else boot - monotonic,
        since_journal=monotonic - last.mono if known and last else None,
        jumped_since=apart - (last.t - last.mono) if known and last else 0.0,
    )


def _synchronised() -> bool | None:
    question = _Timex()
    state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(question))
    return None if state < 0 else not question.status & STA_UNSYNC
