"""What is known of the ranks of one node at the moment of an incident. Plain values: no clock, no file, no process.

All durations are seconds. "Ago" and "for" count back from the moment the evidence was taken (`NodeEvidence.mono`), so
that they mean the same on every node; what came after that moment is negative. Wall-clock moments are unix seconds.
What could not be had is empty, and a sentence beside it says why: an empty field is never proof of anything.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Frame:
    """One call on a stack."""

    function: str
    file: str = ""
    line: int = 0
    native: bool = False


@dataclass(frozen=True, slots=True)
class Thread:
    """One thread's stack, the innermost frame first."""

    name: str
    frames: tuple[Frame, ...] = ()
    main: bool = False
    holds_gil: bool | None = None
    """None: not known."""


@dataclass(frozen=True, slots=True)
class KernelThread:
    """One thread as the kernel sees it."""

    tid: int
    name: str = ""
    state: str = ""
    wait_channel: str = ""
    cpu: float = 0.0
    """Seconds of processor time between the two samples."""
    switches: int = 0
    """Context switches between the two samples."""


@dataclass(frozen=True, slots=True)
class Child:
    """A process below the rank, such as a data loader's worker."""

    pid: int
    command: str = ""
    state: str = ""
    wait_channel: str = ""
    cpu: float = 0.0
    """Seconds of processor time between the two samples."""


@dataclass(frozen=True, slots=True)
class Process:
    """What ``/proc`` says, sampled twice to see what moves."""

    state: str = ""
    """The one-letter code of proc(5); "gone" when there is no such process."""
    wait_channel: str = ""
    kernel_stack: tuple[str, ...] = ()
    """Functions of the main thread's kernel stack, the innermost first; empty where the kernel does not show it."""
    system_call: str = ""
    """What the main thread waits in, by name where it is known (`read`, `futex`), with the file where it reads one."""
    cpu: float = 0.0
    """Seconds of processor time of all threads between the two samples."""
    switches: int = 0
    """Context switches of all threads between the two samples."""
    sampled_over: float = 0.0
    """Seconds between the two samples; 0 where there was one only."""
    memory: int = 0
    """Resident bytes."""
    threads: tuple[KernelThread, ...] = ()
    """The main thread first; at most 64."""
    children: tuple[Child, ...] = ()
    """At most 64."""
    network_files: tuple[str, ...] = ()
    """Open files on network filesystems, as `path (nfs4)`; at most 16."""


@dataclass(frozen=True, slots=True)
class Collective:
    """One entry of torch's flight recorder, the last ones of each process group."""

    sequence: int
    operation: str
    group: str = ""
    sizes: str = ""
    """Such as `[[1024, 8]]`."""
    dtype: str = ""
    state: str = ""
    ago: float = 0.0
    """Since it was entered."""
    members: tuple[int, ...] = ()
    """Global ranks of the group where known."""


@dataclass(frozen=True, slots=True)
class RingEvent:
    """One entry of the board's ring."""

    kind: str
    ago: float
    name: str = ""
    value: int = 0


@dataclass(frozen=True, slots=True)
class OpenSection:
    """A section that is open now."""

    name: str
    seconds: float


@dataclass(frozen=True, slots=True)
class BoardFacts:
    """What the rank's board says."""

    connected: bool = False
    finished: bool = False
    heartbeats: int = 0
    step: int | None = None
    counted: bool = False
    """Whether its steps were counted; the program itself has said nothing then."""
    checkpoints: int = 0
    sections: tuple[OpenSection, ...] = ()
    """The open ones, the outermost first."""
    silent: float = 0.0
    """Since its last sign of life; since its start where there was none."""
    age: float = 0.0
    """Since the rank's start."""
    moved: bool = False
    """Whether anything changed between the two samples."""
    events: tuple[RingEvent, ...] = ()
    """Of the last 60 s, the oldest first."""


@dataclass(frozen=True, slots=True)
class PassedLimit:
    """The limit that this rank has passed."""

    reason: str
    """initial_heartbeat | heartbeat | section | out_of_section."""
    waited: float
    limit: float
    section: str = ""
    text: str = ""
    """The documented sentence."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How the rank's process ended."""

    status: int
    """Its exit code, or minus the signal's number."""
    meaning: str = ""
    """In words, as the launcher says it."""
    ago: float = 0.0
    asked: bool = False
    """Whether the launcher or the monitor had told it to end before."""
    out_of_memory: str = ""
    """How we know that the kernel ended it for want of memory; empty where we do not."""
    core_dump: str = ""
    """Where its core dump is or goes, where that is known."""


@dataclass(frozen=True, slots=True)
class Raised:
    """An unhandled exception of the rank."""

    type: str
    message: str = ""
    traceback: str = ""
    ago: float = 0.0
    lost_connection: bool = False
    """Whether all that it says is that a peer was gone."""


@dataclass(frozen=True, slots=True)
class RankEvidence:
    """Everything known of one rank."""

    rank: int
    local_rank: int
    pid: int
    node: str
    board: BoardFacts | None = None
    """None: it has no board, or that could not be read."""
    process: Process | None = None
    stacks: tuple[Thread, ...] = ()
    stacks_from: str = ""
    """`the rank itself`, `faulthandler` (the main thread only) or `py-spy`."""
    no_stacks: str = ""
    """Why there are none."""
    collectives: tuple[Collective, ...] = ()
    no_collectives: str = ""
    """Why there are none."""
    exit: Exit | None = None
    raised: Raised | None = None
    last_lines: tuple[str, ...] = ()
    """The last it wrote to stderr."""
    passed: PassedLimit | None = None
    notes: tuple[str, ...] = ()
    """What could not be had, and other facts, a sentence each."""


HANG, CRASH, ELSEWHERE, EARLY, DIAGNOSE = "hang", "crash", "elsewhere", "early", "diagnose"
"""Why evidence was taken: a limit is passed here; a rank of this node ended; another node says so; structural signs
before a limit; somebody asked."""


@dataclass(frozen=True, slots=True)
class NodeEvidence:
    """All local ranks of one node in one cycle, taken at one moment."""

    node: str
    trigger: str
    cycle: int = 0
    run_id: str = ""
    node_rank: int = 0
    nodes: int = 1
    """How many nodes take part in the cycle."""
    world_size: int = 0
    """Ranks of the whole job; 0 where that is not known."""
    at: float = 0.0
    """Unix seconds."""
    mono: float = 0.0
    """Monotonic seconds of this node."""
    took: float = 0.0
    """Seconds that the gathering took."""
    accused: int | None = None
    """The rank that this node's monitor or launcher acted on."""
    reason: str = ""
    """Why this node's ranks were stopped, in the launcher's words."""
    lost_nodes: tuple[str, ...] = ()
    """Nodes of which there was no sign any more when the ranks were stopped."""
    ranks: tuple[RankEvidence, ...] = ()
    notes: tuple[str, ...] = ()
    """Facts about the node, a sentence each: out-of-memory events, GPU faults, lost nodes."""


@dataclass(frozen=True, slots=True)
class Case:
    """An incident: what every node has told of one cycle."""

    nodes: tuple[NodeEvidence, ...] = field(default=())

    @property
    def ranks(self) -> tuple[RankEvidence, ...]:
        """Of all nodes, by number."""
        return tuple(sorted((rank for node in self.nodes for rank in node.ranks), key=lambda rank: rank.rank))

    @property
    def missing_nodes(self) -> int:
        """Nodes of the cycle of which nothing is told."""
        return max((node.nodes for node in self.nodes), default=0) - len(self.nodes)
