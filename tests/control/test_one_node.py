"""A job of one node, event by event: exit codes, signals, grace periods, requests."""

from __future__ import annotations

import math
import signal
from collections.abc import Iterable
from typing import Any, TypeVar

import pytest

from holdfast.fault_tolerance.launcher.control import begin, step, watched_keys
from holdfast.fault_tolerance.launcher.control import messages as m
from holdfast.fault_tolerance.launcher.control.records import Member, Settings

T = TypeVar("T", bound=m.Action)


class Job:
    """The controller of a job of one node, whose store is a dictionary. Times are seconds since its start."""

    def __init__(self, ranks: int = 2, **settings: Any) -> None:
        values = {"stop_timeout": 5.0, "term_timeout": 20.0, "preempted_code": 75, **settings}
        self.now, self.store, self.read = 0.0, dict[str, str](), dict[str, str]()
        self.boards: dict[int, m.Board] = {}
        self.done: list[m.Action] = []
        self.node, actions = begin(Settings(Member("a", ranks), is_alone=True, **values), 0.0)
        self._carry_out(actions)

    def send(self, *events: m.Event, after: float = 0.0, **tick: Any) -> Job:
        """A tick `after` seconds later, then these events."""
        self.now += after
        for event in (m.Tick(boards=self.boards, **tick), *events):
            self._carry_out(step(self.node, event, self.now))
        return self

    def _carry_out(self, actions: Iterable[m.Action]) -> None:
        self.done += actions
        for action in actions:
            match action:
                case m.Cas(key, old, new):
                    if self.store.get(key, "") == old:
                        self.store[key] = new
                    self._carry_out(step(self.node, m.StoreView(key, self.store[key]), self.now))
                case m.Append(key, line):
                    self.store[key] = self.store.get(key, "") + line + "\n"
                case m.OpenRankStore(cycle):
                    self._carry_out(step(self.node, m.RankStoreOpen(cycle, "127.0.0.1", 1), self.now))
                case m.Sweep():
                    self._carry_out(step(self.node, m.Swept(), self.now))
        for key in list(watched_keys(self.node)):
            if self.read.get(key) != self.store.get(key, ""):
                self.read[key] = self.store.get(key, "")
                self._carry_out(step(self.node, m.StoreView(key, self.read[key]), self.now))

    def of(self, kind: type[T]) -> list[T]:
        """The actions of this kind."""
        return [action for action in self.done if isinstance(action, kind)]

    @property
    def codes(self) -> list[int]:
        """Exit codes: one, or none yet."""
        return [action.code for action in self.of(m.Exit)]

    def started(self) -> Job:
        """The ranks run."""
        return self.send(m.Started())


def exited(local: int, status: int, cause: m.Cause = m.Cause.OWN, **more: Any) -> m.RankExited:
    return m.RankExited(local, status, cause, f"ended with {status}", **more)


def test_job_whose_ranks_succeed_exits_with_0() -> None:
    job = Job().started().send(exited(0, 0)).send(exited(1, 0))
    assert job.codes == [0]
    assert job.of(m.Sweep) == [m.Sweep(30.0)], "what finished ranks left running has time to end"


def test_failed_rank_restarts_all_then_ends_the_job() -> None:
    job = Job(max_restarts=1).started().send(exited(0, 3)).send(exited(1, -15))
    assert [start.cycle for start in job.of(m.StartRanks)] == [0, 1]
    job.started().send(exited(1, 3)).send(exited(0, -15))
    assert job.codes == [3]
    assert [report.failed for report in job.of(m.Report)] == [(0,), (1,)]


@pytest.mark.parametrize(
    ("first", "second", "code"), [(42, 42, 42), (-9, 137, 137), (3, 4, 1), (-15, -15, 143), (-9, 0, 137)]
)
def test_code_of_ranks_that_fail_at_once(first: int, second: int, code: int) -> None:
    """No launcher was asked to stop."""
    job = Job().started().send(exited(0, first), exited(1, second)).send(after=0.3)
    assert job.send(after=1.0).codes == [code]


def test_rank_that_dies_of_sigterm_alone_has_failed() -> None:
    """No launcher was asked to stop."""
    job = Job(max_restarts=1).started().send(exited(0, -15)).send(after=0.3).send(exited(1, -15))
    assert [start.cycle for start in job.of(m.StartRanks)] == [0, 1]


def test_rank_that_ends_while_others_start_counts() -> None:
    job = Job().send(exited(0, 1)).started()
    assert job.send(exited(1, -15)).codes == [1]


def test_cause_that_follows_its_victims_gives_the_code() -> None:
    """The victim's exception comes first: for a second its peer may still turn out to be the cause."""
    job = Job().started().send(exited(0, 1, m.Cause.LOST_PEER))
    assert not job.of(m.Report)
    job.send(exited(1, 3), after=0.5)
    assert job.codes == [3]
    assert job.of(m.Report)[0].failed == (1, 0)


def test_lost_peer_alone_is_reported_after_a_second() -> None:
    job = Job().started().send(exited(0, 1, m.Cause.LOST_PEER)).send(after=1.1)
    assert job.send(exited(1, -15)).codes == [1]
    assert job.of(m.Report)[0].failed == (0,)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
def test_signal_is_passed_on_and_gives_its_code(number: int, code: int) -> None:
    job = Job().started().send(m.Signal(number))
    assert job.of(m.SignalRanks) == [m.SignalRanks(number, 20.0)]
    job.send(exited(0, 0), after=15.0).send(exited(1, -number))
    assert job.codes == [code]
    assert job.of(m.KillRank) == []


@pytest.mark.parametrize(
    ("cause", "peer", "code"),
    [
        (m.Cause.LOST_PEER, -15, 75),
        (m.Cause.TIMED_OUT, -15, 75),  # gloo may miss that its peer is gone
        (m.Cause.TIMED_OUT, 1, 1),
        (m.Cause.OWN, -15, 1),
    ],
)
def test_rank_that_lost_one_that_obeyed_a_signal_has_not_failed(cause: m.Cause, peer: int, code: int) -> None:
    job = Job().started().send(m.Signal(signal.SIGTERM)).send(exited(0, peer, cause))
    assert job.send(exited(1, 1, cause), after=19.0).codes == [code]


def test_what_preempted_ranks_left_running_has_time_to_end() -> None:
    job = Job().started().send(m.Signal(signal.SIGTERM)).send(exited(0, 0)).send(exited(1, 0))
    assert job.of(m.Sweep) == [m.Sweep(20.0)], "as long as --term-timeout"


def test_signal_that_reaches_the_ranks_first_is_no_failure() -> None:
    job = Job().started().send(exited(0, -15)).send(m.Signal(signal.SIGTERM), after=0.1)
    assert job.send(exited(1, 0)).codes == [75]


def test_rank_that_outlives_the_term_timeout_is_killed() -> None:
    job = Job().started().send(m.Signal(signal.SIGTERM)).send(after=19.9)
    assert job.of(m.KillRank) == []
    job.send(after=0.2)
    assert [kill.local for kill in job.of(m.KillRank)] == [0, 1]
    assert job.send(exited(0, -9)).send(exited(1, -9)).codes == [137]


def test_second_ctrl_c_kills_at_once() -> None:
    job = (
        Job(term_timeout=math.inf)
        .started()
        .send(m.Signal(signal.SIGINT))
        .send(m.Signal(signal.SIGINT), after=0.5)
    )
    assert [kill.local for kill in job.of(m.KillRank)] == [0, 1]
    assert job.send(exited(0, -9)).send(exited(1, -9)).codes == [130]


def test_signal_during_a_stop_keeps_the_code_of_the_failure() -> None:
    job = Job().started().send(exited(0, 3)).send(m.Signal(signal.SIGTERM))
    assert job.send(exited(1, -15)).codes == [3]


@pytest.mark.parametrize(("number", "killed", "code"), [(signal.SIGTERM, [], 75), (signal.SIGINT, [1], 130)])
def test_signal_during_a_restart_gives_its_time_and_ends_the_job(
    number: int, killed: list[int], code: int
) -> None:
    """Ctrl-C leaves no time: the ranks were asked to end before it."""
    job = Job(max_restarts=1).started().send(exited(0, 3)).send(m.Signal(number), after=1.0)
    job.send(after=15.0)
    found = [kill.local for kill in job.of(m.KillRank)]
    assert found == killed, "--term-timeout counts, not the grace period of a restart"
    assert job.send(exited(1, 0)).codes == [code]


def test_usr1_is_passed_on_and_ends_the_job_if_ranks_die_of_it() -> None:
    job = Job().started().send(m.Signal(signal.SIGUSR1))
    assert job.of(m.SignalRanks) == [m.SignalRanks(signal.SIGUSR1)]
    job.send(exited(0, -signal.SIGUSR1)).send(exited(1, -signal.SIGUSR1))
    assert job.codes == [75]


def test_hung_ranks_have_one_grace_period() -> None:
    """The monitor ends one; the others get SIGTERM at once, and each rank is killed at the same moment."""
    job = Job(ranks=3, max_restarts=1).started().send(m.Verdict(0, "hung")).send(after=1.1).send(after=5.1)
    assert [kill.local for kill in job.of(m.KillRank)] == [0, 1, 2]
    assert job.of(m.TakeEvidence) == [], "the monitor has taken it"


def test_rank_that_saves_has_30_seconds() -> None:
    job = Job(max_restarts=1).started()
    job.boards = {1: m.Board(is_saving=True)}
    job.send(exited(0, 1), m.EvidenceTaken(0, "crash")).send(after=29.0)
    assert job.of(m.KillRank) == []
    job.send(after=1.1)
    assert [kill.local for kill in job.of(m.KillRank)] == [1]


def test_rank_that_sigkill_does_not_end_ends_the_job() -> None:
    job = Job(max_restarts=1).started().send(exited(0, 1), m.EvidenceTaken(0, "crash")).send(after=5.1)
    for _ in range(12):
        job.send(after=1.0, blocked=frozenset({1}))
    assert job.codes == [1]
    assert "did not end even by SIGKILL" in job.store["left"]


@pytest.mark.parametrize(("action", "code"), [("exclude_this_node", 1), ("shutdown_workload", 93)])
def test_request_of_a_rank_ends_a_job_of_one_node(action: str, code: int) -> None:
    job = Job(max_restarts=3).started().send(m.Requested(0, action, "bad GPU"))
    assert job.send(exited(0, -15)).send(exited(1, -15)).codes == [code]
    assert len(job.of(m.StartRanks)) == 1


def test_ranks_that_cannot_be_started_end_the_job() -> None:
    job = Job(max_restarts=3).send(m.Started("no process can be started"))
    assert job.codes == [1]
    assert "no process can be started" in job.store["left"]


def test_launcher_that_failed_writes_why() -> None:
    job = Job().started().send(m.LauncherFailed("KeyError('x')"))
    assert job.codes == [1]
    assert "KeyError" in job.store["left"]


def test_rank_store_that_fails_restarts_the_ranks() -> None:
    job = Job(max_restarts=1).started().send(rank_store="the store has failed")
    job.send(exited(0, -15)).send(exited(1, -15))
    assert [start.cycle for start in job.of(m.StartRanks)] == [0, 1]


@pytest.mark.parametrize("before", [0.3, -0.3], ids=["before the signal", "after it"])
def test_failure_at_the_time_of_a_signal_leaves_the_others_30_seconds(before: float) -> None:
    """They may wait for the dead rank in a collective, and never save."""
    job = Job(term_timeout=1800.0).started()
    failed, stop = exited(0, 1, m.Cause.LOST_PEER), m.Signal(signal.SIGTERM)
    first, second = (failed, stop) if before > 0 else (stop, failed)
    job.send(first).send(second, after=0.3).send(after=29.0)
    assert not job.of(m.KillRank)
    assert [action.local for action in job.send(after=1.1).of(m.KillRank)] == [1]


def test_signal_in_a_stop_after_a_failure_gives_30_seconds() -> None:
    """The ranks may wait for the dead one in a collective, so an infinite --term-timeout does not count."""
    job = Job(max_restarts=1, term_timeout=math.inf).started().send(exited(0, 1), m.EvidenceTaken(0, "crash"))
    job.send(m.Signal(signal.SIGTERM)).send(after=29.0)
    assert job.of(m.KillRank) == []
    job.send(after=1.1)
    assert [kill.local for kill in job.of(m.KillRank)] == [1]


FILE = {"iteration_file": "/ckpt/latest", "most_stalled": 2, "no_restart_code": 42, "max_restarts": 9}


def test_job_without_a_new_checkpoint_ends_with_its_code() -> None:
    """Each failure waits for the number; the exit code is the agreed one, not the ranks'."""
    job = Job(1, **FILE)
    assert job.of(m.ReadIteration) == [m.ReadIteration(0)] and not job.of(m.StartRanks)
    job.send(m.IterationRead(0, 500)).started()
    for cycle, number in enumerate([600, 600, 600]):
        job.send(exited(0, 7))
        assert len(job.of(m.StartRanks)) == cycle + 1 and not job.codes, "the number is not there yet"
        job.send(m.IterationRead(cycle, number)).started()
    assert job.codes == [42]
    assert len(job.of(m.StartRanks)) == 3


def test_file_that_is_not_read_in_time_ends_nothing() -> None:
    job = Job(1, **FILE).send(after=1.0).started()
    for cycle in range(4):
        job.send(exited(0, 7)).send(after=1.0).send(after=1.0).started()
        assert len(job.of(m.StartRanks)) == cycle + 2
    assert job.codes == []


def test_number_that_comes_too_late_does_not_count() -> None:
    """An answer for the cycle before is dropped."""
    job = Job(1, **FILE).send(m.IterationRead(0, 500)).started().send(exited(0, 7)).send(after=1.0)
    job.started().send(exited(0, 7)).send(m.IterationRead(0, 500))
    assert len(job.of(m.StartRanks)) == 2, "it waits for its own"


def test_request_while_ranks_start_holds() -> None:
    job = Job(max_restarts=1).send(m.Requested(0, "exclude_this_node", "bad GPU")).started()
    assert job.send(exited(0, -15)).send(exited(1, -15)).codes == [1]


def test_shutdown_request_wins_over_a_signal() -> None:
    job = Job().started().send(m.Signal(signal.SIGTERM)).send(m.Requested(0, "shutdown_workload", "done"))
    assert job.send(exited(0, 0)).send(exited(1, 0)).codes == [93]
