"""The collectives that ranks entered, by torch's flight recorder. Pure.

A GPU's collectives are enqueued ahead of their execution, so the one in which a rank is stuck is the oldest that is not
completed, of each process group. Numbers are compared within one group only.
Does not cover: a backend without recorded completion (gloo), also beside NCCL. There the newest entry counts as the one
in which a rank waits, if its stack shows that it waits in a collective.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from ..evidence import Case, Collective, Missing, RankEvidence

COMPLETED, STARTED, SCHEDULED = "completed", "started", "scheduled"
_DONE = frozenset({COMPLETED, "done", "retired"})
_UNEVEN = ("gather", "scatter", "all_to_all", "alltoall", "coalesced", "broadcast_object")
_EVEN = ("all_gather", "allgather", "reduce_scatter")
"""Operations whose ranks may have other sizes than each other; and of these, operations whose ranks may not."""
K = TypeVar("K", bound=Hashable)
Group = tuple[object, ...]


def with_members(case: Case) -> Case:
    """The case, with the members of groups that a rank's long answer left out, where other ranks show them."""
    if all(entry.members for rank in case.ranks for entry in rank.collectives):
        return case
    known: dict[str, dict[Group, tuple[int, ...]]] = defaultdict(dict)
    for rank in case.ranks:
        for entry in rank.collectives:
            if entry.members:
                known[entry.group].setdefault(group_of(entry), entry.members)

    def completed(rank: RankEvidence, entry: Collective) -> Collective:
        groups = () if entry.members else known[entry.group].values()
        fitting = [members for members in groups if rank.rank in members]
        return replace(entry, members=fitting[0]) if len(fitting) == 1 else entry

    nodes = []
    for node in case.nodes:
        ranks = (
            replace(rank, collectives=tuple(completed(rank, entry) for entry in rank.collectives))
            for rank in node.ranks
        )
        nodes.append(replace(node, ranks=tuple(ranks)))
    return Case(tuple(nodes))


def group_of(entry: Collective) -> Group:
    """The group's identity: two tensor-parallel groups may have one name. Its ends represent thousands of members."""
    return (entry.group, len(entry.members), *entry.members[:2], *entry.members[-1:])


def is_same_group(one: Collective, other: Collective) -> bool:
    """Whether two entries are of one group: by its name where the members of either are not known."""
    is_known = one.members and other.members
    return group_of(one) == group_of(other) if is_known else one.group == other.group


def place_of(entry: Collective) -> Group:
    """Which collective of which group it is."""
    return (*group_of(entry), entry.sequence)


def recorded(entries: Sequence[Collective]) -> frozenset[str]:
    """Backends whose completed collectives the recorder distinguishes from others: gloo's it does not always."""
    return frozenset(
        entry.backend
        for entry in entries
        if entry.state in _DONE or entry.state == STARTED or entry.backend == "nccl"
    )


def records_completion(entries: Sequence[Collective]) -> bool:
    """Whether the recorder shows the completion of any of these."""
    return bool(recorded(entries))


def is_missing(rank: RankEvidence) -> bool:
    """Whether this rank's recorder could not be read: nothing follows from what it does not show."""
    return not rank.collectives and rank.no_collectives is not Missing.NOTHING


def oldest_pending(entries: Sequence[Collective]) -> dict[tuple[object, ...], Collective]:
    """The oldest entry that is not completed, by group, and by peer for sends and receives."""
    found: dict[tuple[object, ...], Collective] = {}
    backends = recorded(entries)
    for entry in entries:
        if entry.backend not in backends or entry.state in _DONE:
            continue
        key = (*group_of(entry), entry.p2p, entry.peer, entry.p2p and is_send(entry))
        if key not in found or entry.sequence < found[key].sequence:
            found[key] = entry
    return found


def all_completed(entries: Sequence[Collective]) -> bool:
    """Whether the recorder shows that the rank waits in no collective. gloo's has no sends and receives."""
    last = latest(entries)
    return last is not None and last.backend in recorded(entries) and not oldest_pending(entries)


def latest(entries: Sequence[Collective]) -> Collective | None:
    """The entry that was entered last."""
    return min(entries, key=lambda entry: (entry.ago, -entry.sequence), default=None)


def reached(entries: Sequence[Collective], entry: Collective) -> bool:
    """Whether a rank with these entries has entered this collective of its group."""
    return any(
        not each.p2p and each.sequence >= entry.sequence and is_same_group(each, entry) for each in entries
    )


def lacks(rank: RankEvidence, entry: Collective) -> bool:
    """Whether this rank's recorder shows that it has not entered this collective.

    One that was read in part shows that only of groups of which it has entries.
    """
    is_shown = rank.no_collectives is Missing.NOTHING or any(
        is_same_group(each, entry) for each in rank.collectives
    )
    return is_shown and not reached(rank.collectives, entry)


def signature(entry: Collective) -> tuple[str, str, str]:
    """The values on which the ranks of a group must agree."""
    name = operation(entry)
    if any(word in name for word in _UNEVEN) and not any(word in name for word in _EVEN):
        return name, "", ""
    return name, entry.sizes, entry.dtype


def operation(entry: Collective) -> str:
    """The operation's name, without its backend and the ranks of a send: `all_reduce`, `recv`."""
    return entry.operation.rsplit(":", 1)[-1].split(" ")[0]


def is_send(entry: Collective) -> bool:
    """Whether a point-to-point operation sends."""
    return "send" in operation(entry)


def odd(values: Mapping[int, K]) -> tuple[int, ...]:
    """The ranks that differ from the majority; empty where there is no majority or all agree."""
    counts = Counter(values.values())
    if len(counts) < 2:
        return ()
    (most, often), (_, next_often) = counts.most_common(2)
    if often <= next_often or often * 2 <= len(values):
        return ()
    return tuple(sorted(rank for rank, value in values.items() if value != most))


def breaks_its_pattern(entries: Sequence[Collective]) -> bool:
    """Whether the newest collective of its group is not the one that this rank entered in its place before."""
    last = latest(entries)
    if last is None:
        return False
    own = [each for each in entries if group_of(each) == group_of(last)]
    return _is_new([signature(each) for each in sorted(own, key=lambda each: each.sequence)])


def leaves_its_order(entries: Sequence[Collective]) -> bool:
    """Whether the newest collective is of another group, or with another peer, than in this place before."""
    oldest: dict[Group, float] = {}
    for entry in entries:
        oldest[_stream(entry)] = max(entry.ago, oldest.get(_stream(entry), 0.0))
    known = min(oldest.values(), default=0.0)  # of each group only the newest entries were captured
    ordered = sorted(entries, key=lambda each: (-each.ago, each.sequence))
    return _is_new([_stream(each) for each in ordered if each.ago <= known])


def _is_new(line: Sequence[Hashable]) -> bool:
    """Whether this line was periodic before its last value, and is no more."""
    before = line[:-1]
    for period in range(1, len(before) // 2 + 1):
        same = all(before[-i] == before[-i - period] for i in range(1, len(before) - period + 1))
        if same or (period > 1 and before[-period:] == before[-2 * period : -period]):
            return before[-period] != line[-1]
    return False


def _stream(entry: Collective) -> Group:
    return (*group_of(entry), entry.peer, entry.p2p and is_send(entry))


def described(entry: Collective) -> str:
    """`all_reduce (sequence 911, sizes [[1024]])`."""
    sizes = f", sizes {entry.sizes}" if entry.sizes and len(entry.sizes) <= 40 else ""
    where = f" of group {entry.group[:40]}" if entry.group and entry.group != "default_pg" else ""
    return f"{operation(entry)}{where} (sequence {entry.sequence}{sizes})"
