"""What follows from the evidence: who did it, what it was, how sure we are, and the sentence that justifies it.

Plain values. `KINDS` has every kind with what it means for a person.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

HIGH, MEDIUM, LOW = "high", "medium", "low"
"""High: nothing else known to us explains the evidence. Medium: the likeliest of several. Low: a guess, said so."""

KINDS = MappingProxyType(
    {
        "exception": "an unhandled exception ended the rank",
        "exit": "the rank ended by itself with an exit code, without a known exception",
        "early_exit": "the rank ended with 0 while the others still wait for it",
        "signal": "a signal ended the rank, from itself (a crash in native code) or from outside",
        "out_of_memory": "the kernel, or a memory limit, ended the rank for want of memory",
        "stopped": "the process is stopped (SIGSTOP, a debugger)",
        "uninterruptible": "the process sits in the kernel where no signal reaches it (state D: a hung disk or driver)",
        "data_loading": "it waits for its data: the loader, its workers, or the file that it reads",
        "checkpoint_io": "it waits for the storage while it saves or loads a checkpoint",
        "lock": "it waits for a lock of its own process, or of another process on this machine",
        "gil": "one of its threads holds Python's interpreter lock and does not give it back",
        "user_code": "it computes or sleeps in the program's own code and does not come to the collective",
        "child": "it waits for a process that it started itself",
        "network": "it waits for an answer from another service or machine, outside of the collectives",
        "startup": "it has not begun to train: it imports, or waits to meet the other ranks",
        "shutdown": "it is at its end and does not get away: other ranks, or threads of its own, are not done",
        "mismatched_collective": "the ranks are in different collectives, or in the same one with other sizes",
        "missing_collective": "it never came to the collective in which the others wait, and why is not known",
        "behind": "it is at an earlier step or section than the others, and why is not known",
        "elsewhere": "the ranks here wait for a rank of another node, of which nothing is told",
        "node_lost": "a whole node is gone",
        "slow": "every rank still moves: the limit was too short, or all are slow",
        "unknown": "the evidence does not tell",
    }
)
"""Every kind of verdict, and what it means."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One incident's culprit. `rank` is None where no single rank is to blame, or none can be named."""

    kind: str
    sentence: str
    """Who, what and how we know, in one sentence for a person."""
    confidence: str = LOW
    rank: int | None = None
    node: str = ""
    followers: tuple[int, ...] = ()
    """Ranks that failed or wait only because of it."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS or self.confidence not in (HIGH, MEDIUM, LOW):
            raise ValueError(f"{self.kind!r} with {self.confidence!r} is no verdict")
