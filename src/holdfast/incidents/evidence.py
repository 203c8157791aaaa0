"""The facts about the ranks of one node at the moment of an incident. Plain values: no clock, no file, no process.

All durations are seconds. "Ago" counts back from the moment of the capture (`NodeEvidence.mono`), so that it means the
same on every node; what came after that moment is negative. Wall-clock moments are unix seconds.

Everything that a rule needs is a number, an identifier (of the kernel, of torch, of Python) or a code of an enum here.
Texts are for people: rewording one never changes a verdict. An empty field is never proof of anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

C = TypeVar("C", bound="Code")


class Code(str, Enum):
    """A code, and its text for people. In a text it is shown as the code."""

    text: str
    __str__ = str.__str__

    def __new__(cls: type[C], code: str, text: str = "") -> C:
        """A member with its text."""
        member = str.__new__(cls, code)
        member._value_, member.text = code, text
        return member


class Missing(Code):
    """Why a part of a rank's evidence is missing."""

    NOTHING = "", "it is not missing, or the reason is not recorded"
    NOT_REQUESTED = "not_requested", "only requested when a rank hangs"
    ENDED = "ended", "the process had ended"
    STOPPED = "stopped", "the process is stopped and cannot answer"
    NOT_ARMED = "not_armed", "the process had not prepared to answer, or cannot answer any more"
    NO_HELPER = "no_helper", "the process has no helper thread: neither a process group nor a client"
    NO_ANSWER = (
        "no_answer",
        "the helper thread did not answer: a thread holds the GIL, or it got no processor time",
    )
    NOT_SIGNALLED = "not_signalled", "the signal that dumps the stack could not be sent, or was not answered"
    NO_PYTHON_FRAME = "no_python_frame", "the main thread runs no Python"
    TOO_LATE = "too_late", "the answer was not complete in time"
    NO_GROUP = "no_group", "the program has no process group"
    NOT_RECORDED = "not_recorded", "torch's flight recorder is empty, switched off, or not comparable"
    FAILED = "failed", "an error of the capture; the notes have it"


class StackSource(str, Enum):
    """Where stacks come from."""

    NONE = ""
    RANK = "rank"
    """The rank's helper thread: all Python threads."""
    SIGNAL = "signal"
    """faulthandler in a signal handler: the main thread only."""
    PY_SPY = "py-spy"


class Target(str, Enum):
    """The kind of object that a system call waits for."""

    UNKNOWN = ""
    FILE = "file"
    FIFO = "fifo"
    PIPE = "pipe"
    TERMINAL = "terminal"
    SOCKET = "socket"
    CHILD_PIPE = "child_pipe"
    """A pipe whose other end a child of the rank has open (`pid`)."""
    PROCESS = "process"
    """A child (`pid`; 0: any)."""
    LOCK = "lock"
    """A file lock; `pid` holds it, where that is known."""


class Nature(str, Enum):
    """The nature of a rank's end, by its exception or the last lines of its stderr."""

    OWN = ""
    """Nothing but the program's own."""
    LOST_PEER = "lost_peer"
    """A peer closed its connection, or torch reports a failure of communication without another cause."""
    TIMED_OUT = "timed_out"
    """A collective, or the store, waited too long for a peer."""
    MISMATCH = "mismatch"
    """Ranks were in different collectives, or in the same one with other sizes."""
    OUT_OF_MEMORY = "out_of_memory"
    INTERRUPTED = "interrupted"
    """A signal that Python turns into an exception."""
    WORKER_KILLED = "worker_killed"
    """A data-loader worker (`Raised.worker`) was killed."""
    BROKEN_GPU = "broken_gpu"
    """A GPU reports that its memory is broken, or that it is lost."""
    BROKEN_DISK = "broken_disk"
    """A disk reports that it fails, or that it is read-only. It may be one that all nodes share."""
    PYTHON_ERROR = "python_error"
    """Last lines only: they end with an exception's line."""


class NodeFaultKind(str, Enum):
    """A fault of the node that its kernel, or a GPU's driver, reports."""

    OOM_KILL = "oom_kill"
    """`pid` 0: a control group counts it, without a name."""
    NODE_LOST = "node_lost"
    GPU = "gpu"
    """An Xid, a row that cannot be remapped, a GPU that does not answer."""
    GPU_BEFORE = "gpu_before"
    """A GPU has had uncorrectable memory errors since its driver was loaded, maybe before this job."""
    GPU_ACCESS = "gpu_access"
    """An Xid that a program's own access causes, or that follows from another: 13, 31, 43, 45."""
    SLOW_GPU = "slow_gpu"
    """Throttled: too hot, or the power brake."""
    HARDWARE = "hardware"
    """A machine check, or another hardware error."""
    HUNG_TASK = "hung_task"
    """A task that the kernel reports as blocked."""


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
    daemon: bool | None = None
    """Python does not wait for a daemon thread at its end. None: not known."""
    tid: int = 0
    """The kernel's number of the thread; 0: not known."""


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
    """A process below the rank, such as a data-loader worker."""

    pid: int
    command: str = ""
    state: str = ""
    wait_channel: str = ""
    cpu: float = 0.0
    """Seconds of processor time between the two samples."""
    frames: tuple[Frame, ...] = ()
    """Its main thread's Python stack, the innermost frame first; empty where it was not asked for."""


@dataclass(frozen=True, slots=True)
class SystemCall:
    """What the main thread waits in."""

    name: str = ""
    """The kernel's name: `read`, `futex`; its number where it has no name here; empty while it computes."""
    target: Target = Target.UNKNOWN
    path: str = ""
    """The file, or the kernel's name of the object: `/mnt/data/part-7`, `socket:[1]`."""
    peer: str = ""
    """The far end of a TCP connection: `10.0.0.7:29500`; empty: it is none. Rules read only whether there is one."""
    pid: int = 0
    """The process that is waited for; 0: not known."""

    def __str__(self) -> str:
        """For people: `read /mnt/data/part-7`, `recvfrom socket:[1] (to 10.0.0.7:29500)`, `wait4 pid 71`."""
        facts = f"to {self.peer}" if self.peer else ""
        if self.pid:
            facts = {
                Target.LOCK: f"held by pid {self.pid}",
                Target.CHILD_PIPE: f"shared with pid {self.pid}",
                Target.SOCKET: f"{facts}, of pid {self.pid}",
            }.get(self.target, facts)
        path = self.path or (f"pid {self.pid}" if self.target is Target.PROCESS and self.pid else "")
        return " ".join(part for part in (self.name, path, f"({facts})" if facts else "") if part)


@dataclass(frozen=True, slots=True)
class Process:
    """The facts of ``/proc``, sampled twice to see what moves."""

    state: str = ""
    """The kernel's one-letter code of proc(5); "gone" when there is no such process."""
    wait_channel: str = ""
    kernel_stack: tuple[str, ...] = ()
    """Functions of the main thread's kernel stack, the innermost first; empty where the kernel does not show it."""
    system_call: SystemCall = SystemCall()
    cpu: float = 0.0
    """Seconds of processor time of all threads between the two samples."""
    switches: int = 0
    """Context switches of all threads between the two samples."""
    sampled_over: float = 0.0
    """Seconds between the two samples; 0 where there was one only."""
    memory: int = 0
    """Resident bytes."""
    read: int = 0
    """Bytes that it read within `read_over`: from files, pipes and sockets, and into mapped memory from storage."""
    read_over: float = 0.0
    """Seconds over which reads were counted; 0: they were not."""
    threads: tuple[KernelThread, ...] = ()
    """The main thread first; at most 64."""
    children: tuple[Child, ...] = ()
    """At most 64."""
    network_files: tuple[str, ...] = ()
    """Open files on network filesystems, as `path (nfs4)`; at most 16."""


@dataclass(frozen=True, slots=True)
class Collective:
    """One entry of torch's flight recorder.

    At least, of each process group, the oldest that is not completed, the newest, and the newest that is completed.
    """

    sequence: int
    operation: str
    group: str = ""
    sizes: str = ""
    """Such as `[[1024, 8]]`."""
    dtype: str = ""
    state: str = ""
    """torch's own word, shown as it is where a newer torch has another: `scheduled`, `started` (the GPU is in it),
    `completed`. gloo records no completion."""
    ago: float = 0.0
    """Since it was entered."""
    members: tuple[int, ...] = ()
    """Global ranks of the group where known; in a file also as runs of `[first, count, step]`."""
    p2p: bool = False
    """A send or a receive. Its numbers are this rank's own: those of its peer differ."""
    peer: int | None = None
    """The other rank of a send or receive, as a global rank; None: not known."""
    backend: str = ""
    """`nccl`, `gloo`, …; empty: not known."""


@dataclass(frozen=True, slots=True)
class RingEvent:
    """One entry of the board's ring. No rule reads it."""

    kind: str
    """The board's name of it, shown as it is where a newer board has others."""
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
    """The facts of the rank's board."""

    connected: bool = False
    finished: bool = False
    """It has reported that it is finished, or its main thread has ended without a failure."""
    heartbeats: int = 0
    step: int | None = None
    counted: bool = False
    """Whether its steps were counted; the program itself has reported nothing then."""
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
    rhythm: float = 0.0
    """The longest time between two signs of life of the last 60 s; 0: not known."""

    @property
    def is_before_first_step(self) -> bool:
        """Whether the rank reports to Holdfast, and has reported no step and no heartbeat yet."""
        return self.connected and self.step is None and not self.heartbeats


@dataclass(frozen=True, slots=True)
class PassedLimit:
    """The limit that this rank has passed."""

    reason: str
    """initial_heartbeat, heartbeat, section or out_of_section. No rule reads it, and another one is shown as it is."""
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
    """In words, as the launcher logs it."""
    ago: float = 0.0
    asked: bool = False
    """Whether the launcher or the monitor terminated it."""
    oom_killed: bool = False
    """Whether the kernel killed it because memory ran out."""
    oom_counted: bool = False
    """Whether only a count of its control group shows that: it may be of another process."""
    out_of_memory: str = ""
    """The source of that, in words."""
    core_dump: str = ""
    """Where its core dump is or goes, where that is known."""
    kept_by: str = ""
    """What kept the process after the exception that ended its main thread, if it had to be killed."""

    @property
    def words(self) -> str:
        """`meaning`, or the status where there is none."""
        by_status = f"killed by signal {-self.status}" if self.status < 0 else f"exit code {self.status}"
        return self.meaning or by_status


@dataclass(frozen=True, slots=True)
class Raised:
    """An unhandled exception of the rank."""

    type: str
    message: str = ""
    traceback: str = ""
    ago: float = 0.0
    nature: Nature = Nature.OWN
    worker: int = 0
    """The data-loader worker that was killed: its pid; 0: none, or not known."""
    absent: tuple[int, ...] = ()
    """Global ranks that torch names as absent from a monitored barrier."""
    frames: tuple[Frame, ...] = ()
    """Of the traceback, the innermost first."""


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
    stacks_from: StackSource = StackSource.NONE
    no_stacks: Missing = Missing.NOTHING
    """Why there are none."""
    collectives: tuple[Collective, ...] = ()
    no_collectives: Missing = Missing.NOTHING
    """Why there are none."""
    peer: int | None = None
    """The global rank with which it is in a blocking send or receive, by the arguments on its stack."""
    exit: Exit | None = None
    raised: Raised | None = None
    last_lines: tuple[str, ...] = ()
    """The last lines of its stderr."""
    stderr: Nature = Nature.OWN
    """The nature of its end by these lines."""
    passed: PassedLimit | None = None
    notes: tuple[str, ...] = ()
    """Other facts, a sentence each."""


class TriggerKind(str, Enum):
    """Why evidence was taken."""

    UNKNOWN = ""
    """For a reason that only a newer version has."""
    HANG = "hang"
    """A limit is passed on this node."""
    CRASH = "crash"
    """A rank of this node ended."""
    ELSEWHERE = "elsewhere"
    """Another node reports trouble."""
    EARLY = "early"
    """Structural signs before a limit."""
    AT_EXIT = "at_exit"
    """A rank is at its end and its process stays."""
    DIAGNOSE = "diagnose"
    """`holdfast diagnose` was called."""


_, HANG, CRASH, ELSEWHERE, EARLY, AT_EXIT, DIAGNOSE = TriggerKind
SUSPECTED = frozenset((HANG, ELSEWHERE, EARLY, AT_EXIT))
"""The triggers by which something was wrong, and all ranks that had to run did: later ends only follow from that."""


@dataclass(frozen=True, slots=True)
class NodeFault:
    """A fault of the node."""

    kind: NodeFaultKind
    text: str = ""
    """In words, with its source."""
    pid: int = 0


@dataclass(frozen=True, slots=True)
class NodeEvidence:
    """All local ranks of one node in one cycle, taken at one moment."""

    node: str
    trigger: TriggerKind
    """Why it was taken."""
    cycle: int = 0
    run_id: str = ""
    node_rank: int = 0
    nodes: int = 1
    """How many nodes take part in the cycle."""
    world_size: int = 0
    """Ranks of the whole job; 0 where that is not known."""
    at: float = 0.0
    """Unix seconds, by this node's clock."""
    cycle_start: float = 0.0
    """When this node's launcher began the cycle: unix seconds, by this node's clock; 0: not known. All launchers begin
    a cycle together, so times that count from there can be compared between nodes."""
    mono: float = 0.0
    """Monotonic seconds of this node."""
    took: float = 0.0
    """Seconds that the capture took."""
    accused: int | None = None
    """The rank that this node's monitor or launcher acted on."""
    reason: str = ""
    """Why this node's ranks were stopped, in the launcher's words."""
    lost_nodes: tuple[str, ...] = ()
    """Nodes of which there was no sign any more when the ranks were stopped."""
    ranks: tuple[RankEvidence, ...] = ()
    faults: tuple[NodeFault, ...] = ()
    notes: tuple[str, ...] = ()
    """Other facts about the node, a sentence each."""


@dataclass(frozen=True, slots=True)
class Case:
    """An incident: the evidence of all nodes of one cycle."""

    nodes: tuple[NodeEvidence, ...] = ()

    @property
    def ranks(self) -> tuple[RankEvidence, ...]:
        """Of all nodes, by number."""
        every = [rank for node in self.nodes for rank in node.ranks]
        return tuple(sorted(every, key=lambda rank: rank.rank))

    @property
    def missing_nodes(self) -> int:
        """Nodes of the cycle without evidence."""
        return max((node.nodes for node in self.nodes), default=0) - len(self.nodes)
