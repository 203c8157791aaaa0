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

    def play(self, *story: m.Event | float) -> Job:
        """Each event after a tick; a number is a pause in seconds."""
        for each in story:
            self.send(after=each) if isinstance(each, float) else self.send(each)
        return self

    @property
    def killed(self) -> list[int]:
        """Local ranks that got SIGKILL."""
        return [action.local for action in self.of(m.KillRank)]

    @property
    def cycles(self) -> list[int]:
        """The cycles whose ranks were started."""
        return [action.cycle for action in self.of(m.StartRanks)]


def exited(local: int, status: int, cause: m.Cause = m.Cause.OWN, **more: Any) -> m.RankExited:
    return m.RankExited(local, status, cause, f"ended with {status}", **more)


RUN, TERM, INT, USR1 = m.Started(), *map(m.Signal, (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1))
FAILED = exited(0, 1), m.EvidenceTaken(0, "crash")
LOST_A_PEER = exited(0, 1, m.Cause.LOST_PEER)
EXCLUDE, SHUT_DOWN = (
    m.Requested(0, "exclude_this_node", "bad GPU"),
    m.Requested(0, "shutdown_workload", "done"),
)

CODES: dict[str, tuple[list[m.Event | float], int]] = {
    "a rank ends while others start": ([exited(0, 1), RUN, exited(1, -15)], 1),
    "a signal reaches a rank first": ([RUN, exited(0, -15), 0.1, TERM, exited(1, 0)], 75),
    "a rank outlives --term-timeout": ([RUN, TERM, 20.1, exited(0, -9), exited(1, -9)], 137),
    "a signal during a stop": ([RUN, exited(0, 3), TERM, exited(1, -15)], 3),
    "ranks die of SIGUSR1": ([RUN, USR1, exited(0, -signal.SIGUSR1), exited(1, -signal.SIGUSR1)], 75),
}


@pytest.mark.parametrize("story", CODES)
def test_job_ends_with_its_code(story: str) -> None:
    events, code = CODES[story]
    assert Job().play(*events).codes == [code]


@pytest.mark.parametrize(
    ("story", "code"),
    [([RUN, EXCLUDE], 1), ([EXCLUDE, RUN], 1), ([RUN, SHUT_DOWN], 93), ([RUN, TERM, SHUT_DOWN], 93)],
)
def test_request_of_a_rank_ends_a_job_of_one_node(story: list[m.Event], code: int) -> None:
    """Also while the ranks start, and after a signal."""
    job = Job(max_restarts=3).play(*story, exited(0, -15), exited(1, -15))
    assert job.codes == [code] and job.cycles == [0]


@pytest.mark.parametrize(("signals", "code", "linger"), [([], 0, 30.0), ([TERM], 75, 20.0)])
def test_what_finished_ranks_left_running_has_time_to_end(
    signals: list[m.Event], code: int, linger: float
) -> None:
    """As long as --term-timeout after a signal."""
    job = Job().play(RUN, *signals, exited(0, 0), exited(1, 0))
    assert job.codes == [code] and job.of(m.Sweep) == [m.Sweep(linger)]


def test_failed_rank_restarts_all_then_ends_the_job() -> None:
    job = Job(max_restarts=1).play(RUN, exited(0, 3), exited(1, -15))
    assert job.cycles == [0, 1]
    job.play(RUN, exited(1, 3), exited(0, -15))
    assert job.codes == [3]
    assert [report.failed for report in job.of(m.Report)] == [(0,), (1,)]


@pytest.mark.parametrize(
    ("first", "second", "code"), [(42, 42, 42), (-9, 137, 137), (3, 4, 1), (-15, -15, 143), (-9, 0, 137)]
)
def test_code_of_ranks_that_fail_at_once(first: int, second: int, code: int) -> None:
    """No launcher was asked to stop."""
    job = Job().started().send(exited(0, first), exited(1, second)).play(0.3, 1.0)
    assert job.codes == [code]


def test_rank_that_dies_of_sigterm_alone_has_failed() -> None:
    """No launcher was asked to stop."""
    assert Job(max_restarts=1).play(RUN, exited(0, -15), 0.3, exited(1, -15)).cycles == [0, 1]


def test_rank_store_that_fails_restarts_the_ranks() -> None:
    job = Job(max_restarts=1).started().send(rank_store="the store has failed")
    assert job.play(exited(0, -15), exited(1, -15)).cycles == [0, 1]


def test_cause_that_follows_its_victims_gives_the_code() -> None:
    """The victim's exception comes first: for a second its peer may still turn out to be the cause."""
    job = Job().play(RUN, LOST_A_PEER)
    assert not job.of(m.Report)
    job.send(exited(1, 3), after=0.5)
    assert job.codes == [3]
    assert job.of(m.Report)[0].failed == (1, 0)


def test_lost_peer_alone_is_reported_after_a_second() -> None:
    job = Job().play(RUN, LOST_A_PEER, 1.1, exited(1, -15))
    assert job.codes == [1] and job.of(m.Report)[0].failed == (0,)


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
    job = Job().play(RUN, TERM, exited(0, peer, cause), 19.0, exited(1, 1, cause))
    assert job.codes == [code]


KILLS: dict[str, tuple[dict[str, Any], list[m.Event | float], float, float, list[int]]] = {
    "--term-timeout": ({}, [TERM], 19.9, 0.2, [0, 1]),
    "a section in which a rank saves": ({"max_restarts": 1}, [*FAILED], 29.0, 1.1, [1]),
    "a failure and a signal": ({"term_timeout": 1800.0}, [LOST_A_PEER, 0.3, TERM], 29.0, 1.1, [1]),
    "a signal and a failure": ({"term_timeout": 1800.0}, [TERM, 0.3, LOST_A_PEER], 29.0, 1.1, [1]),
    "a signal in a stop": ({"max_restarts": 1, "term_timeout": math.inf}, [*FAILED, TERM], 29.0, 1.1, [1]),
}


@pytest.mark.parametrize("story", KILLS)
def test_ranks_are_killed_after_their_time(story: str) -> None:
    """After a failure 30 s: they may wait for the dead rank in a collective, and never save."""
    settings, events, quiet, more, killed = KILLS[story]
    job = Job(**settings).started()
    if "saves" in story:
        job.boards = {1: m.Board(is_saving=True)}
    assert job.play(*events, quiet).killed == []
    assert job.play(more).killed == killed


def test_second_ctrl_c_kills_at_once() -> None:
    assert Job(term_timeout=math.inf).play(RUN, INT, 0.5, INT).killed == [0, 1]


@pytest.mark.parametrize(("event", "killed", "code"), [(TERM, [], 75), (INT, [1], 130)])
def test_signal_during_a_restart_gives_its_time_and_ends_the_job(
    event: m.Event, killed: list[int], code: int
) -> None:
    """Ctrl-C leaves no time: the ranks were asked to end before it."""
    job = Job(max_restarts=1).play(RUN, exited(0, 3), 1.0, event, 15.0)
    assert job.killed == killed, "--term-timeout counts, not the grace period of a restart"
    assert job.play(exited(1, 0)).codes == [code]


def test_hung_ranks_have_one_grace_period() -> None:
    """The monitor ends one; the others get SIGTERM at once, and each rank is killed at the same moment."""
    job = Job(ranks=3, max_restarts=1).play(RUN, m.Verdict(0, "hung"), 1.1, 5.1)
    assert job.killed == [0, 1, 2]
    assert job.of(m.TakeEvidence) == [], "the monitor has taken it"


def test_rank_that_sigkill_does_not_end_ends_the_job() -> None:
    job = Job(max_restarts=1).play(RUN, *FAILED, 5.1)
    for _ in range(12):
        job.send(after=1.0, blocked=frozenset({1}))
    assert job.codes == [1]
    assert "did not end even by SIGKILL" in job.store["left"]


@pytest.mark.parametrize(
    ("story", "why"),
    [
        ([m.Started("no process can be started")], "no process can be started"),
        ([RUN, m.LauncherFailed("KeyError('x')")], "KeyError"),
    ],
)
def test_launcher_that_cannot_continue_writes_why(story: list[m.Event], why: str) -> None:
    job = Job(max_restarts=3).play(*story)
    assert job.codes == [1] and why in job.store["left"]


FILE = {"iteration_file": "/ckpt/latest", "most_stalled": 2, "no_restart_code": 42, "max_restarts": 9}


def test_job_without_a_new_checkpoint_ends_with_its_code() -> None:
    """Each failure waits for the number; the exit code is the agreed one, not the ranks'."""
    job = Job(1, **FILE)
    assert job.of(m.ReadIteration) == [m.ReadIteration(0)] and not job.cycles
    job.play(m.IterationRead(0, 500), RUN)
    for cycle, number in enumerate([600, 600, 600]):
        job.send(exited(0, 7))
        assert len(job.cycles) == cycle + 1 and not job.codes, "the number is not there yet"
        job.play(m.IterationRead(cycle, number), RUN)
    assert job.codes == [42] and len(job.cycles) == 3


def test_number_that_comes_too_late_does_not_count() -> None:
    """An answer for the cycle before is dropped."""
    job = Job(1, **FILE).play(m.IterationRead(0, 500), RUN, exited(0, 7), 1.0)
    assert len(job.play(RUN, exited(0, 7), m.IterationRead(0, 500)).cycles) == 2, "it waits for its own"
