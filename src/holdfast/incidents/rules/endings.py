"""How one rank ended, and whether that can be the cause or only follows from another's end. Pure.

Always holds: what a rank was asked to do, a lost connection and a collective that timed out are never the cause while
another is known.
Does not cover: an exception of the program's own that says in other words that a peer was gone.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

from holdfast.journal.lost_connection import LOST_CONNECTION, lost_connection

from ..evidence import Exit, Raised, RankEvidence
from ..verdict import HIGH, MEDIUM
from .scene import Seen
from .wording import seconds, short

CAUSE, LOST, TIMED_OUT, DONE, ASKED = "cause", "lost", "timed out", "done", "asked"
"""Whether it can be the cause; it lost a peer; it waited in vain; it ended with 0; it was told to end."""

_MEMORY = re.compile(
    r"out[ -]of[ -]memory|want of memory|not enough memory|can(?:no|')t allocate memory|bad_alloc|OutOfMemory|"
    r"oom.?kill|^MemoryError|Killed process \d",
    re.IGNORECASE | re.MULTILINE,
)
_TIMED_OUT = re.compile(
    r"timed out waiting \d|watchdog caught collective|collective operation timeout|wait timeout after|"
    r"timed out (after|in) .*(barrier|collective|store|rendezvous)|failed to pass monitoredBarrier|"
    r"timed out waiting for clients|socket timeout|wait for .* timed out",
    re.IGNORECASE,
)
_MISMATCH = re.compile(
    r"preamble\.(length|opcode|slot)|mismatch between collectives|(tensor|size)s? mismatch.*rank|"
    r"collective .*mismatch|unexpected collective",
    re.IGNORECASE,
)
_EXCEPTION_LINE = re.compile(r"^(?:\w+\.)*\w*(?:Error|Exception|Interrupt)\b(?::|$)")
_KILLED_WORKER = re.compile(
    r"DataLoader worker \(pid(?:\(s\))? (\d+).*(?:Killed|exited unexpectedly)", re.DOTALL
)
_FROM_A_SHELL = {128 + number: number for number in (4, 6, 7, 8, 9, 11, 15)}


@dataclass(frozen=True, slots=True)
class End:
    """One rank's end."""

    seen: Seen
    role: str
    kind: str
    text: str
    """As the end of "rank 1 …"."""
    when: float
    """Seconds on a clock that all ends of the case share."""
    confidence: str = HIGH

    @property
    def rank(self) -> int:
        return self.seen.rank


def end(seen: Seen, notes: tuple[str, ...]) -> End | None:
    """How this rank ended; None of one that lives and has raised nothing."""
    rank = seen.evidence
    if rank.raised is not None:
        return _by_exception(seen, rank.raised, rank.exit, notes)
    if rank.exit is not None:
        return _by_exit(seen, rank.exit, notes)
    return None


def _by_exception(seen: Seen, raised: Raised, exit_: Exit | None, notes: tuple[str, ...]) -> End:
    message = f"{raised.type}: {raised.message}"
    lost = raised.lost_connection or lost_connection({"type": raised.type, "message": raised.message})
    role, kind = CAUSE, "exception"
    if _TIMED_OUT.search(message) and not raised.type.endswith(("HTTPError", "URLError", "ReadTimeout")):
        role = TIMED_OUT
    elif lost:
        role = LOST
    elif raised.type.rsplit(".", 1)[-1] in ("KeyboardInterrupt", "SignalException"):
        role, kind = (ASKED if exit_ is not None and exit_.asked else CAUSE), "signal"
    elif _MEMORY.search(message):
        kind = "out_of_memory"
    elif _MISMATCH.search(message):
        kind = "mismatched_collective"
    when = seen.at - max(raised.ago, 0.0)
    worker = _KILLED_WORKER.search(message)
    if worker and role == CAUSE and (for_memory := _killed_for_memory(worker[1], notes)):
        text = f"lost its data loader's worker {worker[1]}: {short(for_memory, 140)}"
        return End(seen, role, "out_of_memory", text, when, HIGH if worker[1] in for_memory else MEDIUM)
    return End(seen, role, kind, f"raised {short(message, 120)}", when)


def _by_exit(seen: Seen, exit_: Exit, notes: tuple[str, ...]) -> End:
    rank, when = seen.evidence, seen.at - max(exit_.ago, 0.0)
    lines = "\n".join(rank.last_lines)
    if exit_.out_of_memory:
        return End(
            seen,
            CAUSE,
            "out_of_memory",
            f"was ended for want of memory: {short(exit_.out_of_memory, 140)}",
            when,
        )
    if exit_.asked:
        return End(seen, ASKED, "unknown", "was told to end", when)
    if exit_.status == 0:
        return End(seen, DONE, "early_exit", "ended with exit code 0", when)
    meaning = exit_.meaning or (
        f"exit code {exit_.status}" if exit_.status > 0 else f"signal {-exit_.status}"
    )
    if LOST_CONNECTION.search(lines):
        return End(seen, LOST, "exit", f"lost its connection to a peer ({meaning})", when, MEDIUM)
    if _TIMED_OUT.search(lines):
        return End(seen, TIMED_OUT, "exit", f"waited in vain for a peer ({meaning})", when, MEDIUM)
    if _MEMORY.search(lines):
        return End(
            seen, CAUSE, "out_of_memory", f"ran out of memory, by its last lines ({meaning})", when, MEDIUM
        )
    return _unexplained(rank, exit_, meaning, when, seen, notes)


def _unexplained(
    rank: RankEvidence, exit_: Exit, meaning: str, when: float, seen: Seen, notes: tuple[str, ...]
) -> End:
    number = -exit_.status if exit_.status < 0 else _FROM_A_SHELL.get(exit_.status, 0)
    if number:
        for_memory = _killed_for_memory(str(rank.pid), notes)
        if number == signal.SIGKILL and for_memory:
            return End(seen, CAUSE, "out_of_memory", f"was killed; {short(for_memory, 140)}", when, MEDIUM)
        core = f"; core dump: {exit_.core_dump}" if exit_.core_dump else ""
        text = f"ended by a signal: {meaning}{core}"
        # An abort may be torch's own, because of what a peer sent or did not send.
        sure = exit_.status < 0 and number != signal.SIGABRT
        return End(seen, CAUSE, "signal", text, when, HIGH if sure else MEDIUM)
    last = next((line for line in reversed(rank.last_lines) if _EXCEPTION_LINE.match(line.strip())), "")
    if last:
        text = f"ended with {meaning} after {short(last, 120)}"
        return End(seen, CAUSE, "exception", text, when, MEDIUM)
    return End(seen, CAUSE, "exit", f"ended by itself with {meaning}, and no exception is known", when)


def _killed_for_memory(pid: str, notes: tuple[str, ...]) -> str:
    """The note that says so of this process, or else of some."""
    found = [note for note in notes if _MEMORY.search(note) and not _says_none(note)]
    return next((note for note in found if f"process {pid} " in note), found[0] if found else "")


def _says_none(note: str) -> bool:
    """A note such as `no out-of-memory kill` or `… could not be read`."""
    return re.search(r"\b(no|none|cannot|could not)\b", note, re.IGNORECASE) is not None


def before(first: End, other: End) -> str:
    """`, 0.3 s before the others`."""
    gap = other.when - first.when
    return f", {seconds(gap)} before the next" if gap > 0 else ""
