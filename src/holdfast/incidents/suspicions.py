"""What past failures of a job make suspect: a node, its domain, a checkpoint, or the link between two nodes. Pure.

`suspicions` reads the history of a job: the judgement of each failure, and how far the job had come. docs/launcher.md,
"Nodes that fail again and again", has the rules on nodes and domains. A checkpoint is suspect when two attempts failed
after it was loaded, before they had taken a step; a pair of nodes when the evidence of a failure accuses both, and
neither is moved. The launcher places nodes by this (`launcher.control.suspects`), and the retry policy names
checkpoints by it (`autoresume.policy`). The same failure again and again is counted without a judgement
(`control.records`).
Does not cover: a node that makes the others fail without ever being the culprit; two causes at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from .verdict import HIGH, KINDS, LOW, Kind

RECENT = 3
"""A node is suspect that two of so many failures accuse."""
FORGIVEN_AFTER = 3600.0
"""Seconds after which a suspected node is one like the others."""
OF_HARDWARE = frozenset({Kind.UNINTERRUPTIBLE})
"""Kinds of verdicts that no program causes by itself."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure: the end of a cycle, as its judgement explains it. Empty fields are not known."""

    kind: str
    """One of `verdict.KINDS`."""
    node: str = ""
    """The culprit's."""
    confidence: str = LOW
    signature: str = ""
    """What it was, so that two equal ones may be one bug: the exception's type and message without its numbers. Empty
    where there is none, and for one that comes from outside of the program: a disk, a network, a GPU."""
    hardware: str = ""
    """The fault of hardware that the evidence names: `uncorrectable memory error of GPU 3`."""
    may_be_shared: bool = False
    """Whether other nodes may use the same: a disk."""
    step: int | None = None
    """The highest step that was reached."""
    checkpoint: str = ""
    """That was loaded when the cycle began."""
    took_steps: bool = True
    """Whether a step was taken after that."""
    domain: str = ""
    """The domain of this node, such as its rack."""
    cycle: int = 0
    """That ended with it."""
    peers: tuple[str, ...] = ()
    """Nodes that this evidence accuses as much as `node`; without a `node`, as much as each other."""
    without: tuple[str, ...] = ()
    """Nodes that were suspected, and did not take part."""
    attempt: int = 1
    at: float = 0.0
    """Seconds, by one clock for the whole history."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"{self.kind!r} is no kind of verdict")

    @property
    def is_hardware(self) -> bool:
        """Whether no program causes this by itself."""
        return bool(self.hardware) or self.kind in OF_HARDWARE

    @property
    def accused(self) -> frozenset[str]:
        """The nodes of which one is to blame for sure, if it was a node."""
        is_own = self.kind == Kind.EXCEPTION and self.signature and not self.hardware
        if not self.node or self.confidence != HIGH or is_own:
            return frozenset()
        return frozenset({self.node, *self.peers})


@dataclass(frozen=True, slots=True)
class Suspicion:
    """Something that is suspected, and why."""

    what: str
    """The node, the domain, the checkpoint, the two nodes of a pair as `a and b`, or the failure's signature."""
    facts: str
    """One sentence."""
    since: float = 0.0
    """When it arose: seconds of the history's clock."""


@dataclass(frozen=True, slots=True)
class Suspicions:
    """All that a history makes suspect."""

    nodes: tuple[Suspicion, ...] = ()
    domains: tuple[Suspicion, ...] = ()
    times: Mapping[str, int] = field(default_factory=dict)
    """How often each node was suspected, also where that has ended."""
    checkpoints: tuple[Suspicion, ...] = ()
    pairs: tuple[Suspicion, ...] = ()


def suspicions(history: Iterable[Failure], now: float) -> Suspicions:
    """What the failures of a job, the oldest first, make suspect at the time `now`, by the history's clock."""
    failures = _without_shared(tuple(history))
    nodes: dict[str, Suspicion] = {}
    domains: dict[str, Suspicion] = {}
    times: Counter[str] = Counter()
    for end, failure in enumerate(failures, 1):
        for name in failure.without:  # the others have failed without it
            nodes.pop(name, None)
            domains.pop(name, None)
        if found := _suspect_node(failures[:end]):
            times[found.what] += found.what not in nodes
            nodes[found.what] = found
        if found := _suspect_domain(failures[:end]):
            domains[found.what] = found
    return Suspicions(
        tuple(each for each in nodes.values() if now - each.since < FORGIVEN_AFTER),
        tuple(each for each in domains.values() if now - each.since < FORGIVEN_AFTER),
        times,
        _suspect_checkpoints(failures),
        _suspect_pairs(failures),
    )


def _without_shared(failures: tuple[Failure, ...]) -> tuple[Failure, ...]:
    """A disk that has failed on two nodes is one that they share: these failures accuse no node."""
    named = {name for each in failures if each.may_be_shared for name in each.accused}
    if len(named) < 2:
        return failures
    return tuple(
        replace(each, confidence=LOW, hardware="") if each.may_be_shared else each for each in failures
    )


def _suspect_node(failures: Sequence[Failure]) -> Suspicion | None:
    """The node that the last failure makes suspect."""
    last = failures[-1]
    if last.is_hardware and len(last.accused) == 1:
        return Suspicion(last.node, f"node {last.node}: {last.hardware or Kind(last.kind).text}", last.at)
    for before in failures[-RECENT:-1]:
        both = before.accused & last.accused
        if len(both) == 1 and not _is_same(before, last):
            (node,) = both
            facts = (
                f"node {node} is accused by 2 of the last {len(failures[-RECENT:])} failures: at {_step(before)} "
                f"({before.kind}) and at {_step(last)} ({last.kind})"
            )
            return Suspicion(node, facts, last.at)
    return None


def _suspect_domain(failures: Sequence[Failure]) -> Suspicion | None:
    """The node domain that the last failure makes suspect."""
    last = failures[-1]
    for before in failures[-RECENT:-1]:
        nodes = before.accused | last.accused
        is_one = (
            last.domain and last.domain == before.domain and len(last.accused) == len(before.accused) == 1
        )
        if is_one and len(nodes) == 2 and not _is_same(before, last):
            names = " and ".join(sorted(nodes))
            return Suspicion(
                last.domain, f"node domain {last.domain}: nodes {names} of it have failed", last.at
            )
    return None


def _is_same(one: Failure, other: Failure) -> bool:
    """Whether two failures may be one bug, or one sample of the data."""
    if one.signature or other.signature:
        return one.signature == other.signature
    if one.step is None or other.step is None:
        return one.kind == other.kind and one.kind in (Kind.EXCEPTION, Kind.EXIT)
    return one.step == other.step


def _step(failure: Failure) -> str:
    return "an unknown step" if failure.step is None else f"step {failure.step}"


def _suspect_checkpoints(failures: Sequence[Failure]) -> tuple[Suspicion, ...]:
    """Those at which the newest attempts failed before they took a step; one that was trained from is good."""
    failed: dict[str, list[Failure]] = {}
    for each in failures:
        if each.checkpoint and each.took_steps:
            failed.pop(each.checkpoint, None)
        elif each.checkpoint and not each.is_hardware:
            failed.setdefault(each.checkpoint, []).append(each)
    found = []
    for path, row in failed.items():
        if len({each.attempt for each in row}) < 2:
            continue
        older = [
            each.checkpoint for each in failures if each.checkpoint not in ("", path) and each.took_steps
        ]
        instead = f"; {older[-1]} was trained from" if older else ""
        facts = f"{len(row)} failures before the first step after {path} was loaded{instead}"
        found.append(Suspicion(path, facts, row[-1].at))
    return tuple(found)


def _suspect_pairs(failures: Sequence[Failure]) -> tuple[Suspicion, ...]:
    found: dict[str, Suspicion] = {}
    for each in failures:
        accused = each.accused or frozenset(each.peers)
        if len(accused) == 2:
            names = " and ".join(sorted(accused))
            facts = f"the evidence at {_step(each)} accuses nodes {names} alike: one of them, or the link between them"
            found[names] = Suspicion(names, facts, each.at)
    return tuple(found.values())
