"""The training of a simulated job: ranks that make progress together, end, hang, or wait for a disk."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.fault_tolerance.launcher.control import messages as m
from holdfast.fault_tolerance.launcher.control.records import Membership

if TYPE_CHECKING:
    from .launcher import Launcher
    from .world import World

HANG_LIMIT = 8.0
"""Seconds without progress after which the simulated monitor ends a rank."""


@dataclass
class SimRank:
    """A training process."""

    launcher: Launcher
    local: int
    number: int
    group: Group
    alive: bool = True
    saving: bool = False
    blocked: bool = False  # in state D
    stopped_at: int | None = None  # by an agreed stop
    answered: int = 0
    yes: bool = False
    ended_at: float | None = None  # its main thread ended, and its process stays
    has_raised: bool = False  # by an exception

    @property
    def is_blocked(self) -> bool:
        """Whether it waits for a disk: neither a signal nor its own end comes through."""
        return (self.launcher.name, self.local) in self.launcher.world.blocked

    def stay(self, seconds: float, *, has_raised: bool) -> None:
        """Its main thread ends now, its process ends later."""
        if not self.alive or self.is_blocked or self.ended_at is not None:
            return
        world = self.launcher.world
        self.ended_at, self.has_raised = self.launcher.clock, has_raised
        self.group.check()
        if has_raised:
            world.after(self.launcher.random.uniform(0.0, 1.0), self._report)
        world.after(seconds, self.exit, 1 if has_raised else 0)

    def _report(self) -> None:
        if self.alive and self.launcher.ranks[self.local : self.local + 1] == [self]:
            text, ago = "ValueError: injected", self.launcher.clock - (self.ended_at or 0.0)
            self.launcher.post(m.RankFailing(self.local, m.Cause.OWN, text, ago))

    @property
    def ended_for(self) -> float | None:
        """Seconds since the main thread ended, as the board has it."""
        is_ending = self.ended_at is not None and not self.saving
        return self.launcher.clock - (self.ended_at or 0.0) if is_ending else None

    def exit(self, status: int, cause: m.Cause = m.Cause.OWN, text: str = "", failure: str = "") -> None:
        """The process ends; `failure`: by this exception of its own, at this step."""
        if not self.alive or self.is_blocked:
            return
        self.alive = False
        self.group.lost(self, status)
        text = text or f"ended with {status}"
        ended = m.RankExited(self.local, status, cause, text, has_raised=bool(failure), failure=failure)
        self.launcher.post(ended, fresh=True)


class Group:
    """The ranks of one cycle."""

    def __init__(self, world: World, cycle: int, membership: Membership, where: tuple[str, int]) -> None:
        self.world, self.cycle, self.membership, self.where = world, cycle, membership, where
        self.ranks: list[SimRank] = []
        self.base = self.world.checkpoint
        self.done = 0.0  # seconds of training since then
        self.since: float | None = None  # progress is counted since
        self.able_since = 0.0  # and has not paused since
        self.broken = self.finished = False
        self.last_step_at = world.now
        self.pauses = 0
        self.hold: int | None = None  # a rank waits at this step of this cycle, in an agreed stop

    @property
    def nodes(self) -> set[Launcher]:
        """The nodes that its ranks are on."""
        return {rank.launcher for rank in self.ranks}

    def steps(self) -> int:
        """Steps of this cycle."""
        if self.since is not None:
            self.done += self.world.now - self.since
            self.since = self.world.now
        count = int(self.done / self.world.scenario.step_time)
        return count if self.hold is None else min(count, self.hold)

    @property
    def step(self) -> int:
        """The step that the ranks report."""
        step = self.base + self.steps()
        self.world.best = max(self.world.best, step)
        return step

    @property
    def progresses(self) -> bool:
        """Whether its ranks train."""
        return self.since is not None and not self.broken

    def joined(self, rank: SimRank) -> None:
        """A rank has connected to the ranks' store."""
        self.ranks.append(rank)
        self.check()

    def check(self) -> None:
        """Progress begins, pauses and ends with the ranks and the nodes that they are on."""
        complete = len(self.ranks) == self.membership.world_size and all(
            rank.alive and not rank.is_blocked and rank.ended_at is None for rank in self.ranks
        )
        able = complete and not self.broken and not any(node.stands_still for node in self.nodes)
        if able and self.since is None:
            self.since = self.able_since = self.world.now
            self.pauses += 1
            left = self.world.scenario.total - self.base * self.world.scenario.step_time - self.done
            self.world.after(max(0.0, left), self._finish, self.pauses)
            if self.world.scenario.bug_at > self.base:
                until = (self.world.scenario.bug_at - self.base) * self.world.scenario.step_time - self.done
                self.world.after(max(0.0, until), self._meet_bug, self.pauses)
        elif not able and self.since is not None:
            self.steps()
            self.since, self.last_step_at = None, self.world.now
            self.pauses += 1
        if not able and self.ranks:
            self.world.after(HANG_LIMIT, self._hang, self.pauses)

    def _finish(self, pauses: int) -> None:
        if self.pauses != pauses or self.hold is not None:
            return
        self.step  # noqa: B018 - notes the best step
        self.finished = True
        self.world.finished = True
        for rank in self.ranks:
            chance = rank.launcher.random
            if chance.random() < self.world.scenario.slow_exits:
                rank.stay(chance.uniform(1.0, 150.0), has_raised=False)
            else:
                self.world.after(chance.uniform(0.0, 0.3), rank.exit, 0)

    def _meet_bug(self, pauses: int) -> None:
        """The program fails at this step, on one rank or another."""
        if self.pauses == pauses and not self.finished:
            rank = self.ranks[self.cycle % len(self.ranks)]
            rank.exit(1, text=f"IndexError: {self.cycle}", failure="IndexError: # at the step of the bug")

    def _hang(self, pauses: int) -> None:
        if self.pauses != pauses or self.since is not None or self.finished:
            return
        for node in sorted(self.nodes, key=lambda node: node.name):
            rank = next((rank for rank in node.ranks if rank.alive and rank.group is self), None)
            if rank is None or node.stands_still or node.gone or node.ending:
                continue
            node.post(m.Verdict(rank.local, "hung"))
            self.world.after(0.05, rank.exit, -signal.SIGKILL)

    def lost(self, rank: SimRank, status: int) -> None:
        """A rank has ended: its peers lose the connection, unless all are done."""
        if self.finished and status == 0:
            return
        if self.broken:
            return
        self.step  # noqa: B018
        self.broken = True
        self.check()
        if self.world.scenario.mode == "gloo" and not rank.launcher.powered_off:
            for peer in self.ranks:
                if peer.alive and not peer.launcher.gone:
                    text = "ConnectionError: lost a peer"
                    wait = peer.launcher.random.uniform(0.005, 0.3)
                    self.world.after(wait, peer.exit, 1, m.Cause.LOST_PEER, text)
