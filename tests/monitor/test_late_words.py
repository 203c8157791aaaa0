"""What the launcher hears late: about a cycle that is over, or a second time from a new monitor.

The parts are the launcher's own; what the monitor says is put into the inbox as it would arrive.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from holdfast.fault_tolerance.board import Limits
from holdfast.fault_tolerance.config import FaultToleranceConfig
from holdfast.fault_tolerance.config_sources import FIELDS, ResolvedConfig
from holdfast.fault_tolerance.launcher.agent.contradictions import Advice
from holdfast.fault_tolerance.launcher.agent.cycle_watch import CycleWatch
from holdfast.fault_tolerance.launcher.agent.incidents import Incidents
from holdfast.fault_tolerance.launcher.agent.outcomes import Failed, Requested, Succeeded
from holdfast.fault_tolerance.launcher.agent.resume import Resume
from holdfast.fault_tolerance.launcher.inbox import Inbox
from holdfast.fault_tolerance.launcher.monitor_keeper import MonitorKeeper, MonitorSaid
from holdfast.fault_tolerance.launcher.nodes.job import Job, SingleNodeJob
from holdfast.fault_tolerance.launcher.nodes.records import FIRST, RESTART, NodesWaiting
from holdfast.fault_tolerance.launcher.ranks.boards import CycleBoards
from holdfast.fault_tolerance.launcher.ranks.group import RankGroup
from holdfast.journal.reader import read_run
from holdfast.journal.writer import Journal
from tests.processes import Spawned, Spawner, wait_until

from .node import Node
from .victims import victim

CYCLE = 1  # the one that runs
VERDICT = {"event": "verdict", "rank": 0, "local_rank": 0, "pid": 7, "text": "Did not get …", "limit": 1.0}
REQUEST = {"event": "request", "rank": 0, "pid": 7, "action": "shutdown_workload", "description": "no data"}


@dataclass
class Around:
    """What a cycle is watched with."""

    inbox: Inbox
    journal: Journal
    monitor: MonitorKeeper
    boards: CycleBoards
    job: Job
    advice: Advice
    node: str = "here"
    node_place: tuple[int, int] = (0, 1)
    group: RankGroup | None = None
    incidents: Incidents | None = None


@dataclass
class Watched:
    """A cycle of one rank, and how to say something and let the rank end."""

    around: Around
    watch: CycleWatch
    rank: Spawned
    run_dir: Path

    def says(self, **message: Any) -> None:
        self.around.inbox.post(MonitorSaid(message))

    def outcome(self) -> object:
        """How the cycle ends when its rank is killed now."""
        self.rank.process.kill()
        return self.watch.run()

    def recorded(self, kind: str) -> list[Any]:
        self.around.journal.close()
        return [event.get("cycle") for event in read_run(str(self.run_dir)) if event.kind == kind]


@pytest.fixture
def watched(node: Node, spawn: Spawner, tmp_path: Path) -> Iterator[Watched]:
    rank, job, run_dir = victim(spawn), SingleNodeJob(), tmp_path / "run"
    run_dir.mkdir(mode=0o700)
    job.advance(FIRST.next(RESTART, reason="a test", node="here", restarts=1))
    journal = Journal(str(run_dir), "here")
    around = Around(
        node.inbox,
        journal,
        node.keeper,
        CycleBoards(node.folder, Limits()),
        job,
        Advice(ResolvedConfig(FaultToleranceConfig(), dict.fromkeys(FIELDS, "default"))),
    )
    around.incidents = incidents = Incidents(around, str(run_dir), "a test")  # type: ignore[arg-type]
    around.group = group = RankGroup({0: rank.process}, {0: 0}, node.inbox)
    resume = Resume()
    resume.stopped()
    yield Watched(around, CycleWatch(around, group, resume), rank, run_dir)
    incidents.close()
    group.close()
    journal.close()


def test_a_verdict_of_this_cycle_explains_the_end(watched: Watched) -> None:
    verdict = {
        **VERDICT,
        "where": "",
        "connected": True,
        "finished": False,
        "state": "S",
        "for": 1.0,
        "step": None,
    }
    watched.says(**verdict, cycle=CYCLE)
    assert isinstance(watched.outcome(), Failed)
    assert set(watched.watch.known.verdicts) == {0}


@pytest.mark.parametrize(("script", "expected"), [("import sys; sys.exit(3)", Failed), ("pass", Succeeded)])
def test_an_exit_that_comes_together_with_news_that_can_wait(
    watched: Watched, spawn: Spawner, script: str, expected: type
) -> None:
    """A spare knocks once a second; the cycle is then watched on."""
    ended = spawn.python(script)
    group = RankGroup({0: ended.process}, {0: 0}, watched.around.inbox)
    wait_until(lambda: psutil.Process(ended.pid).status() == psutil.STATUS_ZOMBIE)
    watch = CycleWatch(watched.around, group, Resume())
    watched.around.inbox.post(NodesWaiting(CYCLE, 1))
    assert isinstance(watch.run(), NodesWaiting)
    assert isinstance(watch.run(), expected)
    group.close()


def test_a_verdict_of_a_cycle_that_is_over_explains_nothing_in_this_one(watched: Watched) -> None:
    """Two ranks hung at once: the first to be killed ended that cycle, the word on the second is read in the next."""
    watched.says(**VERDICT, cycle=CYCLE - 1)
    assert isinstance(watched.outcome(), Failed)
    assert watched.watch.known.verdicts == {}
    assert watched.recorded("verdict") == [CYCLE - 1]


@pytest.mark.parametrize(("cycle", "expected"), [(CYCLE, Requested), (CYCLE - 1, Failed)])
def test_a_request_counts_in_its_own_cycle(watched: Watched, cycle: int, expected: type) -> None:
    watched.says(**REQUEST, cycle=cycle)
    assert isinstance(watched.outcome(), expected)


def test_what_a_new_monitor_tells_again_is_recorded_once(watched: Watched) -> None:
    for _ in range(3):
        watched.says(event="rank_connect", rank=0, pid=7, cycle=CYCLE, at=time.monotonic())
        watched.says(event="first_step", rank=0, pid=7, cycle=CYCLE, at=time.monotonic(), step=3)
    watched.outcome()
    assert watched.recorded("rank_connect") == [CYCLE]
    assert watched.recorded("first_step") == [CYCLE]


def test_a_step_of_the_cycle_before_is_no_resume(watched: Watched) -> None:
    watched.says(event="first_step", rank=0, pid=7, cycle=CYCLE - 1, at=time.monotonic(), step=3)
    watched.outcome()
    assert watched.recorded("resume") == []
