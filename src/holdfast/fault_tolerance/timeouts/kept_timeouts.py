"""Learned timeouts of a job: all ranks learn or none does, and a file keeps them for the next job.

What always holds:

- No rank begins the collective of the client unless every rank has come and agrees. A rank that does not come costs
  the others the wait once, and then nothing.
- Every rank has what rank 0 read, so all have the same timeouts even where only rank 0 sees the folder (a disk of its
  node).
- The file is complete or as it was before (written aside, flushed, renamed).
- A state that cannot be read or written is logged and stops nothing. Only a folder that cannot be made is an error,
  on all ranks, at the start.

Does not cover: a rank that dies between the question and the collective (its connections close, and the others
continue without new timeouts), and rank 0 on another node in the next job, without a shared folder: the timeouts are
learned anew.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast import in_time
from holdfast.checkpoints.atomic import whole_file
from holdfast.prefixed_log import Once
from holdfast.side_group import CollectiveFailed, SideGroup

from .. import environment
from . import learned_timeouts as rules
from .learned_timeouts import HEARTBEAT, KEY
from .learning_conditions import SECTIONS, Selection
from .observed_durations import step_times

if TYPE_CHECKING:
    from holdfast.journal.writer import Journal

    from ..launcher.ranks.boards import CycleBoards
    from ..launcher.ranks.processes import RankGroup

    Log = logging.Logger | logging.LoggerAdapter[Any]

PATIENCE = 60.0
"""Seconds in which the other ranks must have come."""
PATIENCE_AT_A_STOP = 10.0
"""The same where an exception ends the training: its time may be short."""
DISK_PATIENCE = 1.0
"""Seconds for the disk that has the run directory."""
LARGEST = 1 << 20
"""Bytes. A file of timeouts has a few hundred."""
_MISSING = "!"

logger = logging.getLogger("holdfast.launcher")


def patience(client: Any, *, stopped: bool = False) -> float:
    """Seconds to wait for the other ranks: not so long that this rank, in no section, is taken for hung."""
    timeouts: list[float | None] = [
        client.section_timeouts.out_of_section if client.section_timeouts else None,
        client.hb_timeouts.subsequent if client.hb_timeouts else None,
    ]
    longest = PATIENCE_AT_A_STOP if stopped else PATIENCE
    return min([longest, *(timeout / 2 for timeout in timeouts if timeout is not None)])


def wanted_by_all(
    side: SideGroup,
    wishes: Sequence[bool],
    log: Log,
    *,
    patience: float = PATIENCE,
    meanwhile: Callable[[], None] | None = None,
) -> list[bool]:
    """Each wish, true where every rank has it; all false when not every rank answers. Collective."""
    was_logged = side.failed
    try:
        vetoes = side.maximum(
            [0.0 if wish else 1.0 for wish in wishes], patience=patience, meanwhile=meanwhile
        )
    except CollectiveFailed as why:
        if not was_logged:
            log.warning("the timeouts stay as they are: not every rank answered (%s)", why)
        return [False] * len(wishes)
    return [veto == 0.0 for veto in vetoes]


def sections_wanted_by_all(side: SideGroup, own: Selection, log: Log, *, patience: float) -> Selection:
    """What of this rank's selection every rank has selected. Collective."""
    wishes = [name in own.sections for name in SECTIONS] + [own.out_of_section]
    *wanted, out = wanted_by_all(side, wishes, log, patience=patience)
    return Selection(tuple(name for name, by_all in zip(SECTIONS, wanted, strict=True) if by_all), out)


def learn_sections(client: Any, side: SideGroup, agreed: Selection, log: Log) -> bool:
    """Have the client calculate these; whether there are new timeouts. Collective. An error is logged."""
    sections, out = list(agreed.sections), agreed.out_of_section
    log.info("Updating FT timeouts for: %s update out-of-section: %s", sections, out)
    calculate = partial(
        client.calculate_and_set_section_timeouts,
        selected_sections=sections,
        calc_out_of_section=out,
        skip_if_not_ready=True,
        process_group=side.process_group,
    )
    return learn(calculate, log)


def learn(calculate: Callable[[], bool], log: Log) -> bool:
    """Have the client calculate; whether there are new timeouts. Collective. An error is logged."""
    try:
        learned = calculate()
    except Exception as error:  # a connection that closed, a backend's own errors
        log.warning("the timeouts stay as they are: the calculation failed: %s", error)
        return False
    if not learned:
        log.warning("the timeouts stay as they are: no rank has observed enough yet")
    return learned


class KeptTimeouts:
    """One part of a state (`HEARTBEAT` or `SECTION`) and its file. Collective to make.

    Raises ValueError on all ranks if rank 0 cannot have the folder.
    """

    def __init__(self, path: Path, part: str, side: SideGroup, log: Log) -> None:
        self.path = path
        self._part = part
        self._writes = side.rank == 0
        self._once = Once(log)
        text = self._read() if self._writes else ""
        try:
            # Between two callbacks' `setup` a rank may be as late as anywhere else in the trainer's.
            self.text = side.broadcast_text(text, patience=side.setup_timeout)
        except CollectiveFailed as why:
            self.text = ""
            log.warning("the learned timeouts in %s are not used: rank 0 could not send them (%s)", path, why)
        if self.text.startswith(_MISSING):
            reason = self.text.removeprefix(_MISSING)
            raise ValueError(
                f"Fault tolerance save directory does not exist: {path.parent} (and cannot be made: {reason})"
            )

    def load_into(self, client: Any) -> bool:
        """Whether the `RankMonitorClient` has other timeouts now."""
        if not self.text.strip():
            return False
        try:
            state = parse(self.text, self._part)
        except Damaged as why:
            self._warn(f"the learned timeouts in {self.path} are left out: {why}")
            return False
        before = client.state_dict()
        client.load_state_dict(state)
        return bool(client.state_dict() != before)

    def write(self, client: Any) -> None:
        """Keep what the client has learned; on rank 0."""
        if not self._writes:
            return
        try:
            write(self.path, only(client.state_dict(), self._part))
        except OSError as error:
            self._warn(
                f"the learned timeouts cannot be written to {self.path} ({error.strerror}): the next job learns them "
                "again"
            )

    def _read(self) -> str:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            return f"{_MISSING}{error.strerror}"
        try:
            return read(self.path)
        except Damaged as why:
            self._warn(f"the learned timeouts are left out: {why}")
            return ""

    def _warn(self, text: str) -> None:
        if self._writes:
            self._once(logging.WARNING, text)


class Damaged(Exception):
    """A file that holds no state; the text has what it holds instead."""


def read(path: Path) -> str:
    """The file's text, unparsed; empty if there is no such file. Raises Damaged."""
    try:
        with path.open("rb") as file:
            raw = file.read(LARGEST + 1)
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise Damaged(f"{path} cannot be read: {error.strerror}") from error
    if len(raw) > LARGEST:
        raise Damaged(f"{path} has more than {LARGEST} bytes")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise Damaged(f"{path} is no text: {error}") from error


def parse(text: str, part: str) -> dict[str, Any]:
    """The state in a file's text, with this part only. Raises Damaged."""
    try:
        state = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"it is not JSON: {error}") from error
    if not isinstance(state, dict) or not isinstance(state.get(KEY), dict):
        raise Damaged(f"it has no mapping {KEY!r}")
    return only(state, part)


def only(state: dict[str, Any], part: str) -> dict[str, Any]:
    """The state with this part only."""
    parts = rules.parts_of(state)
    return {KEY: {part: parts[part]} if part in parts else {}}


def write(path: Path, state: dict[str, Any]) -> None:
    """Replace the file. Raises OSError."""
    with whole_file(path) as unfinished:
        unfinished.write_text(json.dumps(state), encoding="utf-8")


def record_steps(
    journal: Journal, boards: CycleBoards, group: RankGroup, cycle: int, safety_factor: float
) -> None:
    """Record the durations of counted steps at the end of a cycle, while its boards still exist.

    They go to the journal and, where all ranks of this node have succeeded, as learned timeouts into the run
    directory, in the documented form. No timeout is put in force by it: the user sets one for that.
    Does not cover: the longest over all nodes; each has a file of its own.
    """
    snapshots, exits = boards.snapshots(), group.exits
    found = step_times((snapshots[rank], exits[rank].at) for rank in snapshots if rank in exits)
    if found is None:
        return
    times, configured = found
    journal.record("counted_steps", cycle=cycle, **times)
    if len(exits) != times["ranks"] or any(end.status for end in exits.values()):
        return
    folder, name = os.path.split(journal.path)
    node = name.removeprefix("journal-").removesuffix(".jsonl")
    path = Path(folder) / f"learned-limits-{node}.json"

    def learn_and_write() -> None:
        try:
            before = rules.from_state(parse(read(path), HEARTBEAT))[0]
        except Damaged:
            before = None
        current = before or rules.HeartbeatTimeouts()
        floors = replace(environment.floors(), configured=configured)
        longest = {rules.INITIAL: times["first"], rules.SUBSEQUENT: times["longest"]}
        timeouts = rules.learn(current, longest, safety_factor, floors)
        write(path, rules.to_state(timeouts, None))

    try:
        in_time.within(DISK_PATIENCE, learn_and_write)
    except (in_time.TooLate, OSError) as error:
        logger.info("the learned timeouts are not kept in %s: %r", path, error)
