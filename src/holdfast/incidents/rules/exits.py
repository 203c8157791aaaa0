"""How one rank ended, and whether that can be the cause or only follows from another rank's end. Pure.

A lost connection, a collective that timed out, and what the launcher terminated are never the cause while another is
known. A signal is always the rank's own end, whatever its stderr has; but for SIGABRT, by which torch's watchdog ends
it.
Does not cover: an exception of the program's own that reports in other words that a peer was gone.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from ..classify import exception_line
from ..evidence import Exit, Nature, NodeFault, NodeFaultKind, Raised, RankEvidence
from ..verdict import HIGH, MEDIUM, Confidence, Kind
from .sentence import short

_SHELLS = {128 + number: number for number in (4, 6, 7, 8, 9, 11, 15)}
"""Exit codes of a shell whose child a signal ended."""


class Role(Enum):
    """What an end can mean."""

    CAUSE = "cause"
    LOST_PEER = "lost_peer"
    TIMED_OUT = "timed_out"
    DONE = "done"
    TERMINATED = "terminated"


COLLATERAL = (Role.LOST_PEER, Role.TIMED_OUT)
_ROLES = {Nature.LOST_PEER: Role.LOST_PEER, Nature.TIMED_OUT: Role.TIMED_OUT}
_KINDS = {
    Nature.INTERRUPTED: Kind.SIGNAL,
    Nature.OUT_OF_MEMORY: Kind.OUT_OF_MEMORY,
    Nature.MISMATCH: Kind.MISMATCHED_COLLECTIVE,
}


@dataclass(frozen=True, slots=True)
class End:
    """One rank's end."""

    rank: RankEvidence
    role: Role
    kind: Kind
    """Of the verdict, if it is the cause."""
    text: str
    """As the end of "Rank 1 ..."."""
    when: float
    """Seconds, on the clock of the whole case."""
    confidence: Confidence = HIGH


def end_of(rank: RankEvidence, at: float, faults: Sequence[NodeFault]) -> End | None:
    """How this rank ended; None if it runs and raised nothing.

    Args:
        at: When its evidence was taken, on the clock of the whole case.
        faults: Of all nodes.
    """
    if rank.raised is not None:
        return _by_exception(rank, rank.raised, at - max(rank.raised.ago, 0.0), faults)
    if rank.exit is not None:
        return _by_exit(rank, rank.exit, at - max(rank.exit.ago, 0.0), faults)
    return None


def _by_exception(rank: RankEvidence, raised: Raised, when: float, faults: Sequence[NodeFault]) -> End:
    role, kind = _ROLES.get(raised.nature, Role.CAUSE), _KINDS.get(raised.nature, Kind.EXCEPTION)
    if raised.nature is Nature.INTERRUPTED and rank.exit is not None and rank.exit.asked:
        role = Role.TERMINATED
    if raised.nature is Nature.WORKER_KILLED and (fault := _oom_kill(raised.worker, faults)):
        text = f"lost its data-loader worker {raised.worker}: {short(fault.text, 140)}"
        return End(rank, role, Kind.OUT_OF_MEMORY, text, when, HIGH if fault.pid == raised.worker else MEDIUM)
    text = f"raised {exception(raised)}"
    if rank.exit and rank.exit.kept_by:
        text += f"; its process did not end: {short(rank.exit.kept_by, 140)}"
    # What ended a worker is not known.
    confidence = MEDIUM if raised.nature is Nature.WORKER_KILLED else HIGH
    return End(rank, role, kind, text, when, confidence)


def exception(raised: Raised) -> str:
    """`KeyError: 'x'`: ranks for which it is the same raised the same."""
    return short(f"{raised.type}: {raised.message}" if raised.message else raised.type, 120)


def _by_exit(rank: RankEvidence, end: Exit, when: float, faults: Sequence[NodeFault]) -> End:
    if end.oom_killed:
        text = f"was killed because it ran out of memory{_where(rank)}: {short(end.out_of_memory, 180)}"
        return End(rank, Role.CAUSE, Kind.OUT_OF_MEMORY, text, when, MEDIUM if end.oom_counted else HIGH)
    if end.asked:
        return End(rank, Role.TERMINATED, Kind.UNKNOWN, "was terminated", when)
    if end.status == 0:
        return End(rank, Role.DONE, Kind.EARLY_EXIT, "ended with exit code 0", when)
    number = -end.status if end.status < 0 else _SHELLS.get(end.status, 0)
    meaning = end.words
    aborted_or_exited = end.status > 0 or number == signal.SIGABRT  # torch aborts because of what a peer did
    if rank.stderr in _ROLES and aborted_or_exited:
        lost = rank.stderr is Nature.LOST_PEER
        text = "failed because a peer disconnected" if lost else "timed out waiting for a peer"
        return End(rank, _ROLES[rank.stderr], Kind.EXIT, f"{text} ({meaning})", when, MEDIUM)
    if rank.stderr is Nature.MISMATCH and aborted_or_exited:
        text = f"reported a mismatch of collectives on stderr ({meaning})"
        return End(rank, Role.CAUSE, Kind.MISMATCHED_COLLECTIVE, text, when, MEDIUM)
    if number == signal.SIGKILL and (fault := _oom_kill(rank.pid, faults)):
        text = f"was killed; {short(fault.text, 140)}"
        return End(rank, Role.CAUSE, Kind.OUT_OF_MEMORY, text, when, MEDIUM)
    if rank.stderr is Nature.OUT_OF_MEMORY:
        text = f"ran out of memory, by its last lines of stderr ({meaning})"
        return End(rank, Role.CAUSE, Kind.OUT_OF_MEMORY, text, when, MEDIUM)
    if number:
        core = f"; core dump: {end.core_dump}" if end.core_dump else ""
        # An abort may be torch's own, because of what a peer sent.
        confidence = HIGH if end.status < 0 and number != signal.SIGABRT else MEDIUM
        return End(rank, Role.CAUSE, Kind.SIGNAL, f"was ended by a signal: {meaning}{core}", when, confidence)
    if rank.stderr is not Nature.OWN:
        text = f"ended with {meaning} after {short(exception_line(rank.last_lines), 120)}"
        return End(rank, Role.CAUSE, Kind.EXCEPTION, text, when, MEDIUM)
    text = f"ended by itself with {meaning}, without a known exception"
    return End(rank, Role.CAUSE, Kind.EXIT, text, when)


def _where(rank: RankEvidence) -> str:
    """` in section 'setup', before its first step`: where a checkpoint is loaded. Empty where nothing shows it."""
    board = rank.board
    section = f" in section '{board.sections[-1].name}'" if board and board.sections else ""
    return f"{section}, before its first step" if board and board.is_before_first_step else section


def _oom_kill(pid: int, faults: Sequence[NodeFault]) -> NodeFault | None:
    """The kernel's report of this process, else one that names no process."""
    kills = [fault for fault in faults if fault.kind is NodeFaultKind.OOM_KILL and fault.pid in (pid, 0)]
    return max(kills, key=lambda fault: fault.pid == pid, default=None)
