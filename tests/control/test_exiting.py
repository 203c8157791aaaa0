"""Ranks whose main thread has ended and whose process stays: when each is reported and ended, second by second."""

from __future__ import annotations

import math
import signal
from typing import Any

import pytest

from holdfast.fault_tolerance.launcher.control import messages as m
from holdfast.fault_tolerance.launcher.control import next_deadline
from holdfast.fault_tolerance.launcher.ranks.prologue import main_end

from .test_one_node import Job, exited

RAISED = m.RankFailing(0, m.Cause.OWN, "ValueError: bad batch")
DESCRIBED = m.ExitDescribed(0, 0, "it waits for thread 'upload'")


class Ending(Job):
    """A job of two ranks, of which rank 0's main thread ended at second 0."""

    def __init__(self, *, has_raised: bool, **settings: Any) -> None:
        super().__init__(**settings)
        self.has_raised = has_raised
        self.started()
        self.at(0.0, *([RAISED] if has_raised else []))

    def at(self, now: float, *events: m.Event, since: float = 0.0, is_saving: bool = False) -> Ending:
        """The boards at this second, then these events; the time to end runs from `since` on."""
        self.boards = {
            0: m.Board(ended_for=now - since, has_raised=self.has_raised, is_saving=is_saving),
            1: m.Board(),
        }
        self.send(*events, after=now - self.now)
        return self

    @property
    def sent(self) -> list[int]:
        """Signals to rank 0 alone."""
        return [action.number for action in self.of(m.KillRank) if action.local == 0]


def test_rank_that_raised_is_described_then_killed_then_restarted() -> None:
    job = Ending(has_raised=True, exit_timeout=10.0, max_restarts=1).at(9.9)
    assert not job.of(m.DescribeExit) and next_deadline(job.node) == pytest.approx(10.0)
    job.at(10.0)
    assert job.of(m.DescribeExit) == [m.DescribeExit(0)] and not job.sent
    job.at(10.1, DESCRIBED)
    assert job.sent == [signal.SIGKILL]
    assert not job.of(m.ReportExits), "that of the failure follows"
    job.at(10.2, exited(0, -9)).send(exited(1, -15), after=1.0)
    assert job.cycles == [0, 1]
    assert "ValueError: bad batch; its process did not end: it waits" in job.node.record.reason


def test_rank_whose_description_never_comes_is_killed() -> None:
    job = Ending(has_raised=True, exit_timeout=10.0).at(10.0).at(11.9)
    assert not job.sent
    assert job.at(12.0).sent == [signal.SIGKILL]


def test_rank_that_raised_and_ends_by_itself_is_not_killed() -> None:
    job = Ending(has_raised=True, exit_timeout=10.0).at(3.0, exited(0, 1))
    assert job.send(exited(1, -15), after=2.0).codes == [1] and not job.sent


def test_rank_that_saves_at_its_exit_has_the_time_of_the_section() -> None:
    job = Ending(has_raised=True, exit_timeout=10.0).at(5.0, is_saving=True).at(300.0, is_saving=True)
    job.at(301.0, since=300.5).at(310.0, since=300.5)
    assert not job.of(m.DescribeExit)
    assert job.at(310.6, since=300.5).of(m.DescribeExit)


def test_rank_that_saves_or_has_no_exit_timeout_is_not_killed() -> None:
    job = Ending(has_raised=True, exit_timeout=0.001).at(0.0005, is_saving=True)
    assert not job.at(5.0, is_saving=True).sent
    assert not Ending(has_raised=True, exit_timeout=math.inf).at(1e6).sent


def test_finished_rank_is_described_once_and_never_ended() -> None:
    job = Ending(has_raised=False).at(59.9)
    assert not job.of(m.DescribeExit)
    job.at(60.0).at(61.0, DESCRIBED).at(5000.0)
    assert job.of(m.DescribeExit) == [m.DescribeExit(0)] and not job.sent
    (delayed,) = [action for action in job.of(m.Journal) if action.kind == "exit_delayed"]
    assert delayed.fields["seconds"] == 61.0 and not delayed.fields["has_raised"]
    assert job.of(m.ReportExits) == [
        m.ReportExits("rank 0 (pid 0) has not ended 61 s after its script finished")
    ]


@pytest.mark.parametrize("limit", [20.0, math.inf])
def test_finished_rank_that_saves_is_reported_late_and_not_ended(limit: float) -> None:
    job = Ending(has_raised=False, finished_timeout=limit).at(599.9, is_saving=True)
    assert not job.of(m.DescribeExit)
    job.at(600.0, is_saving=True).at(601.0, DESCRIBED, is_saving=True).at(5000.0, is_saving=True)
    assert not job.sent
    (report,) = job.of(m.ReportExits)
    assert "601 s after its script finished, and its section 'checkpointing' is open" in report.why
    assert bool(job.at(5100.0, since=5001.0).sent) == (limit == 20.0)  # it has saved, and stays


def test_finished_ranks_of_the_same_moment_have_one_report() -> None:
    job = Ending(has_raised=False)
    job.boards = {local: m.Board(ended_for=60.0) for local in range(2)}
    job.send(after=60.0).send(m.ExitDescribed(0, 1, "it waits"), after=0.1)
    assert not job.of(m.ReportExits)
    assert len(job.send(DESCRIBED, after=0.1).of(m.ReportExits)) == 1


class Last(Job):
    """A job of two ranks, of which rank 1 has ended with 0 at second 0, and rank 0 does nothing."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.started().send(exited(1, 0), cpu=0.0)

    def idle(self, seconds: int, cpu: float = 0.0, **board: Any) -> Last:
        """So many seconds, and the rank's last heartbeat was at their begin."""
        for second in range(1, seconds + 1):
            self.boards = {0: m.Board(**{"idle_for": float(second), **board})}
            self.send(after=1.0, cpu=cpu)
        return self


def test_last_rank_that_does_nothing_is_reported_once_and_never_ended() -> None:
    job = Last().idle(59)
    assert not job.of(m.DescribeExit)
    job.idle(61).send(DESCRIBED, cpu=0.0).idle(5000)  # type: ignore[attr-defined]
    assert job.of(m.DescribeExit) == [m.DescribeExit(0)] and not job.of(m.KillRank)
    (report,) = job.of(m.ReportExits)
    assert "has done nothing for" in report.why and "all others have ended with exit code 0" in report.why
    assert job.send(exited(0, 0)).codes == [0]


@pytest.mark.parametrize(
    ("state", "is_reported"),
    [
        ({"cpu": 1.0}, False),
        ({"idle_for": 1.0}, False),
        ({"is_saving": True}, False),
        ({"idle_for": None}, True),
    ],
    ids=["computes", "beats", "saves", "has no client"],
)
def test_last_rank_is_reported_if_it_does_nothing(state: dict[str, Any], *, is_reported: bool) -> None:
    assert bool(Last().idle(300, **state).of(m.DescribeExit)) is is_reported


def test_idle_ranks_of_which_none_has_ended_are_left_alone() -> None:
    job = Job().started()
    for _ in range(300):
        job.send(after=1.0, cpu=0.0)
    assert not job.of(m.DescribeExit)


@pytest.mark.parametrize(("status", "code"), [(0, 0), (-2, 0), (-9, 0), (3, 3)])
def test_finished_rank_beyond_its_limit_is_interrupted(status: int, code: int) -> None:
    """Its exit code counts if it gives one: a script that calls `sys.exit(3)` has not succeeded."""
    job = Ending(has_raised=False, finished_timeout=20.0).at(20.0).at(20.1, DESCRIBED)
    assert job.sent == [signal.SIGINT]
    assert job.at(25.0).sent == [signal.SIGINT]
    assert job.at(25.2).sent == [signal.SIGINT, signal.SIGKILL]
    job.at(25.3, exited(0, status)).send(exited(1, 0), after=2.0)
    assert job.codes == [code]


def test_rank_that_raised_in_a_preemption_has_its_time() -> None:
    """Another thread may still save."""
    job = Ending(has_raised=True, exit_timeout=10.0, term_timeout=600.0).at(1.0, m.Signal(signal.SIGTERM))
    assert not job.at(599.0).sent
    assert job.at(601.1).sent == [signal.SIGKILL]


def test_rank_that_raised_and_outlives_sigkill_is_not_waited_for() -> None:
    """Its state is D: the node leaves the job."""
    job = Ending(has_raised=True, exit_timeout=10.0).at(10.0).at(10.1, DESCRIBED).at(12.0)
    job.send(exited(1, -15), after=1.0)
    for _ in range(30):
        job.send(after=1.0, blocked=frozenset({0}))
    assert job.codes == [1]


def test_ranks_that_raised_are_killed_at_once() -> None:
    job = Ending(has_raised=True, exit_timeout=10.0).at(10.0)
    job.boards = {local: m.Board(ended_for=10.0, has_raised=True) for local in range(2)}
    job.send().send(m.ExitDescribed(0, 1, "it waits"))
    assert not job.sent
    job.send(DESCRIBED)
    assert job.killed == [0, 1]


def test_rank_that_is_killed_before_its_exception_arrived_ends_the_job_with_1() -> None:
    job = Ending(has_raised=False, exit_timeout=0.0)
    job.has_raised = True
    job.at(0.1)
    assert job.sent == [signal.SIGKILL] and not job.of(m.DescribeExit)
    job.at(0.2, exited(0, -9, has_raised=True)).send(exited(1, -15), after=1.0)
    assert job.codes == [1]


def test_thread_that_trains_after_the_main_thread_records_nothing() -> None:
    from holdfast.fault_tolerance.launcher.recorder import decision_state

    job = Ending(has_raised=False).at(1.0, since=0.5)
    before = decision_state(job.node)
    assert decision_state(job.at(30.0, since=29.5).node) == before


def test_prologue_and_board_agree_on_the_mark() -> None:
    from holdfast.fault_tolerance.board import layout

    ours = main_end.MAGIC, main_end.VERSION, main_end.P_VERSION, main_end.P_PID, main_end.MAIN_ENDED
    assert ours == (layout.MAGIC, layout.VERSION, layout.P_VERSION, layout.P_PID, layout.MAIN_ENDED)
    assert main_end.WORD == layout.WORD
