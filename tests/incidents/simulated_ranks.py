"""Programs of simulated jobs (their parallel layout, what each rank calls step by step), and ranks that run them. Pure.

By torch's semantics: all members of a group call the same collectives in the same order; a send meets a receive.
Each rank continues until it blocks, and what it blocks waits for it, transitively. No clock but ticks.

gloo: a call blocks the main thread until all members are in it. NCCL: a call is enqueued, the GPU carries out one after
another, and the main thread waits at a read of the loss, a barrier or a checkpoint, or when too much is enqueued.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

COMPUTE, LOAD, SAVE, CALL, SYNC = "compute", "load", "save", "call", "sync"
SECTION, END, STEP, FAULT = "section", "end", "step", "fault"
WORLD = "0:default_pg"


@dataclass(frozen=True, slots=True)
class Op:
    """One thing that a rank's main thread does."""

    kind: str
    line: int = 0
    """Of the program."""
    name: str = ""
    """Of a collective: `all_reduce`; of a section; of a fault."""
    group: str = ""
    size: int = 0
    peer: int | None = None
    """Of a send or receive: a global rank."""
    style: str = ""
    """Where a wait shows: `call` (in torch's function), `native` (in the program's own line), `backward`."""
    ticks: int = 0
    step: int = 0

    @property
    def is_p2p(self) -> bool:
        return self.peer is not None


@dataclass(frozen=True)
class Layout:
    """Which ranks are in which group: tensor-parallel neighbours first, then data-parallel, then pipeline stages."""

    tensor: int
    data: int
    stages: int
    described: bool

    @property
    def world(self) -> int:
        return self.tensor * self.data * self.stages

    def stage(self, rank: int) -> int:
        return rank // (self.tensor * self.data)

    def groups(self) -> dict[str, tuple[int, ...]]:
        """By `name:description`, as torch names them; a group of one rank calls nothing."""
        found, everyone = {WORLD: tuple(range(self.world))}, range(self.world)
        per_stage = self.tensor * self.data
        stages = [everyone[first : first + per_stage] for first in everyone[::per_stage]]
        lines = {
            "tp": [everyone[first : first + self.tensor] for first in everyone[:: self.tensor]],
            "dp": [stage[first :: self.tensor] for stage in stages for first in range(self.tensor)],
            "pp": [everyone[first::per_stage] for first in range(per_stage)],
        }
        for what, members in lines.items():
            for each in members:
                if 1 < len(each) < self.world or (what == "pp" and len(each) > 1):
                    found[f"{len(found)}:{what if self.described else 'undefined'}"] = tuple(each)
        return found


@dataclass(frozen=True)
class Style:
    """How a program is written."""

    layers: int
    micro_batches: int
    sections: bool
    heartbeats: bool
    """Otherwise its steps are counted."""
    style: str
    p2p_style: str
    sync_style: str
    loss_every: int
    """Steps between two reads of the loss, at which the CPU waits for the GPU."""
    save_every: int
    norm: bool
    """Whether all ranks reduce the norm of the gradients."""


def some_layout(rng: random.Random) -> Layout:
    tensor, data, stages = rng.choice(
        [(1, 2, 1), (1, 3, 1), (1, 4, 1), (1, 8, 1), (2, 2, 1), (2, 4, 1), (1, 1, 2), (1, 1, 4), (1, 2, 2), (2, 2, 2)]
        + [(2, 1, 2), (1, 2, 4), (4, 2, 1), (2, 4, 2), (1, 16, 1), (2, 2, 4)]
        + ([(4, 4, 4), (1, 64, 1), (8, 8, 1)] if rng.random() < 0.1 else [])
    )  # fmt: skip
    return Layout(tensor, data, stages, rng.random() < 0.5)


def some_style(rng: random.Random) -> Style:
    return Style(
        layers=rng.randint(1, 3),
        micro_batches=rng.randint(1, 3),
        sections=rng.random() < 0.5,
        heartbeats=rng.random() < 0.7,
        style=rng.choice(["call", "call", "native"]),
        p2p_style=rng.choice(["call", "native"]),
        sync_style=rng.choice(["native", "native", "synchronize"]),
        loss_every=rng.choice([1, 1, 2, 4]),
        save_every=rng.choice([2, 3, 50]),
        norm=rng.random() < 0.6,
    )


def program(rank: int, layout: Layout, style: Style, steps: int, rng: random.Random) -> list[Op]:
    """What this rank does. `rng` decides durations only: all ranks call the same."""
    groups = layout.groups().items()
    use = _named(layout, {key: members for key, members in groups if rank in members and key != WORLD})
    per_stage = layout.tensor * layout.data
    ops: list[Op] = []
    for step in range(steps):
        for op in _step(rank, step, layout, style, use, per_stage):
            if op.kind in (SECTION, END) and not style.sections:
                continue
            ticks = rng.randint(1, 3) if op.kind in (COMPUTE, LOAD, SAVE) else 0
            ops.append(replace(op, ticks=ticks, step=step))
    return ops


def _named(layout: Layout, groups: dict[str, tuple[int, ...]]) -> dict[str, str]:
    """The groups of a rank by their use."""
    found = {}
    for key, members in groups.items():
        distance = members[1] - members[0]
        crosses = layout.stage(members[0]) != layout.stage(members[-1])
        found["pp" if crosses else "tp" if distance == 1 and layout.tensor > 1 else "dp"] = key
    if "dp" not in found and layout.data == layout.world:
        found["dp"] = WORLD
    if "tp" not in found and layout.tensor == layout.world:
        found["tp"] = WORLD
    return found


def _step(
    rank: int, step: int, layout: Layout, style: Style, use: dict[str, str], per_stage: int
) -> Iterator[Op]:
    stage, last = layout.stage(rank), layout.stages - 1
    before, after = rank - per_stage, rank + per_stage
    yield Op(SECTION, name="data_loading")
    yield Op(LOAD, 20)
    yield Op(END, name="data_loading")
    yield Op(SECTION, name="step")
    for _ in range(style.micro_batches if last else 1):
        if stage:
            yield Op(CALL, 31, "recv", use["pp"], 64, before, style.p2p_style)
        yield from _layers(30, style, use)
        if stage < last:
            yield Op(CALL, 39, "send", use["pp"], 64, after, style.p2p_style)
    for _ in range(style.micro_batches if last else 1):
        if stage < last:
            yield Op(CALL, 51, "recv", use["pp"], 64, after, style.p2p_style)
        yield from _layers(50, style, use)
        if stage:
            yield Op(CALL, 59, "send", use["pp"], 64, before, style.p2p_style)
    if "dp" in use:
        how = "backward" if style.style == "call" else style.style
        yield Op(CALL, 60, "all_reduce", use["dp"], 4096, style=how)
        yield Op(CALL, 60, "all_reduce", use["dp"], 1024, style=how)
    if style.norm:
        yield Op(CALL, 65, "all_reduce", WORLD, 1, style=style.style)
    yield Op(COMPUTE, 70)
    if step % style.loss_every == 0:
        yield Op(SYNC, 72, style=style.sync_style)
    yield Op(END, name="step")
    yield Op(STEP)
    if step % style.save_every == style.save_every - 1:
        yield Op(SECTION, name="checkpointing")
        yield Op(SYNC, 80, style="native")
        yield Op(SAVE, 81)
        yield Op(END, name="checkpointing")
        yield Op(CALL, 83, "barrier", WORLD, 1, style="call")
        yield Op(SYNC, 83, "barrier", style="barrier")


def _layers(line: int, style: Style, use: dict[str, str]) -> Iterator[Op]:
    for layer in range(style.layers):
        yield Op(COMPUTE, line + 2)
        if "tp" in use:
            name = "all_gather" if layer % 2 else "all_reduce"
            yield Op(CALL, line + 4, name, use["tp"], 256, style=style.style)


# -- simulated ranks


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
        kind = {END: "section_end", SECTION: "section_begin"}.get(op.kind, "step")
        rank.signs.append((self.now, kind, op.name, op.step))

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
