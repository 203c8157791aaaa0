"""What a rank may ask of its launcher about the job as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from .board import Request


class WorkloadAction(Enum):
    """Continue: nothing special. ExcludeThisNode: this node's launcher leaves the job, the others carry on if
    `--nnodes min:max` allows. ShutdownWorkload: the whole job ends and is not restarted."""

    Continue = 0
    ExcludeThisNode = 1
    ShutdownWorkload = 2


_ON_THE_BOARD = {
    WorkloadAction.Continue: "continue",
    WorkloadAction.ExcludeThisNode: "exclude_this_node",
    WorkloadAction.ShutdownWorkload: "shutdown_workload",
}


@dataclass
class WorkloadControlRequest:
    """An action and, in the program's own words, why. The launcher repeats the first 1024 bytes of the words."""

    action: WorkloadAction
    description: str = "no reason given"

    def on_the_board(self) -> Request:
        """The request as the board carries it."""
        return Request(_ON_THE_BOARD[self.action], self.description)

    def __str__(self) -> str:
        return f"{self.action.name}: {self.description}"
