"""The contents of a board as plain values: no offsets, no I/O, nothing that changes after it was read.

All times are CLOCK_MONOTONIC nanoseconds (`time.monotonic_ns`), comparable between the processes of one node and
meaningless on any other. All limits are seconds; None is "no limit".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SECOND = 1_000_000_000
CHECKPOINTING = "checkpointing"  # the documented section whose end is a checkpoint
FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR = "FT_RANK_MONITOR_IPC_SOCKET"
"""The environment variable with the path of a rank's board (the name is the documented one; nothing is a socket)."""
DIRECTORY_PREFIX = "holdfast-"
OWNER_FILE = "owner"
"""In the directory with a launcher's boards: as long as the launcher lives, it holds a lock on this file."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Which process this board belongs to, as the launcher wrote it; the rank can only read it.

    `start_time` is field 22 of /proc/<pid>/stat (clock ticks): with it a recycled pid is recognised.
    `started_ns` is when the rank's clock starts, which for a standby is the moment it is let through the gate.
    """

    pid: int
    start_time: int
    rank: int
    local_rank: int
    cycle: int
    started_ns: int


class Observer:
    """The durations that a board's writer sees, in nanoseconds. This one ignores them."""

    __slots__ = ()

    def heartbeat(self, now_ns: int, gap_ns: int) -> None:
        """A heartbeat was sent, so long after the one before; 0: it is the first since supervision began."""

    def in_section(self, name: str, spent_ns: int) -> None:
        """A section was closed."""

    def out_of_section(self, spent_ns: int) -> None:
        """A section was opened after a time without any."""


@dataclass(frozen=True, slots=True)
class OpenSection:
    name: str
    since_ns: int


@dataclass(frozen=True, slots=True)
class SectionTotal:
    """All closed calls of one section together. Sections that nest or overlap each have the whole of their own time."""

    count: int
    spent_ns: int


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits in force for one rank, in seconds; None is no limit.

    `sections` also names the sections that were opened without a limit (value None), so that reports can show them.
    """

    initial: float | None = None
    subsequent: float | None = None
    sections: Mapping[str, float | None] = field(default_factory=dict)
    out_of_section: float | None = None
    initial_set_by_user: bool = False
    subsequent_set_by_user: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """What the rank asks of its launcher: "continue", "exclude_this_node" or "shutdown_workload"."""

    action: str
    description: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One reading of a board. `consistent` is False when a write was in progress at each attempt: every field
    is then a value that the rank wrote, but not all of one moment."""

    identity: Identity | None  # None until the launcher bound it to a process
    connected: bool
    finished: bool
    connected_ns: int  # when the rank connected, the last time; 0 = never
    heartbeat_count: int
    last_heartbeat_ns: int  # 0 = none yet
    step: int | None
    section_count: int  # sections ever opened
    open_sections: tuple[OpenSection, ...]  # oldest first
    out_of_section_since_ns: int  # 0 while a section is open or none ever was; else when the last one closed
    last_activity_ns: int  # last heartbeat, section edge, step, mark or connect; 0 = none
    checkpoints: int  # closed "checkpointing" sections plus checkpoints reported by the program
    limits: Limits
    request: Request | None
    consistent: bool
    first_step_ns: int = 0  # when the first counted step ended; 0 = none did
    longest_step_ns: int = 0  # between the ends of two counted steps
    checkpoint_step: int | None = None  # at the last checkpoint; None = no checkpoint, or no step was given
    main_ended_ns: int = 0  # when the main thread ended; 0 = it runs
    main_raised: bool = False  # an uncaught exception ended it
    section_totals: Mapping[str, SectionTotal] = field(default_factory=dict)  # of sections ever closed

    @property
    def counted(self) -> bool:
        """Whether its steps were counted (`optimizer_steps`): the program itself has reported nothing."""
        return bool(self.heartbeat_count) and not self.connected


@dataclass(frozen=True, slots=True)
class BoardEvent:
    """One entry of the flight record.

    `kind` is one of `layout.EVENT_KINDS`; `name` is the section's or mark's name, else ""; `value` is the step, or
    what the program gave with a mark or checkpoint, else 0.
    """

    kind: str
    at_ns: int
    name: str
    value: int
