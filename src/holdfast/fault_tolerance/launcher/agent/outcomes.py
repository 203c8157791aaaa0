"""How the watching of a cycle can end. Values only; what follows from each is in :mod:`.decisions`."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from ..nodes.records import HostLost, Moved, NodeLost, NodesWaiting
from ..ranks.exits import RankExit


@dataclass(frozen=True, slots=True)
class Succeeded:
    """Every local rank ended with 0."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A rank failed; `exits` are the failures seen before any other rank was stopped."""

    exits: tuple[RankExit, ...]


@dataclass(frozen=True, slots=True)
class ToldToStop:
    """The launcher was asked to end (preemption, Ctrl-C); `by` names the rank or node that was, if not it itself."""

    number: signal.Signals
    by: str = ""


@dataclass(frozen=True, slots=True)
class Requested:
    """A rank asked for something: `action` is exclude_this_node or shutdown_workload."""

    action: str
    description: str
    rank: int


@dataclass(frozen=True, slots=True)
class StoreFailed:
    """The store in which the ranks of this cycle meet could not be started."""

    reason: str


Outcome = (
    Succeeded | Failed | ToldToStop | Requested | StoreFailed | Moved | NodeLost | HostLost | NodesWaiting
)
