"""What follows from the evidence: who did it, what it was, how sure we are, and the sentence that justifies it.

Plain values. `KINDS` has every kind of verdict.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from .evidence import Code


class Confidence(Code):
    """How sure a verdict is."""

    LOW = "low", "a guess"
    MEDIUM = "medium", "the likeliest of several causes"
    HIGH = "high", "no other known cause explains the evidence"


LOW, MEDIUM, HIGH = Confidence.LOW, Confidence.MEDIUM, Confidence.HIGH


class Kind(Code):
    """What an incident was, or what a rank was doing; the last five are only of a rank.

    Of a newer version's code the reader makes `unknown`.
    """

    UNKNOWN = "unknown", "the evidence does not single out a rank"
    EXCEPTION = "exception", "an unhandled exception ended the rank"
    EXIT = "exit", "the rank ended with an exit code, without a known exception"
    EARLY_EXIT = "early_exit", "the rank ended with exit code 0 while the others still wait for it"
    SIGNAL = "signal", "a signal ended the rank: its own (a crash in native code) or one from outside"
    OUT_OF_MEMORY = (
        "out_of_memory",
        "the rank ran out of memory: the kernel, a memory limit or a failed allocation ended it",
    )
    STOPPED = "stopped", "the process is stopped (SIGSTOP, a debugger)"
    UNINTERRUPTIBLE = (
        "uninterruptible",
        "the process is blocked in the kernel and takes no signals (state D: a disk or a driver)",
    )
    DATA_LOADING = "data_loading", "it waits for its data: the loader or its workers"
    CHECKPOINT_IO = "checkpoint_io", "it waits for the storage of a checkpoint that it saves or loads"
    LOCK = "lock", "it waits for a lock of its own process, or of another process on this machine"
    GIL = "gil", "one of its threads holds Python's interpreter lock and does not release it"
    USER_CODE = (
        "user_code",
        "it computes, sleeps or waits for a file in the program's own code, and enters no collective",
    )
    CHILD = "child", "it waits for a process that it started"
    NETWORK = (
        "network",
        "it waits for another service or machine; or two nodes do not end an exchange between them",
    )
    STARTUP = (
        "startup",
        "it has not begun to train: it imports, or waits for the other ranks at the rendezvous",
    )
    SHUTDOWN = (
        "shutdown",
        "it is at its exit and does not end: it waits for other ranks, threads or child processes",
    )
    MISMATCHED_COLLECTIVE = (
        "mismatched_collective",
        "the ranks are in different collectives, or in the same one with other sizes",
    )
    MISSING_COLLECTIVE = (
        "missing_collective",
        "it never entered the collective in which the others wait; the reason is unknown",
    )
    BEHIND = "behind", "it is at an earlier step or section than the others; the reason is unknown"
    ELSEWHERE = "elsewhere", "the ranks here wait for a rank of another node, which sent no evidence"
    NODE_LOST = "node_lost", "a whole node is lost"
    SLOW = "slow", "all ranks make progress; a timeout that passed was too short, or all are slow"
    IN_COLLECTIVE = "in_collective", "waits for its peers in a collective, a send or a receive"
    RENDEZVOUS = "rendezvous", "waits to meet its peers: a process group, the store"
    TEARDOWN = "teardown", "waits for its peers while it destroys a process group"
    FINISHED = "finished", "has ended well, or has reported that it is finished"
    FAILED = "failed", "has failed"


OF_RANKS = (Kind.IN_COLLECTIVE, Kind.RENDEZVOUS, Kind.TEARDOWN, Kind.FINISHED, Kind.FAILED)
"""What only a rank does."""
KINDS = tuple(kind for kind in Kind if kind not in OF_RANKS)
"""The kinds of verdicts."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One incident's culprit. `rank` is None where no single rank is to blame, or none can be named."""

    kind: Kind
    """What it was: one of `KINDS`."""
    sentence: str
    """Who, what and how we know, in one sentence for a person."""
    confidence: Confidence = LOW
    rank: int | None = None
    node: str = ""
    followers: tuple[int, ...] = ()
    """Ranks that failed or wait only because of it."""
    pair: tuple[int, ...] = ()
    """The two ranks of which one, or the link between their nodes, is the cause; else empty."""


class Strength(IntEnum):
    """How much a piece of evidence proves."""

    WEAK = 1
    """Other explanations are as likely: a futex, a difference of steps."""
    STRONG = 2
    """The likeliest explanation: a stack, a system call."""
    PROOF = 3
    """No other explanation: the flight recorder, the state of a process."""


class Via(Code):
    """What shows that ranks wait for others."""

    UNKNOWN = ""
    RECORDER = "recorder", "the flight recorder"
    GPU = "gpu", "the flight recorder"
    PEER = "peer", "the peer of a send or receive"
    STORE = "store", "the rendezvous store"
    INIT = "init", "its start"
    TEARDOWN = "teardown", "the end of its process groups"
    LOCK = "lock", "the kernel's locks"
    SOCKET = "socket", "a connection between two processes of the node"
    EXIT = "exit", "its exit"
    STACK = "stack"
    """Only that they wait: nothing shows for which rank."""
    MISSING = "missing"
    """A rank without evidence."""


@dataclass(frozen=True, slots=True)
class Activity:
    """What one rank was doing when the evidence was taken."""

    rank: int
    kind: Kind
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
        return self.kind in (Kind.IN_COLLECTIVE, Kind.RENDEZVOUS, Kind.TEARDOWN)


@dataclass(frozen=True, slots=True)
class Edge:
    """Some ranks wait for others."""

    waiters: tuple[int, ...]
    awaited: tuple[int, ...]
    """Empty: a rank without evidence."""
    strength: Strength
    via: Via


@dataclass(frozen=True, slots=True)
class Judgement:
    """Everything that follows from the evidence."""

    verdict: Verdict
    activities: tuple[Activity, ...] = ()
    """One for each rank with evidence, by rank."""
    edges: tuple[Edge, ...] = ()
