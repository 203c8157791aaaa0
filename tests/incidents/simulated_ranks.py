"""Simulated ranks: each continues until it blocks, and what it blocks waits for it, transitively. No clock but ticks.

gloo: a call blocks the main thread until all members are in it. NCCL: a call is enqueued, the GPU carries out one after
another, and the main thread waits at a read of the loss, a barrier or a checkpoint, or when too much is enqueued.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.incidents.simulated_programs import (
    CALL,
    COMPUTE,
    END,
    FAULT,
    SECTION,
    STEP,
    SYNC,
    Layout,
    Op,
)

TICK = 0.05
"""Seconds."""
FOREVER = 10**9


@dataclass(slots=True)
class Call:
    """A collective, send or receive that a rank has entered, as its recorder has it; or a kernel of its GPU."""

    op: Op
    number: int
    """Of the group's collectives; of the sends, or the receives, between two ranks."""
    entered: int
    started: bool = False
    done: bool = False
    ready: int = -1
    """Of a kernel: the tick at which it ends."""


@dataclass(slots=True)
class Rank:
    """One rank: its main thread, its GPU's queue, its board."""

    number: int
    ops: list[Op]
    at: int = 0
    busy_until: int = -1
    frozen: bool = False
    """Whether its main thread cannot continue: stopped, or in a fault."""
    ended: int | None = None
    """The tick at which it ended."""
    calls: list[Call] = field(default_factory=list)
    queue: list[Call] = field(default_factory=list)
    head: int = 0
    counts: dict[object, int] = field(default_factory=dict)
    step: int | None = None
    signs: list[tuple[int, str, str, int]] = field(default_factory=list)
    """Of life: tick, kind, name, value."""
    sections: list[tuple[str, int]] = field(default_factory=list)

    @property
    def op(self) -> Op | None:
        """What its main thread is in; None at the end of its program."""
        return self.ops[self.at] if self.at < len(self.ops) else None

    @property
    def is_idle(self) -> bool:
        return self.head >= len(self.queue)


class Job:
    """All ranks, until none of them can continue."""

    def __init__(self, layout: Layout, backend: str, programs: list[list[Op]], ahead: int) -> None:
        self.layout, self.backend, self.ahead = layout, backend, ahead
        self.groups = layout.groups()
        self.ranks = [Rank(number, ops) for number, ops in enumerate(programs)]
        self.now = 0
        self._met: dict[object, dict[int, tuple[str, int]]] = {}

    def run(self, until: int = FOREVER) -> bool:
        """Until this tick; False: nothing moves any more, and nothing ever will."""
        while self.now < until:
            moved = False
            for rank in self.ranks:
                moved |= self._main_thread(rank)
                moved |= self._gpu(rank)
            timers = [rank.busy_until for rank in self.ranks if not rank.frozen]
            timers += [rank.queue[rank.head].ready for rank in self.ranks if not rank.is_idle]
            if not moved and not any(self.now < each < FOREVER for each in timers):
                return False
            self.now += 1
        return True

    # -- the main thread -------------------------------------------------------------------------------------------

    def _main_thread(self, rank: Rank) -> bool:
        moved = False
        while not rank.frozen and rank.ended is None and rank.op is not None:
            if not self._passes(rank, rank.op):
                break
            rank.at += 1
            rank.busy_until = -1
            moved = True
        return moved

    def _passes(self, rank: Rank, op: Op) -> bool:
        """Begin or continue this; whether it is over."""
        if op.kind == FAULT:
            if op.name in ("exit", "crash"):
                rank.ended = self.now
            rank.frozen = True
            return False
        if op.kind in (SECTION, END, STEP):
            self._sign(rank, op)
            return True
        if op.kind == SYNC:
            return rank.is_idle
        if op.kind == CALL or (op.kind == COMPUTE and self.backend == "nccl"):
            if self.backend == "nccl":
                return self._enqueued(rank, op)
            if rank.busy_until < 0:
                rank.busy_until = 0
                rank.calls.append(self._call(rank, op))
            return self._is_met(rank, rank.calls[-1])
        if rank.busy_until < 0:
            rank.busy_until = self.now + op.ticks
        return self.now >= rank.busy_until

    def _sign(self, rank: Rank, op: Op) -> None:
        if op.kind == SECTION:
            rank.sections.append((op.name, self.now))
        elif op.kind == END:
            rank.sections.pop()
        else:
            rank.step = op.step
        rank.signs.append(
            (self.now, {END: "section_end", SECTION: "section_begin"}.get(op.kind, "step"), op.name, op.step)
        )

    def _enqueued(self, rank: Rank, op: Op) -> bool:
        if len(rank.queue) - rank.head >= self.ahead:
            return False
        call = self._call(rank, op)
        rank.queue.append(call)
        if op.kind == CALL:
            rank.calls.append(call)
        return True

    def _call(self, rank: Rank, op: Op) -> Call:
        key = (op.name, op.peer) if op.is_p2p else op.group
        rank.counts[key] = rank.counts.get(key, 0) + (op.kind == CALL)
        return Call(op, rank.counts[key], self.now)

    # -- what ranks wait for ---------------------------------------------------------------------------------------

    def _gpu(self, rank: Rank) -> bool:
        """A GPU continues when its process is stopped, and is gone with it."""
        moved = False
        while not rank.is_idle and rank.ended is None:
            call = rank.queue[rank.head]
            if not call.started:
                call.started = moved = True
                call.ready = self.now + call.op.ticks if call.op.kind == COMPUTE else -1
            if not (self.now >= call.ready if call.op.kind == COMPUTE else self._is_met(rank, call)):
                break
            call.done = moved = True
            rank.head += 1
        return moved

    def _is_met(self, rank: Rank, call: Call) -> bool:
        """Enter it, and whether all others have, with the same operation and size."""
        op = call.op
        call.started = True
        if op.peer is not None:
            ends = (rank.number, op.peer) if op.name == "send" else (op.peer, rank.number)
            key: object = (*ends, call.number)
            expected = 2
        else:
            key, expected = (op.group, call.number), len(self.groups[op.group])
        met = self._met.setdefault(key, {})
        met[rank.number] = ("", 0) if op.is_p2p else (op.name, op.size)
        call.done = len(met) == expected and len(set(met.values())) == 1 and self._all_live(met)
        return call.done

    def _all_live(self, members: dict[int, tuple[str, int]]) -> bool:
        """gloo's transport runs in the processes: a stopped one takes part in nothing."""
        return self.backend == "nccl" or not any(
            self.ranks[each].frozen and not self._is_over(self.ranks[each]) for each in members
        )

    @staticmethod
    def _is_over(rank: Rank) -> bool:
        """A rank in a fault of its own code has left the calls before it."""
        return rank.op is not None and rank.op.kind == FAULT
