"""What follows from the evidence: who did it, what it was, how sure we are, and the sentence that justifies it.

Plain values. `KINDS` has every kind of verdict, `ACTIVITIES` what a rank can be doing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from types import MappingProxyType

HIGH, MEDIUM, LOW = "high", "medium", "low"
"""High: no other known cause explains the evidence. Medium: the likeliest of several. Low: a guess."""

KINDS = MappingProxyType(
    {
        "exception": "an unhandled exception ended the rank",
        "exit": "the rank ended with an exit code, without a known exception",
        "early_exit": "the rank ended with exit code 0 while the others still wait for it",
        "signal": "a signal ended the rank: its own (a crash in native code) or one from outside",
        "out_of_memory": "the rank ran out of memory: the kernel, a memory limit or a failed allocation ended it",
        "stopped": "the process is stopped (SIGSTOP, a debugger)",
        "uninterruptible": "the process is blocked in the kernel and takes no signals (state D: a disk or a driver)",
        "data_loading": "it waits for its data: the loader or its workers",
        "checkpoint_io": "it waits for the storage of a checkpoint that it saves or loads",
        "lock": "it waits for a lock of its own process, or of another process on this machine",
        "gil": "one of its threads holds Python's interpreter lock and does not release it",
        "user_code": "it computes, sleeps or waits for a file in the program's own code, and enters no collective",
        "child": "it waits for a process that it started",
        "network": "it waits for another service or machine; or two nodes do not end an exchange between them",
        "startup": "it has not begun to train: it imports, or waits for the other ranks at the rendezvous",
        "shutdown": "it is at its exit and does not end: it waits for other ranks, threads or child processes",
        "mismatched_collective": "the ranks are in different collectives, or in the same one with other sizes",
        "missing_collective": "it never entered the collective in which the others wait; the reason is unknown",
        "behind": "it is at an earlier step or section than the others; the reason is unknown",
        "elsewhere": "the ranks here wait for a rank of another node, which sent no evidence",
        "node_lost": "a whole node is lost",
        "slow": "all ranks make progress; a timeout that passed was too short, or all are slow",
        "unknown": "the evidence does not single out a rank",
    }
)
"""Every kind of verdict, and what it means."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One incident's culprit. `rank` is None where no single rank is to blame, or none can be named."""

    kind: str
    """What it was: one of `KINDS`. Of a newer version's kind the reader makes `unknown`."""
    sentence: str
    """Who, what and how we know, in one sentence for a person."""
    confidence: str = LOW
    """`high`, `medium` or `low`."""
    rank: int | None = None
    node: str = ""
    followers: tuple[int, ...] = ()
    """Ranks that failed or wait only because of it."""
    pair: tuple[int, ...] = ()
    """The two ranks of which one, or the link between their nodes, is the cause; else empty."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS or self.confidence not in (HIGH, MEDIUM, LOW):
            raise ValueError(f"{self.kind!r} with {self.confidence!r} is no verdict")


class Strength(IntEnum):
    """How much a piece of evidence proves."""

    WEAK = 1
    """Other explanations are as likely: a futex, a difference of steps."""
    STRONG = 2
    """The likeliest explanation: a stack, a system call."""
    PROOF = 3
    """No other explanation: the flight recorder, the state of a process."""


IN_COLLECTIVE, RENDEZVOUS, TEARDOWN = "in_collective", "rendezvous", "teardown"
FINISHED, FAILED = "finished", "failed"
ACTIVITIES = MappingProxyType(
    {
        IN_COLLECTIVE: "waits for its peers in a collective, a send or a receive",
        RENDEZVOUS: "waits to meet its peers: a process group, the store",
        TEARDOWN: "waits for its peers while it destroys a process group",
        FINISHED: "has ended well, or has reported that it is finished",
        FAILED: "has failed",
        **KINDS,
    }
)
"""Every activity, and what it means."""


@dataclass(frozen=True, slots=True)
class Activity:
    """What one rank was doing when the evidence was taken."""

    rank: int
    kind: str
    """One of `ACTIVITIES`; a newer version's is shown as it is."""
    text: str = ""
    """As the end of "it ...": `sleeps in train.py:88 step()`."""
    strength: Strength = Strength.WEAK
    place: str = ""
    """The innermost call of the program's own code: `train.py:88 step()`."""
    operation: str = ""
    """Of a rank that waits for its peers: `all_reduce`."""
    group: str = ""
    """The process group in which it waits, and the number of the collective there, where they are known."""
    sequence: int | None = None
    moves: bool = False
    """Whether its board shows progress."""

    @property
    def waits_for_peers(self) -> bool:
        """Whether the rank waits for other ranks."""
        return self.kind in (IN_COLLECTIVE, RENDEZVOUS, TEARDOWN)


@dataclass(frozen=True, slots=True)
class Edge:
    """Some ranks wait for others."""

    waiters: tuple[int, ...]
    awaited: tuple[int, ...]
    """Empty: a rank without evidence."""
    strength: Strength
    via: str
    """What shows it: recorder, gpu, peer, store, init, teardown, lock, exit, stack; missing: no evidence of it. A newer
    version's is shown as it is."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """Everything that follows from the evidence."""

    verdict: Verdict
    activities: tuple[Activity, ...] = ()
    """One for each rank with evidence, by rank."""
    edges: tuple[Edge, ...] = ()
