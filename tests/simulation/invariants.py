"""What holds in every step of every simulated job, and at its end.

Agreement
 1. A cycle record, a membership and a rank store that stand are never replaced.
 2. All nodes that run a cycle agree on its membership and its rank store, and it has from least to most nodes.
 3. The ranks of a cycle start only when all its members have acknowledged it.
 4. A node that trained and asked for its place has it, before one that did not; one that said it leaves has none.
    A suspected or sick node loses its place only to another one, or with --ft-exclude-suspects or --ft-health-action
    exclude. A sick node has a place only where it is needed, and leaves only where it has none.
 5. All ranks that stop by agreement stop at one step.
Budgets
 6. Restarts in a row without progress never exceed `--max-restarts`, over all nodes.
 6a. The job ends with its own code after so many failed cycles in a row without a new checkpoint, never before and,
    where the number in the file can be read, not later.
 7. Cycles that are called off have a budget; restarts only to let nodes join keep their distance.
Ranks
 8. No ranks of two cycles run on a node at once; no launcher leaves a rank behind.
 9. A rank gets SIGKILL only after its grace period, without the time in which its node was suspended.
10. A healthy job is never stopped because the store is slow or a launcher is suspended.
    The same holds for a rank whose main thread has ended: after --ft-exit-timeout it is killed, after a good end never
    without a limit.
11. Evidence is taken once in a cycle, and never where the monitor has taken it.
Ends
12. A node that leaves writes why first.
13. A launcher that got a signal ends; a job that can continue trains again within a bounded time; all launchers end.
14. A job in which too few nodes are left by a failure ends soon.
15. Launchers that are there at the end leave with one exit code, the store's host last; it ends only when all are done.
16. A node sends heartbeats as long as its controller runs.
"""

from __future__ import annotations

import re
from typing import Any

from holdfast.fault_tolerance.launcher.control import messages as m
from holdfast.fault_tolerance.launcher.control import records
from holdfast.fault_tolerance.launcher.control.node import (
    Confirm,
    Gather,
    Leave,
    Preempt,
    Run,
    Settle,
    Start,
    Stop,
)
from holdfast.fault_tolerance.launcher.control.records import CycleRecord, Kind, Membership, entries

from .launcher import Launcher
from .training import Group, SimRank
from .world import NO_RESTART, Scenario, Violation, World

RECOVERY = 75.0
"""Seconds in which a job with enough healthy nodes trains again: two losses, found one after the other, with ranks that
save until they are stopped."""
SIGNALLED = 60.0
"""Seconds in which a launcher ends after a signal: --term-timeout, what its ranks left running, the store's host."""
FAILED = 25.0
"""Seconds in which a job ends after a failure that leaves too few nodes, without the time that ranks have to save."""
ODD = {"vanished", "signalled", "excluded", "suspended", "cut", "cannot start", "blocked", "slow"}
"""What happens to a launcher so that its exit code may be another one."""


KEYS = {
    "cycle": "the next cycle record",
    "members": "the membership",
    "go": "the rank store",
    "left": "a node that leaves",
    "alive": "a heartbeat",
    "stop": "the agreed stop",
}
"""What a value of the store is, by its key."""


def trigger(event: m.Event) -> str:
    """The event, as a row of the table has it."""
    match event:
        case m.StoreView(key, _):
            return KEYS.get(key.partition("/")[0], "another key")
        case m.RankExited(status=status):
            return "a rank exits with 0" if status == 0 else "a rank fails"
        case m.Tick():
            return "time"
        case m.Signal():
            return "a signal"
    return "`" + type(event).__name__ + "`"


class CheckedWorld(World):
    """A world that raises `Violation`."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self.transitions: set[tuple[str, str, str]] = set()
        self.log_texts: set[str] = set()
        self.started: dict[int, tuple[Any, str, int]] = {}
        self.left_at: dict[str, float] = {}
        self.asked_at: dict[tuple[int, str], float] = {}  # for a place, by cycle and node
        self.records: dict[int, CycleRecord] = {}
        self.streak = 0
        self.best_at_restart = -1
        self.saved_at = [
            0
        ]  # iterations of the last checkpoint: at the start, and at each restart after a failure
        self.newest_read = self.stalled = 0  # as the records have it
        self.called_off = 0
        self.joins: list[float] = []
        self.idle_since = 0.0
        self.evidence: set[tuple[str, int, str]] = set()
        self.started_at: dict[tuple[str, int], float] = {}
        self.asked_to_stop: dict[tuple[str, int, int], float] = {}
        self.signalled: dict[str, float] = {}
        self.requested: dict[str, float] = {}
        self.failed_at: float | None = None
        self.after(1.0, self._every_second)

    # -- what is written ----------------------------------------------------------------------------------------

    def on_write(self, key: str, old: str | None, new: str) -> None:
        kind, _, number = key.partition("/")
        if old and kind in ("cycle", "members", "go"):
            raise Violation(f"1: {key} was replaced: {old} by {new}")
        if key == records.LEFT:
            for name in entries(new).keys() - self.left_at.keys():
                self.left_at[name] = self.now
        elif kind == "join":
            for name in entries(new):
                self.asked_at.setdefault((int(number), name), self.now)
        elif kind == "members":
            self._check_members(int(number), Membership.decode(new))
        elif kind == "go":
            self._check_go(int(number))
        elif kind == "cycle":
            record = CycleRecord.decode(new, int(number))
            self.records[record.cycle] = record
            self._check_record(record)

    def _check_members(self, cycle: int, membership: Membership) -> None:
        late = self.now - 2.0 - 4 * self.scenario.latency
        gone = [name for name in membership.names if self.left_at.get(name, self.now) < late]
        if gone:
            raise Violation(f"4: the membership of cycle {cycle} has {gone}, which left")
        self._check_sick(cycle, membership)
        if cycle == 0 or self.records[cycle].base < 0:
            return
        record = self.records[cycle]
        before = Membership.decode(self.store.values[records.key("members", record.base)]).names
        asked = {launcher.name for launcher in self.launchers if not launcher.gone}
        out = {name for name in membership.left_out if name in before and name in asked - self.left_at.keys()}
        out -= {*record.lost}
        instead = {*membership.names} - {*before}
        excludes = self.scenario.exclude_suspects or self.scenario.exclude_sick
        if len(out) > len(instead) and not excludes:
            raise Violation(f"4: cycle {cycle} lacks {sorted(out)}, and has only {instead} instead")
        if set(membership.names) <= set(before):
            return
        by_name = {launcher.name: launcher for launcher in self.launchers}
        for name in before:
            node = by_name[name]
            plain = not node.gone and not node.suspended and not node.touched & {"cut", "slow", "suspended"}
            has_no_place = name not in {*membership.names, *membership.left_out, *record.lost, *self.left_at}
            if plain and has_no_place and not self._is_leaving(node):
                raise Violation(f"4: {name} trained, and has lost its place in cycle {cycle} to a spare")

    def _check_sick(self, cycle: int, membership: Membership) -> None:
        asked = entries(self.store.values[records.key("join", cycle)])
        sick = {name for name in membership.names if asked[name].get("sick")}
        if not sick or any(each.touched & ODD for each in self.launchers):
            return
        late = self.now - 2.0 - 4 * self.scenario.latency
        unfit = {name for name, _ in membership.unfit}
        able = {name for name in asked if name not in unfit | self.left_at.keys()}
        able = {name for name in able if self.asked_at.get((cycle, name), self.now) < late}
        if unused := able - set(membership.names):
            raise Violation(f"4: cycle {cycle} has {sorted(sick)}, which are sick, and not {sorted(unused)}")
        if self.scenario.exclude_sick and len(able) >= self.scenario.least:
            raise Violation(f"4: cycle {cycle} has {sorted(sick)}, which are sick, and needs none of them")

    @staticmethod
    def _is_leaving(node: Launcher) -> bool:
        return bool(node.touched & {"signalled", "excluded", "cannot start", "blocked"})

    def _check_go(self, cycle: int) -> None:
        formed = self.records[cycle].formed if cycle else 0
        members = Membership.decode(self.store.values[records.key("members", formed)]).names
        missing = set(members) - entries(self.store.values.get(records.key("ack", cycle), "")).keys()
        if missing:
            raise Violation(f"3: cycle {cycle} begins without {sorted(missing)}")

    def _check_record(self, record: CycleRecord) -> None:
        training = self._training()
        began = records.key("go", record.cycle - 1) in self.store.values
        if began or record.kind is Kind.JOIN:
            self.called_off = 0 if began else self.called_off + 1
        if self.called_off > records.CALL_OFF_BUDGET + 1:
            raise Violation(f"7: {self.called_off} cycles in a row were called off")
        if record.kind is Kind.RESTART:
            has_advanced = self.best > self.best_at_restart
            self.streak = 1 if has_advanced and self.scenario.reset else self.streak + 1
            self.best_at_restart = self.best
            if self.streak > self.scenario.max_restarts:
                raise Violation(f"6: restart {self.streak} without progress of {self.scenario.max_restarts}")
        if record.kind is Kind.RESTART or record.no_progress:
            self._check_progress(record)
        if record.kind is Kind.JOIN and record.joins and record.joins[-1] == record.at:
            self.joins.append(self.now)
            if len(self.joins) > 1 and self.joins[-1] - self.joins[-2] < 25.0:
                raise Violation(f"7: restarts to let nodes join at {self.joins[-2:]}")
        elif training is not None and self.now - training.able_since > self._under_way(record):
            if record.kind in (Kind.RESTART, Kind.JOIN):
                raise Violation(f"10: a healthy job is restarted: {record.reason}")
        if record.kind is Kind.END:
            self._check_job_end(record, training)

    def _check_progress(self, record: CycleRecord) -> None:
        most = self.scenario.most_stalled
        self.stalled = 0 if record.iteration > self.newest_read else self.stalled + 1
        self.newest_read = record.iteration
        if not record.no_progress:
            if 0 < most <= self.stalled and not self.scenario.unread:
                raise Violation(f"6a: a restart after {self.stalled} failed cycles without a new checkpoint")
            self.saved_at.append(self.saved())
            return
        saved = record.iteration if self._training() else self.saved()
        if not most or len(self.saved_at) < most or saved > self.saved_at[-most]:
            raise Violation(f"6a: the job ends for lack of progress: {self.saved_at} then {saved}")
        if record.exit_code != NO_RESTART:
            raise Violation(f"6a: without progress the job ends with {record.exit_code}")

    def _under_way(self, record: CycleRecord) -> float:
        """Seconds that a record may take to the store: the job may have begun to train meanwhile."""
        writer = next((node for node in self.launchers if node.name == record.node), None)
        return 3.0 if writer is None else max(3.0, 3 * (writer.latency + writer.oldest_answer))

    def _check_job_end(self, record: CycleRecord, training: Group | None) -> None:
        groups = [group for group in self.groups.values() if group.cycle == record.cycle - 1]
        ranks = [rank for group in groups for rank in group.ranks if rank.alive and not rank.blocked]
        running = any(not rank.launcher.suspended for rank in ranks)
        if record.exit_code == 0 and not record.preempted and (running or not self.finished):
            raise Violation(f"15: the job ends with 0 while its ranks train: {record.reason}")
        is_wanted = record.preempted or "requested it" in record.reason
        unable = [launcher for launcher in self.launchers if launcher.touched & {"cannot start", "blocked"}]
        if record.is_same_failure and not self.scenario.bug_at:
            raise Violation(f"6b: the job ends for other failures than one: {record.failure}")
        if not record.exit_code or is_wanted or unable or record.no_progress or record.is_same_failure:
            return
        if training is not None and self.now - training.able_since > 3.0:
            raise Violation(f"10: a healthy job is ended: {record.reason}")
        able = [node for node in self.launchers if node.alive and not node.stands_still and not node.no_store]
        able = [node for node in able if not self._is_leaving(node)]
        if len(able) >= self.scenario.least and record.restarts < self.scenario.max_restarts:
            raise Violation(f"10: a job is ended that could begin again: {record.reason}")

    def _training(self) -> Group | None:
        groups = self.groups.values()
        return next((each for each in groups if each.progresses and not each.finished), None)

    # -- what the nodes do --------------------------------------------------------------------------------------

    def on_start(self, launcher: Launcher, action: m.StartRanks) -> None:
        agreed = self.started.setdefault(action.cycle, (action.membership, action.address, action.port))
        if agreed != (action.membership, action.address, action.port):
            raise Violation(f"2: {launcher.name} starts otherwise than others: {action}, {agreed}")
        if launcher.name not in action.membership.names:
            raise Violation(f"2: {launcher.name} starts cycle {action.cycle}, in which it has no place")
        count = len(action.membership.members)
        if not self.scenario.least <= count <= self.scenario.most:
            raise Violation(f"2: cycle {action.cycle} has {count} nodes")
        running = [rank.local for rank in launcher.ranks if rank.alive]
        if running:
            raise Violation(f"8: {launcher.name} starts cycle {action.cycle} while its ranks {running} run")
        if action.cycle <= launcher.cycle:
            raise Violation(f"8: {launcher.name} starts cycle {action.cycle} after cycle {launcher.cycle}")

    def on_step(self, launcher: Launcher, before: type, event: m.Event, actions: list[m.Action]) -> None:
        self.steps += 1
        after = type(launcher.node.phase)
        if after is not before:
            self.transitions.add((before.__name__.upper(), trigger(event), after.__name__.upper()))
        phase = launcher.node.phase
        if after is Leave and before is Gather and phase.departs == "excluded":
            launcher.touched.add("excluded")
            formed = self.store.values.get(records.key("members", launcher.node.record.formed), "")
            if phase.code or not formed or launcher.name in Membership.decode(formed).names:
                raise Violation(f"4: {launcher.name} is sick and leaves with {phase.code}, with a place")
        if isinstance(event, m.Signal) and not event.by:
            self.signalled.setdefault(launcher.name, self.now)
        if isinstance(event, m.Requested) and isinstance(launcher.node.phase, Run | Settle | Stop):
            self.requested.setdefault(launcher.name, self.now)
        if isinstance(event, m.Verdict):
            self.evidence.add((launcher.name, launcher.cycle, "monitor"))
        for action in actions:
            match action:
                case m.Log(text):
                    masked = re.sub(r"\d+(\.\d+)?", "#", text)
                    self.log_texts.add(re.sub(r"(\bn#)(, n#)+", r"\1, ...", masked))
                case m.SignalRanks(number=15):
                    self._check_stop(launcher, preempts=action.seconds_left is not None)
                case m.KillRank():
                    self._check_kill(launcher, action)
                case m.TakeEvidence():
                    taken = (launcher.name, launcher.cycle, action.trigger)
                    if {taken, (launcher.name, launcher.cycle, "monitor")} & self.evidence:
                        raise Violation(f"11: {launcher.name} takes evidence twice in cycle {launcher.cycle}")
                    self.evidence.add(taken)

    def _check_stop(self, launcher: Launcher, *, preempts: bool) -> None:
        """10: ranks that train are stopped only for a record that stands, or a signal."""
        for rank in launcher.ranks:
            unsuspended = launcher.clock
            grace = self.scenario.stop_timeout if not preempts else 0.0
            self.asked_to_stop[(launcher.name, launcher.cycle, rank.local)] = unsuspended + grace
        group = next((rank.group for rank in launcher.ranks if rank.alive), None)
        if group is None or not group.progresses or group.finished:
            return
        is_due = launcher.cycle + 1 in self.records or isinstance(launcher.node.phase, Preempt)
        if is_due or (self.store.host is not None and self.store.host.gone):
            return
        raise Violation(f"10: {launcher.name} stops healthy ranks of cycle {launcher.cycle} without a reason")

    def _check_kill(self, launcher: Launcher, action: m.KillRank) -> None:
        key = (launcher.name, launcher.cycle, action.local)
        rank = launcher.ranks[action.local]
        if rank.ended_at is not None and (rank.has_raised or key not in self.asked_to_stop):
            limit = self.scenario.exit_timeout if rank.has_raised else self.scenario.finished_timeout
            if launcher.clock - rank.ended_at >= limit - 0.1:
                return
            if key not in self.asked_to_stop:
                raise Violation(f"9: {launcher.name} ends rank {rank.number} before its time to exit is over")
        early = self.asked_to_stop.get(key, 0.0) - (launcher.clock)
        if rank.saving and not isinstance(launcher.node.phase, Preempt):
            early += 30.0 - self.scenario.stop_timeout
        if early > 0.1:
            raise Violation(f"9: {launcher.name} kills rank {rank.number} {early:.1f} s before its time")

    def on_agreed(self, rank: SimRank) -> None:
        steps = self.agreed.setdefault(rank.group.cycle, set())
        steps.add(rank.stopped_at or 0)
        if len(steps) > 1:
            raise Violation(f"5: ranks of cycle {rank.group.cycle} stop at the steps {sorted(steps)}")

    def on_exit(self, launcher: Launcher) -> None:
        running = [rank for rank in launcher.ranks if rank.alive and not rank.blocked]
        if running:
            raise Violation(f"8: {launcher.name} leaves {len(running)} ranks behind")
        is_reachable = not launcher.touched & {"cut", "slow"} and not self._host_is_away
        is_quick = not self.lost_replies and self.scenario.latency < 0.5
        if launcher.name not in self.left_at and is_reachable and is_quick:
            raise Violation(f"12: {launcher.name} ends with {launcher.exit_code} and has not written why")
        able = len([other for other in self.launchers if not other.gone and not self._is_leaving(other)])
        has_failed = launcher.touched & {"cannot start", "blocked"} and launcher.name in self.left_at
        if launcher.exit_code == 1 and has_failed and able < self.scenario.least:
            self.failed_at = self.now if self.failed_at is None else self.failed_at
        if launcher.is_host:
            late = [other.name for other in self.launchers if self._is_waited_for(other)]
            if late and not launcher.touched & {"signalled", "slow"}:
                raise Violation(f"15: the store's host leaves before {late}")

    @property
    def _host_is_away(self) -> bool:
        host = self.store.host
        return host is None or host.gone or bool(host.touched & {"suspended", "vanished"})

    def _is_waited_for(self, other: Launcher) -> bool:
        is_there = not other.gone and not other.suspended and self.now - other.started > 5
        is_plain = not other.touched & {"suspended", "cut", "slow"}
        return is_there and is_plain and other.name not in self.left_at

    @property
    def _left(self) -> list[str]:
        """Launchers that have not ended."""
        return [launcher.name for launcher in self.launchers if not launcher.gone]

    def _ago(self, moment: float) -> float:
        """Seconds since then, without the time in which there were faults."""
        return self.now - max(moment, self.scenario.healed)

    # -- time ---------------------------------------------------------------------------------------------------

    def _every_second(self) -> None:
        self.after(1.0, self._every_second)
        for launcher in self.launchers:
            self._check_heartbeat(launcher)
            self._check_signalled(launcher)
            self._check_exits(launcher)
        self._check_waits()
        if self._could_train() or self._training():
            self.failed_at = None
        if self.failed_at is not None and self._ago(self.failed_at) > FAILED + 15.0 and self._left:
            raise Violation(f"14: too few nodes are left since {self.failed_at:.0f} s, and {self._left} wait")
        if self._training() or not self._could_train():
            self.idle_since = self.now
        elif self._ago(max(self.idle_since, self.injected_at)) > RECOVERY:
            raise Violation(f"13: the job does not train, though it could, since {self.idle_since:.1f}")

    def _check_waits(self) -> None:
        """12: no node waits for one that has left; 13: the job ends with the signal to the store's host."""
        for launcher in self.launchers if not self._host_is_away else ():
            if not launcher.alive or not isinstance(launcher.node.phase, Confirm) or launcher.touched & ODD:
                continue
            since = self.now - (launcher.clock - launcher.node.phase.since)
            names, limit = launcher.node.membership.names, 3.5 + 4 * self.scenario.latency
            gone = {name: max(self.left_at.get(name, self.now), since) for name in names}
            waited = [name for name, at in gone.items() if self.now - at > limit]
            if waited and not self.lost_replies:
                raise Violation(f"12: {launcher.name} waits for {waited}, which left")
        host = self.store.host
        began = self.signalled.get(host.name) if host is not None else None
        if began is not None and self._ago(began) > 2 * SIGNALLED and self._left:
            raise Violation(f"13: the store's host got a signal, and {self._left} run")

    def _check_signalled(self, launcher: Launcher) -> None:
        began = self.signalled.get(launcher.name, self.requested.get(launcher.name))
        if began is None or not launcher.alive or isinstance(launcher.node.phase, Leave):
            return
        ago = self.now - began
        limit = 5.0 + (30.0 if launcher.name in self.requested else 0.0)
        is_unmoved = isinstance(launcher.node.phase, Gather | Confirm | Start | Run | Settle) and ago > limit
        if is_unmoved or self._ago(began) > SIGNALLED:
            phase = type(launcher.node.phase).__name__
            raise Violation(
                f"13: {launcher.name} got a signal or a request {ago:.0f} s ago and is in {phase}"
            )

    def _check_heartbeat(self, launcher: Launcher) -> None:
        if not launcher.alive or self.scenario.is_alone or isinstance(launcher.node.phase, Leave):
            return
        silent = launcher.clock - launcher.node.beaten
        if silent > 3.0:
            raise Violation(f"16: {launcher.name} has sent no heartbeat for {silent:.1f} s")

    def _check_exits(self, launcher: Launcher) -> None:
        """9: a rank that an exception has ended does not stay."""
        limit = self.scenario.exit_timeout + 6.0
        for rank in launcher.ranks if launcher.alive and isinstance(launcher.node.phase, Run) else ():
            stays = rank.alive and rank.has_raised and not rank.is_blocked
            if (
                stays
                and rank.group.cycle == launcher.cycle
                and launcher.clock - (rank.ended_at or 0.0) > limit
            ):
                raise Violation(f"9: rank {rank.number} raised, and its process is not ended")

    def _could_train(self) -> bool:
        """Enough launchers are there that were not asked to leave, and the job has not ended."""
        if any(record.kind is Kind.END for record in self.records.values()) or self.finished:
            return False
        if self.store.host is None or self.store.host.gone or self.broken_rank_store:
            return False
        able = [each for each in self.launchers if not each.gone and not self._is_leaving(each)]
        return len(able) >= self.scenario.least

    def on_end(self) -> None:
        if self._left:
            raise Violation(f"13: {self._left} have not ended at {self.now:.0f} s")
        plain = [launcher for launcher in self.launchers if not launcher.touched & ODD]
        host = self.store.host
        end = host.exited_at if host is not None else 0.0
        plain = [each for each in plain if each.started < end - 8.0]  # a later one may not read the end
        codes = {launcher.exit_code for launcher in plain}
        is_preempted = any("signalled" in launcher.touched for launcher in self.launchers)
        silent = 3 * self.scenario.node_timeout
        was_away = host is None or "vanished" in host.touched or host.suspended_for >= silent
        if len(codes) > 1 and not is_preempted and not was_away:
            raise Violation(f"15: exit codes {[(launcher.name, launcher.exit_code) for launcher in plain]}")
        for launcher in plain:
            late = launcher.exited_at - (host.exited_at if host else 0.0)
            if host in plain and late > (8.0 if self.lost_replies else 1.5 + 4 * self.scenario.latency):
                raise Violation(f"15: {launcher.name} leaves {late:.2f} s after the store's host")
