"""What past failures say about the nodes that may take part: a log in the job's store, and what it makes suspect. Pure.

The node that reports an incident adds its judgement to the log `failures`, as a line; the node that chooses the members
reads it. Of several reports of one cycle the surest counts. The node that hosts the store begins the log with what
earlier jobs in its run directory made suspect: there a node is a machine, of which any launcher may be.
Does not cover: a launcher that is started again in the same job, also on the same machine: it is a new node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, fields

from holdfast.incidents.suspicions import FORGIVEN_AFTER, Failure, Suspicion, suspicions
from holdfast.incidents.verdict import HIGH, LOW, MEDIUM
from holdfast.journal.event import Event

from .node import Node
from .records import FAILURES, Member, decode, encode

RECENT = 16
"""Failures that are looked at."""
LARGEST_DOMAIN = 1 / 3
"""The share of the nodes up to which a node domain can be suspect: failures of one in two nodes meet by chance."""
_SURE: dict[str, int] = {LOW: 0, MEDIUM: 1, HIGH: 2}
_DEFAULTS = {each.name: each.default for each in fields(Failure)}


def encoded(failure: Failure) -> str:
    """The line of the log."""
    return encode({name: value for name, value in asdict(failure).items() if value != _DEFAULTS[name]})


def decoded(log: str) -> list[Failure]:
    """The last `RECENT` failures, by cycle. A line of another version that makes no sense is left out."""
    found: dict[int, Failure] = {}
    for line in log.splitlines():
        values = decode(line)
        try:
            failure = Failure(**{name: value for name, value in values.items() if name in _DEFAULTS})
            before = found.get(failure.cycle)
            if before is None or _SURE[failure.confidence] >= _SURE[before.confidence]:
                found[failure.cycle] = failure
        except (TypeError, ValueError, KeyError):
            continue
    return [found[cycle] for cycle in sorted(found)[-RECENT:]]


def of_earlier_jobs(events: Iterable[Event], now: float) -> list[str]:
    """Lines for the log of a job that begins now (unix seconds): the machines that became suspect in the last hour."""
    found: dict[str, Event] = {}
    for event in events:
        name = event.get("suspect")
        if event.kind == "node_suspected" and isinstance(name, str) and now - event.t < FORGIVEN_AFTER:
            found[_machine(name)] = event
    lines = []
    for number, (machine, event) in enumerate(found.items()):
        facts = f"suspect in an earlier job: {event.get('facts')}"
        failure = Failure(
            "unknown",
            machine,
            confidence=HIGH,
            hardware=facts,
            cycle=number - len(found),  # before the first cycle
            at=min(0.0, event.t - now),
        )
        lines.append(encoded(failure))
    return lines


def _machine(node: str) -> str:
    """The host name of a launcher, without its process id."""
    return node.rpartition(":")[0] or node


def suspected_by(failure: Failure, log: str, nodes: int) -> list[Suspicion]:
    """What this failure, the newest of the log, makes suspect: its node, its node domain, its pair of nodes.

    In a job of one node all failures are on it, so only its hardware can be suspect.
    """
    if nodes < 2 and not failure.is_hardware:
        return []
    found = suspicions(decoded(log), failure.at)
    own = failure.node, failure.domain
    pairs = found.pairs if failure.peers else ()
    of_own = [each for each in (*found.nodes, *found.domains) if each.what in own]
    return [each for each in (*of_own, *pairs) if each.since == failure.at]


def suspected_nodes(
    node: Node, members: Collection[Member], now: float
) -> tuple[dict[str, str], Mapping[str, int]]:
    """The suspected ones of these nodes, each with what is suspected: itself or its domain; and how often each was."""
    found = suspicions(decoded(node.view.get(FAILURES, "")), node.job_time(now))
    names = {each.what for each in found.nodes}
    sizes = Counter(member.domain for member in members) if found.domains else Counter[str]()
    domains = {each.what for each in found.domains if sizes[each.what] <= LARGEST_DOMAIN * len(members)}
    suspected = {}
    for member in members:
        own = [each for each in (member.node, _machine(member.node)) if each in names]
        if own or member.domain in domains:
            suspected[member.node] = own[0] if own else member.domain
    return suspected, found.times
