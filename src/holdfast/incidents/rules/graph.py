"""All ranks of an incident, what each is doing, and which ranks wait for which. Pure.

The order of the nodes does not matter. Within a node, times compare by its own clock; between nodes by the time since
the cycle began, or by wall clocks where that is not known (`JobView.clocks`).
Does not cover: who is to blame (`blame`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ..evidence import (
    SUSPECTED,
    Case,
    Collective,
    NodeEvidence,
    NodeFault,
    NodeFaultKind,
    RankEvidence,
    StackSource,
    Target,
)
from ..verdict import Activity, Edge, Kind, Strength, Via
from . import recorder
from .exits import COLLATERAL, End, Role, end_of
from .places import Place, place_of
from .signatures import activity, is_computing, main_stack, moves, waits_natively

SAME_CLOCK, WALL_CLOCKS = 0.5, 10.0
"""Seconds by which times of two nodes may differ: counted from the start of the cycle; by wall clocks."""
LONG = 10.0
"""Seconds of a silence, or of a wait, that count without a limit."""
RECENT = 10.0
"""A sign of life and a collective: one is recent if the other one is this many times older."""
P2P = ("send", "recv", "isend", "irecv", "batch_isend_irecv", "send_object_list", "recv_object_list")
"""Operations between two ranks."""


@dataclass(frozen=True, slots=True)
class RankView:
    """One rank."""

    evidence: RankEvidence
    activity: Activity
    end: End | None

    @property
    def rank(self) -> int:
        return self.evidence.rank

    @property
    def is_living(self) -> bool:
        """Whether it had not ended when the evidence was taken, by itself or because of a peer."""
        end = self.evidence.exit
        has_ended = end is not None and not end.asked
        is_done = self.end is not None and self.end.role in (*COLLATERAL, Role.DONE)
        return not has_ended and not is_done

    @property
    def is_native_wait(self) -> bool:
        """Whether it is in a native wait, and nothing shows for what."""
        doing = self.activity
        is_vague = doing.strength is Strength.WEAK and doing.kind in (Kind.LOCK, Kind.NETWORK, Kind.UNKNOWN)
        return self.is_living and is_vague and waits_natively(self.evidence)

    @property
    def may_wait_for_gpu(self) -> bool:
        """Whether it uses a processor, and no recorder shows whether it waits in a collective."""
        is_busy = self.activity.kind == Kind.USER_CODE and is_computing(self.evidence)
        return self.is_living and is_busy and recorder.is_missing(self.evidence)

    @property
    def step(self) -> int | None:
        return self.evidence.board.step if self.evidence.board else None

    @property
    def waits_for_any(self) -> bool:
        """Whether it waits for a peer, and for which one is not known."""
        if self.activity.operation in P2P:
            return self.evidence.peer is None and not any(entry.p2p for entry in self.evidence.collectives)
        return self.activity.strength is Strength.WEAK and recorder.is_missing(self.evidence)

    def as_waiting(self) -> RankView:
        """The same rank, in a collective as the other ranks suggest."""
        operation = self.activity.operation or "collective"
        doing = replace(self.activity, kind=Kind.IN_COLLECTIVE, strength=Strength.WEAK, operation=operation)
        return replace(self, activity=doing)

    def as_guess(self) -> RankView:
        """The same rank, whose activity is only a guess."""
        return replace(self, activity=replace(self.activity, strength=Strength.WEAK))


class JobView:
    """The ranks of a case in groups: living, waiting for peers, outside of that, done; and the edges between them."""

    def __init__(self, case: Case) -> None:
        nodes = sorted(case.nodes, key=lambda node: (node.node_rank, node.node, node.at, node.mono))
        self.faults = tuple(fault for node in nodes for fault in node.faults)
        self.is_aligned = all(node.cycle_start > 0 for node in nodes)
        self.triggers = frozenset(node.trigger for node in nodes)
        self.lost_nodes = tuple(sorted({name for node in nodes for name in node.lost_nodes}))
        lost = (fault for fault in self.faults if fault.kind is NodeFaultKind.NODE_LOST)
        self.lost_node: NodeFault | None = next(lost, None)
        starts = [node.cycle_start if self.is_aligned else 0.0 for node in nodes]
        self.ranks = _ranks([(node, node.at - start) for node, start in zip(nodes, starts, strict=True)])
        numbers = {view.rank for view in self.ranks}
        self.accused = {node.accused for node in nodes} & numbers
        self.unseen = max(0, max((node.world_size for node in nodes), default=0) - len(numbers))
        self.missing_nodes = max(0, case.missing_nodes)
        self.is_complete = not (self.missing_nodes or self.unseen)
        self.passed = [view.evidence.passed for view in self.ranks if view.evidence.passed]
        self.is_suspected = bool(self.triggers & SUSPECTED) or bool(self.passed)
        self.living = [view for view in self.ranks if view.is_living]
        self.done = [view for view in self.ranks if view.end is not None and view.end.role is Role.DONE]
        self.done += [view for view in self.living if view.activity.kind == Kind.FINISHED]
        self.living = [view for view in self.living if view.activity.kind != Kind.FINISHED]
        self.failed = [view for view in self.ranks if view.end is not None and view.end.role in COLLATERAL]
        self.waiting = [view for view in self.living if view.activity.waits_for_peers]
        self.waiters = [view.rank for view in (*self.waiting, *self.failed)]
        concerned = self._concerned()
        self.done = [view for view in self.done if view.rank in concerned]
        self.outside = [
            view for view in self.living if not view.activity.waits_for_peers and view.rank in concerned
        ]

    def _concerned(self) -> set[int]:
        """Ranks that wait, and those for which they wait, directly or through another.

        No rank is held up by one that is in none of these groups, as one that evaluates. All ranks, if the recorder
        of one that waits does not show for which ranks it does.
        """
        found, members = {view.rank for view in self.waiting}, dict[recorder.Group, tuple[int, ...]]()
        is_known = bool(found) and not self.failed
        for view in self.waiting:
            entries = [*transfers(view), *waits_in(view)]
            backends = recorder.recorded(view.evidence.collectives)
            is_known &= view.activity.kind == Kind.IN_COLLECTIVE and bool(entries)
            for entry in entries:
                is_known &= entry.backend in backends
                if entry.p2p and entry.peer is not None:
                    found.add(entry.peer)
                else:
                    members[recorder.group_of(entry)] = entry.members
        if not is_known or not all(members.values()):
            return {view.rank for view in self.ranks}
        found = found.union(*members.values())
        held = list(_by_holder(self.living))
        while more := {rank for edge in held if found & {*edge.waiters} for rank in edge.awaited} - found:
            found |= more
        return found

    def moves(self, view: RankView) -> bool:
        """Whether its board shows progress: a rank that is half as silent as the overdue one does not."""
        board, waited = view.evidence.board, max((limit.waited for limit in self.passed), default=0.0)
        if self.has_signs_of_a_thread or (
            board is not None and not board.moved and 0 < waited <= 2 * board.silent
        ):
            return False
        return moves(view.evidence, suspected=view.rank in self.accused)

    @cached_property
    def has_signs_of_a_thread(self) -> bool:
        """Whether a rank gave a recent sign of life while its main thread has been in one collective for long.

        Another thread gave it. That is so on every rank of a program, and such signs show no progress.
        """
        return any(
            moves(view.evidence) and entry.ago >= max(LONG, RECENT * view.evidence.board.silent)
            for view in self.waiting
            if view.evidence.board and view.activity.strength > Strength.WEAK and main_stack(view.evidence)
            for entry in waits_in(view)[:1]
        )

    @property
    def clocks(self) -> float:
        """Seconds by which times of two nodes may differ."""
        return SAME_CLOCK if self.is_aligned else WALL_CLOCKS

    @cached_property
    def edges(self) -> tuple[Edge, ...]:
        """Which ranks wait for which, the strongest edges first."""
        found = [*self.direct, *_by_holder(self.living)]
        if self.waiting and self.outside:
            strength = max(view.activity.strength for view in self.waiting)
            awaited = tuple(view.rank for view in self.outside)
            found.append(Edge(tuple(self.waiters), awaited, min(strength, Strength.STRONG), Via.STACK))
        if self.waiting and self.done:
            awaited = tuple(view.rank for view in self.done)
            found.append(Edge(tuple(self.waiters), awaited, Strength.STRONG, Via.EXIT))
        if self.waiting and not found and not self.is_complete:
            found.append(Edge(tuple(self.waiters), (), Strength.WEAK, Via.MISSING))
        return tuple(sorted(found, key=lambda edge: -edge.strength))

    @cached_property
    def direct(self) -> list[Edge]:
        """Edges that show for which ranks others wait in particular, the strongest first."""
        found = [*_by_recorder(self.living), *_by_peer(self.living), *_by_place(self.waiting)]
        return sorted(found, key=lambda edge: -edge.strength)

    def sinks(self, strength: Strength) -> dict[int, Edge]:
        """Ranks for which others wait and that wait for none, by direct edges of this strength; with the first edge.

        A rank that waits, and for which neither recorder nor stack shows the other rank, may wait for any other.
        """
        edges = [edge for edge in self.direct if edge.strength >= strength]
        waiters = {rank for edge in edges for rank in edge.waiters}
        waiters |= {view.rank for view in self.waiting if view.waits_for_any}
        found: dict[int, Edge] = {}
        for edge in edges:
            for rank in edge.awaited:
                if rank not in waiters:
                    found.setdefault(rank, edge)
        return found


def _ranks(nodes: Sequence[tuple[NodeEvidence, float]]) -> list[RankView]:
    """Of nodes, each with the time of its capture on the clock of the whole case."""
    answered = any(rank.stacks_from is StackSource.RANK for node, _ in nodes for rank in node.ranks)
    faults = tuple(fault for node, _ in nodes for fault in node.faults)
    found = []
    for node, at in nodes:
        for rank in node.ranks:
            if node.trigger in SUSPECTED:
                # The ranks were terminated: what they did after the capture only follows from that.
                raised = None if rank.raised and rank.raised.ago < 0 else rank.raised
                end = None if rank.exit and rank.exit.ago < 0 else rank.exit
                rank = replace(rank, raised=raised, exit=end)
            others_answer = answered and rank.stacks_from is not StackSource.RANK
            doing, ended = activity(rank, others_answer=others_answer), end_of(rank, at, faults)
            if ended is not None and ended.role is not Role.TERMINATED:
                kind = Kind.FINISHED if ended.role is Role.DONE else Kind.FAILED
                doing = Activity(rank.rank, kind, ended.text, Strength.PROOF, doing.place)
            found.append(RankView(rank, doing, ended))
    found.sort(key=lambda view: (view.rank, view.evidence.node, view.evidence.local_rank, view.evidence.pid))
    return _explained(found)


def _explained(ranks: list[RankView]) -> list[RankView]:
    """Waits that a rank's own evidence does not explain become waits for peers where the other ranks show that.

    A native wait may be for a lock or for peers (`Work.wait()`). It is for peers where most ranks are at its line, or
    where no rank waits in a collective for certain and something else is known of another rank. Where all are at one
    line, and all collectives are completed by the recorder, nothing shows for what they wait. A rank that waits for
    its GPU seems busy. Where its recorder is missing, it waits if something else holds the others up; otherwise that
    it computes is a guess. Without NCCL, and where ranks that wait sleep, a busy rank does not wait.
    """
    native = [view for view in ranks if view.is_native_wait]
    is_certain = any(
        view.activity.waits_for_peers and view.activity.strength > Strength.WEAK for view in ranks
    )
    is_known = any(
        view.is_living and not view.is_native_wait and view.activity.kind != Kind.UNKNOWN for view in ranks
    ) or (len(native) > 1 and any(view.activity.kind == Kind.FINISHED for view in ranks))
    common = _common_place(native, len(ranks))
    if len(native) == len(ranks) and all(
        recorder.all_completed(each.evidence.collectives) and each.activity.place == common for each in native
    ):
        return ranks
    waits = {id(each) for each in native if each.activity.place == common or (is_known and not is_certain)}
    found = [view.as_waiting() if id(view) in waits else view for view in ranks]
    sleeps = any(view.activity.waits_for_peers and not is_computing(view.evidence) for view in found)
    if sleeps and not any(recorder.records_completion(view.evidence.collectives) for view in found):
        return found
    others = [view.activity for view in found if not view.may_wait_for_gpu]
    is_held_up = any(
        not each.waits_for_peers and each.kind not in (Kind.UNKNOWN, Kind.FAILED) for each in others
    )
    changed = RankView.as_waiting if is_held_up else RankView.as_guess
    return [changed(view) if view.may_wait_for_gpu else view for view in found]


def _common_place(views: Sequence[RankView], ranks: int) -> str | None:
    """The line at which at least half of all ranks are; None: there is none."""
    places = Counter(view.activity.place for view in views if view.activity.place)
    place, often = max(places.items(), key=lambda item: (item[1], item[0]), default=("", 0))
    return place if often >= 2 and often * 2 >= ranks else None


# -- edges -----------------------------------------------------------------------------------------------------


def waits_in(view: RankView) -> list[Collective]:
    """The collectives in which a rank waits: the oldest pending one of each group; without recorded completion, the
    newest one of all."""
    entries = view.evidence.collectives
    found = [entry for entry in recorder.oldest_pending(entries).values() if not entry.p2p]
    last = recorder.latest([entry for entry in entries if not entry.p2p])
    if last is None or last.backend in recorder.recorded(entries) or not view.activity.waits_for_peers:
        return found
    return [last, *found]


def _by_recorder(living: Sequence[RankView]) -> Iterator[Edge]:
    """Members of a group that have not entered the collective in which others of it wait, or whose GPU has not."""
    views = {view.rank: view for view in living}
    waiting: dict[recorder.Group, dict[int, dict[int, Collective]]] = {}
    entered: dict[recorder.Group, set[int]] = defaultdict(set)
    for view in living:
        for entry in waits_in(view):
            of_group = waiting.setdefault(recorder.group_of(entry), {})
            of_group.setdefault(entry.sequence, {})[view.rank] = entry
        for entry in view.evidence.collectives:
            entered[recorder.group_of(entry)].add(view.rank)
    for group, by_sequence in waiting.items():
        first, last = min(by_sequence), max(by_sequence)
        edges = []
        for sequence in sorted({*sorted(by_sequence)[:2], last}):
            waiters = by_sequence[sequence]
            entry = next(iter(waiters.values()))
            is_proof = all(
                each.backend in recorder.recorded(views[rank].evidence.collectives)
                for rank, each in waiters.items()
            )
            known = [views[rank].evidence for rank in entry.members or entered[group] if rank in views]
            missing = [each.rank for each in known if recorder.lacks(each, entry)]
            if missing:
                strength = Strength.PROOF if is_proof else Strength.STRONG
                edges.append(Edge(tuple(waiters), tuple(missing), strength, Via.RECORDER))
        yield from edges
        if edges or not is_proof:
            continue
        started, late = tuple(by_sequence[last]), tuple(by_sequence[first])
        if first == last:
            states = {rank: entry.state for rank, entry in by_sequence[last].items()}
            started = tuple(rank for rank, state in states.items() if state == recorder.STARTED)
            late = tuple(rank for rank, state in states.items() if state == recorder.SCHEDULED)
        if started and late:
            yield Edge(started, late, Strength.STRONG, Via.GPU)


def _by_peer(living: Sequence[RankView]) -> Iterator[Edge]:
    """Sends and receives whose peer, or its GPU, is not in the counterpart: a send meets a receive."""
    pending = {view.rank: transfers(view) for view in living}
    for rank, entries in pending.items():
        for entry in entries:
            if entry.peer is None:
                continue
            met = [
                each
                for each in pending.get(entry.peer, ())
                if each.peer == rank and recorder.is_send(each) != recorder.is_send(entry)
            ]
            if not met:
                yield Edge((rank,), (entry.peer,), Strength.PROOF, Via.PEER)
            elif entry.state == recorder.STARTED and all(each.state == recorder.SCHEDULED for each in met):
                yield Edge((rank,), (entry.peer,), Strength.STRONG, Via.GPU)


def transfers(view: RankView) -> list[Collective]:
    """Its pending sends and receives: by the recorder, else the blocking one on its stack.

    What two ranks exchange in one group is done in its order: the rest is behind one that has started.
    """
    found = [each for each in recorder.oldest_pending(view.evidence.collectives).values() if each.p2p]
    begun = {(recorder.group_of(each), each.peer) for each in found if each.state == recorder.STARTED}
    found = [
        each
        for each in found
        if each.state == recorder.STARTED or (recorder.group_of(each), each.peer) not in begun
    ]
    if not found and view.evidence.peer is not None and view.activity.waits_for_peers:
        found = [Collective(0, view.activity.operation, p2p=True, peer=view.evidence.peer)]
    return found


def _by_place(waiting: Sequence[RankView]) -> Iterator[Edge]:
    """A rank that cannot reach the store meets no other; one that ends its groups comes to no collective any more.

    Ranks in a collective have met all others: one that has not come from `init_process_group` keeps them waiting.
    """
    ranks: dict[str, list[int]] = defaultdict(list)
    for view in waiting:
        is_at_store = view.activity.kind == Kind.RENDEZVOUS and any(
            place_of(frame) == Place.STORE for frame in main_stack(view.evidence) or ()
        )
        ranks[Via.STORE if is_at_store else view.activity.kind].append(view.rank)
        if view.activity.operation == "init_process_group":
            ranks[Via.INIT].append(view.rank)
    for waiters, awaited, via in (
        (Kind.RENDEZVOUS, Via.STORE, Via.STORE),
        (Kind.IN_COLLECTIVE, Kind.TEARDOWN, Via.TEARDOWN),
        (Kind.IN_COLLECTIVE, Via.INIT, Via.INIT),
    ):
        if ranks[waiters] and ranks[awaited]:
            yield Edge(tuple(ranks[waiters]), tuple(ranks[awaited]), Strength.STRONG, via)


HELD = {Target.LOCK: Via.LOCK, Target.SOCKET: Via.SOCKET}
"""What another process of the node may have of which a system call waits."""


def _by_holder(living: Sequence[RankView]) -> Iterator[Edge]:
    """The process that has the file lock, or the far end of the connection, for which others of its node wait."""
    pids = {(view.evidence.node, view.evidence.pid): view.rank for view in living}
    waiters: Mapping[tuple[int, Via], list[int]] = defaultdict(list)
    for view in living:
        call = view.evidence.process.system_call if view.evidence.process else None
        via = HELD.get(call.target) if call else None
        holder = pids.get((view.evidence.node, call.pid)) if call and via else None
        if holder is not None and via is not None and holder != view.rank:
            waiters[holder, via].append(view.rank)
    for (holder, via), ranks in sorted(waiters.items()):
        yield Edge(tuple(ranks), (holder,), Strength.PROOF, via)
