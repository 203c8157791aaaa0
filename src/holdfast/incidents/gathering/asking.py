"""Asks one rank where it is: its helper thread first, and where that cannot answer, its main thread by a signal.

The rank's side is `launcher/ranks/prologue/witness.py`. What always holds: nothing here raises, nothing waits beyond
the moment that the caller names, no process is signalled that is not verifiably armed (`armed`), and an answer is to
this question or to a later one. Does not cover: native stacks (`pyspy`).
"""

from __future__ import annotations

import os
import stat
import time
from dataclasses import dataclass

from holdfast.fault_tolerance.processes import proc

from ..evidence import Collective, Thread
from .answers import Answer, answer, dumped_thread
from .armed import Armed, dumped, is_ours, private, read_armed

FIRST_WORD = 0.06
"""Seconds for the helper thread's first word. It needs the interpreter's lock for it, which others give back within
milliseconds unless they are native code that keeps it."""
LAST_WORD = 0.1
"""Seconds after the question until which it may still come, when the signal has told the main thread's stack."""
WITHOUT_SIGNAL = 0.4
"""The same where no signal can tell it."""
RECORDER = 1.0
"""Seconds for the flight recorder's part, once the thread has begun to answer."""
MOST_ANSWER = 1 << 20
POLL = 0.002


@dataclass(frozen=True, slots=True)
class Asked:
    """What a rank told; the fields are those of `RankEvidence`."""

    stacks: tuple[Thread, ...] = ()
    stacks_from: str = ""
    no_stacks: str = ""
    collectives: tuple[Collective, ...] = ()
    no_collectives: str = ""


def ask(prefix: str, pid: int, start_time: int, until: float, *, may_signal: bool) -> Asked:
    """Have this process tell its stacks and its flight recorder. `prefix` is the path of its board without ``.board``,
    `start_time` in clock ticks since boot, `until` in monotonic seconds."""
    try:
        found = proc.stat(pid)
        if found is None or found.start_time != start_time or found.state in "ZXx":
            return _nothing("the process is gone")
        if found.state in "Tt":
            return _nothing("it is stopped and cannot answer")
        armed = read_armed(prefix, pid)
        if armed is None:
            return _nothing("this process is not prepared to be asked")
        return _asked(prefix, armed, start_time, until, may_signal)
    except (OSError, ValueError, MemoryError, RuntimeError) as error:
        return _nothing(f"asking it failed: {type(error).__name__}: {error}")


def _nothing(why: str) -> Asked:
    return Asked(no_stacks=why, no_collectives=f"unavailable: {why}")


def _asked(prefix: str, armed: Armed, start_time: int, until: float, may_signal: bool) -> Asked:
    begun = time.monotonic()
    question, silent = (
        _question(prefix)
        if armed.thread
        else ("", "it has no process group and no client, so no thread that answers")
    )
    said = _answer(prefix, armed.pid, question, min(until, begun + FIRST_WORD))
    stack, why_not = ("", "it may not be signalled now")
    if said is None and may_signal:
        stack, why_not = dumped(prefix, armed, start_time, until)
    if said is None and question:
        silent = (
            "its helper thread does not answer: another thread holds the GIL, or it gets no processor time"
        )
        last = LAST_WORD if stack else WITHOUT_SIGNAL
        said = _answer(prefix, armed.pid, question, min(until, begun + last))
    if said is not None:
        return _with_recorder(prefix, armed.pid, question, said, until)
    thread = dumped_thread(stack)
    if thread is None:
        why_not = why_not or "what the signal wrote shows no Python frame"
        return Asked(no_stacks=f"{silent}; {why_not}", no_collectives=f"unavailable: {silent}")
    return Asked((thread,), "faulthandler", no_collectives=f"unavailable: {silent}")


def _with_recorder(prefix: str, pid: int, question: str, said: Answer, until: float) -> Asked:
    if not said.complete:
        ends = min(until, time.monotonic() + RECORDER)
        said = _answer(prefix, pid, question, ends, complete=True) or said
    why = said.no_collectives
    if not said.complete:
        why = "unavailable: its helper thread did not come to the flight recorder in time"
    return Asked(said.threads, "the rank itself", "", said.collectives, why)


def _question(prefix: str) -> tuple[str, str]:
    """Ask, without waiting: the question's number, or '' and why it cannot be asked."""
    try:
        handle = os.open(f"{prefix}.ask", os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        return "", f"its helper thread is gone ({error.strerror})"
    try:
        if not is_ours(handle, stat.S_IFIFO):
            return "", f"{prefix}.ask is not what it should be"
        number = os.urandom(8)
        os.write(handle, number)  # so few bytes are written whole
        return number.hex(), ""
    except OSError as error:
        return "", f"its helper thread cannot be asked ({error.strerror})"
    finally:
        os.close(handle)


def _answer(prefix: str, pid: int, question: str, until: float, *, complete: bool = False) -> Answer | None:
    """The answer once it is there, and `complete` where that is wanted; None when it is not there in time."""
    seen: tuple[int, int] | None = None
    while question:
        now = time.monotonic()
        try:
            there = os.lstat(f"{prefix}.answer")
            if (there.st_ino, there.st_mtime_ns) != seen:
                seen = there.st_ino, there.st_mtime_ns
                found = answer(private(f"{prefix}.answer", MOST_ANSWER), question, pid)
                if found is not None and (found.complete or not complete):
                    return found
        except OSError:
            pass  # not yet
        if now >= until:
            return None
        time.sleep(max(0.0, min(POLL, until - now)))
    return None
