"""What the parts of one node's agent have in common: the job, the ranks, and where events come from and go to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from holdfast.journal.writer import Journal

from ...monitor.control import ControlPage
from ..inbox import Inbox
from ..monitor_keeper import MonitorKeeper
from ..nodes.job import Job
from ..ranks.boards import CycleBoards
from ..ranks.environment import SupervisedLogs
from ..ranks.group import RankGroup
from ..warm.ahead import Ahead
from .contradictions import Advice

if TYPE_CHECKING:
    from .incidents import Incidents


@dataclass(frozen=True, slots=True)
class Rules:
    """What the user decided: seconds, counts and codes."""

    max_restarts: int
    reset_on_progress: bool
    term_timeout: float
    stop_timeout: float
    preempted_code: int
    safety_factor: float


class Surroundings(Protocol):
    """One node's agent, as its parts see it."""

    node: str
    rules: Rules
    job: Job
    boards: CycleBoards
    control: ControlPage
    monitor: MonitorKeeper
    journal: Journal
    inbox: Inbox
    advice: Advice
    logs: SupervisedLogs
    ahead: Ahead
    incidents: Incidents
    group: RankGroup | None  # the ranks that run now

    @property
    def spared(self) -> set[int]:
        """Children of this launcher that are no ranks, and that no rank has left behind."""

    def end_helpers(self) -> None:
        """End the threads that torch started beside the ranks."""

    @property
    def node_place(self) -> tuple[int, int]:
        """This node's number in the cycle, and how many nodes take part."""

    @property
    def ranks_wanted(self) -> int:
        """How many ranks each cycle has on this node."""
