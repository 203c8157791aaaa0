"""Learned limits on their way between jobs: the state's folder, what rank 0 reads there, what it writes.

What always holds: every rank has what rank 0 read, so all have the same limits even where only rank 0 sees the folder
(a disk of its node); a state that cannot be read or written is said and stops nothing. Only a folder that cannot be
had is an error, on all ranks, at the start. Does not cover: rank 0 on another node in the next job, without a shared
folder: the limits are learned anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.side_group import Disagreement, SideGroup

from . import state_file

if TYPE_CHECKING:
    import logging

    Log = logging.Logger | logging.LoggerAdapter[Any]

HEARTBEAT, SECTION = "heartbeat", "section"
_MISSING = "!"


class Stateful(Protocol):
    """What has limits: a `RankMonitorClient`."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class KeptLimits:
    """One part of the limits ("heartbeat" or "section") and its file. Collective to make.

    Raises ValueError on all ranks if rank 0 cannot have the folder.
    """

    def __init__(self, path: Path, part: str, side: SideGroup, log: Log) -> None:
        self.path = path
        self._part = part
        self._log = log
        self._writes = side.rank == 0
        self._told: set[str] = set()
        text = self._read() if self._writes else ""
        try:
            # Between two callbacks' `setup` a rank may be as late as anywhere else in the trainer's.
            self.text = side.text_from_first(text, patience=side.setup_timeout)
        except Disagreement as why:
            self.text = ""
            log.warning("no rank knows the learned limits in %s: they could not be told (%s)", path, why)
        if self.text.startswith(_MISSING):
            reason = self.text.removeprefix(_MISSING)
            raise ValueError(
                f"Fault tolerance save directory does not exist: {path.parent} (and cannot be made: {reason})"
            )

    def load_into(self, client: Stateful) -> bool:
        """Whether there were limits to load."""
        if not self.text.strip():
            return False
        try:
            state = state_file.parse(self.text, self._part)
        except state_file.Damaged as why:
            self._warn(f"the learned limits in {self.path} are left out: {why}")
            return False
        before = client.state_dict()
        client.load_state_dict(state)
        return bool(client.state_dict() != before)

    def write(self, client: Stateful) -> None:
        """Keep what the client has learned; on rank 0."""
        if not self._writes:
            return
        try:
            state_file.write(self.path, state_file.of(client.state_dict(), self._part))
        except OSError as error:
            self._warn(
                f"the learned limits cannot be written to {self.path} ({error.strerror}): the next job learns them "
                "again"
            )

    def _read(self) -> str:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            return f"{_MISSING}{error.strerror}"
        try:
            return state_file.read(self.path)
        except state_file.Damaged as why:
            self._warn(f"the learned limits are left out: {why}")
            return ""

    def _warn(self, text: str) -> None:
        if self._writes and text not in self._told:
            self._told.add(text)
            self._log.warning(text)
