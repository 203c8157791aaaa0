"""The one `RankMonitorClient` of a process, and the ranks' side group, shared by the callbacks that use them.

What always holds: the first callback of a fit begins supervision and the last one ends it, also when they are of two
trainers. Does not cover: a client that the program has made itself; only one may write the board, so that is an error
of the client's own.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import ClassVar

from holdfast.fault_tolerance import RankMonitorClient, RankMonitorClientError, environment
from holdfast.side_group import SideGroup

log = logging.getLogger("holdfast.ptl_resiliency")


class Supervision:
    """Get it with `join`; every `join` is followed by one `leave`."""

    _current: ClassVar[Supervision | None] = None

    def __init__(self) -> None:
        self.client = RankMonitorClient()
        self.client.init_workload_monitoring()
        try:
            self.side = SideGroup()
        except BaseException:
            self.client.shutdown_workload_monitoring()
            raise
        self.has_sections = False
        """A callback opens sections: the end of a "checkpointing" one says that a checkpoint is complete."""
        self._users: list[object] = []

    @classmethod
    def join(cls, user: object) -> Supervision:
        """Begin supervision, or take part in it. Collective over the ranks, as a side group is made.

        Raises RankMonitorClientError if the program was not started by `ft_launcher`.
        """
        current = cls._current
        if current is None or not current.client.is_initialized:
            current = cls._current = cls()
        current._users.append(user)
        return current

    def leave(self, user: object) -> None:
        """No more of this user; the last one ends supervision. May be called twice."""
        self._users = [each for each in self._users if each is not user]
        if self._users:
            return
        if Supervision._current is self:
            Supervision._current = None
        self.side.close()
        try:
            if self.client.is_initialized:
                self.client.end_all_sections()
            self.client.shutdown_workload_monitoring()
        except RankMonitorClientError as error:
            log.warning("supervision ended badly: %s", error)


def why_no_launcher(who: str) -> str:
    """What to run instead, if the program was not started by `ft_launcher`; else nothing."""
    if os.environ.get(environment.BOARD) is not None:
        return ""
    script = os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0].endswith(".py") else "script.py"
    return (
        f"{who} needs ft_launcher, which watches over the ranks, and this program was started without it "
        f"({environment.BOARD} is not set). Run `ft_launcher --nproc-per-node=N {script}` with N ranks on this node, "
        f"in place of `python {script}` or torchrun; or take the callback out of the trainer."
    )
