"""Faults of the node: memory that ran out, the kernel's log, GPUs; and where a core dump goes.

Always holds: nothing waits beyond the moment that was named, and nothing raises. The kernel's log names a process and
is proof; a control group only counts how many were killed in it. Pids in the log are those of the machine, so it is
believed only outside of containers. A GPU's driver is asked by its own program: a driver that hangs holds the process
that asks it. Without that driver nothing is started. No folder is searched for a core dump: it may be on a hung server.
Sources: cgroup-v2.rst (memory.events), cgroup-v1/memory.rst (memory.oom_control: oom_kill), dev-kmsg, core(5).
Does not cover: killers that are programs (earlyoom, systemd-oomd, a batch system), which leave a plain SIGKILL; what
was logged before the cycle began; GPUs of other makers; whether a core dump was written in full.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import time

from ...fault_tolerance.processes import cgroups, proc
from ...health import programs
from ...health.gpus import XIDS
from ...health.kernel_log import DEVICE, KernelLog
from ...in_time import TooLate, within
from ..evidence import NodeFault, NodeFaultKind
from .procfs import content, link

Facts = tuple[tuple[NodeFault, ...], tuple[str, ...]]
"""Faults, and other facts in a sentence each."""

# -- the kernel's log and memory -------------------------------------------------------------------------------

KEPT = 200
_XID = re.compile(r"NVRM: Xid \([^)]*\): (\d+)")
_ACCESS = (13, 31, 43, 45)
"""NVIDIA's catalogue of Xids: an illegal address or instruction, and what the driver ends for it."""
_UNCORRECTED = re.compile(r"Uncorrect|severity: (?:fatal|recoverable)|Machine Check Exception", re.IGNORECASE)
"""Of a failing processor, memory or bus: corrected errors are reported by the same parts of the kernel."""
_MATTERS = re.compile(
    rf"Killed process|oom-kill:|NVRM: Xid|blocked for more than|{_UNCORRECTED.pattern}", re.IGNORECASE
)
_KILLED = re.compile(r"(Memory cgroup out of memory|Out of memory)?[^\n]*?Killed process (\d+) \(([^)]*)\)")

_FILES = ("memory.events", "memory.oom_control")
_INITIAL_NAMESPACE = "pid:[4026531836]"
"""The pid namespace that the machine begins with (include/linux/proc_ns.h)."""
_COUNT = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


class OomWatch:
    """The kernel's log and its count of killed processes, from the beginning of a cycle to its end."""

    def __init__(self, own: str = "/proc/self", device: str = DEVICE) -> None:
        """`own` is the folder in ``/proc`` of a process that is in the ranks' control group."""
        self._log = KernelLog(device, is_new_only=True)
        self.close = self._log.close
        self.refused = f"The kernel's log cannot be read ({self._log.refused})." if self._log.refused else ""
        self._lines: list[str] = []
        self._own = own
        self._counter = _counter(own)
        self._before = _count(self._counter)
        self._same_pids = link("/proc/self/ns/pid") == _INITIAL_NAMESPACE

    def lines(self) -> tuple[str, ...]:
        """The log's lines on faults since the beginning, the oldest first: the newest `KEPT`."""
        self._lines += filter(_MATTERS.search, self._log.texts())
        del self._lines[:-KEPT]
        return tuple(self._lines)

    def killed(self, pid: int) -> str:
        """What shows that memory ran out for this process, which a SIGKILL ended; '' where nothing does.

        Where the log names no process, what its control group counts is taken for it.
        """
        named = self._named()
        found = (f"kernel log: {named[pid]}" if pid in named else "") if named else self.counted()
        return f"{found}{_limit(self._own)}" if found and "Out of memory: " not in found else found

    def names(self, pid: int) -> bool:
        """Whether the kernel's log has this process as killed because memory ran out. A count names none."""
        return pid in self._named()

    def _named(self) -> dict[int, str]:
        return killed_for_memory(self.lines()) if self._same_pids else {}

    def counted(self) -> str:
        """What the control group counts since the beginning, in words; '' where it counts nothing new."""
        before, now = self._before, _count(self._counter)
        if before is None or now is None or now <= before:
            return ""
        processes = "1 process" if now - before == 1 else f"{now - before} processes"
        return f"{self._counter} counts {processes} killed because memory ran out since the cycle began"

    def facts(self) -> Facts:
        """Processes that were killed, failing hardware, and whether the log cannot be read."""
        lines = self.lines()
        faults = [
            NodeFault(NodeFaultKind.OOM_KILL, f"kernel log: {words}", pid)
            for pid, words in killed_for_memory(lines).items()
        ]
        if counted := self.counted():
            faults.append(NodeFault(NodeFaultKind.OOM_KILL, counted))
        return (*faults, *hardware_faults(lines)), (self.refused,) if self.refused else ()


def killed_for_memory(lines: tuple[str, ...]) -> dict[int, str]:
    """Pid -> the kernel's own words, for each process that it killed because memory ran out. Pure.

    The kernel writes `Out of memory: Killed process 71 (python) ...`, or `Memory cgroup out of memory: ...`.
    """
    found: dict[int, str] = {}
    for line in lines:
        for match in _KILLED.finditer(line):
            words = f"{match[1]}: " if match[1] else ""
            found.setdefault(int(match[2]), f"{words}Killed process {match[2]} ({match[3]})")
    return found


def hardware_faults(lines: tuple[str, ...]) -> tuple[NodeFault, ...]:
    """Failing hardware and tasks that are blocked in the kernel. Pure.

    Does not cover: corrected errors, and Xids that are neither a program's doing nor in `XIDS`; they are no fault.
    """
    found = []
    for line in lines:
        if (kind := _kind(line)) is not None:
            pid = re.search(r"pid=(\d{1,9})|task \S+:(\d{1,9}) blocked", line)
            found.append(NodeFault(kind, f"kernel log: {line}", int(pid[1] or pid[2]) if pid else 0))
    return tuple(found)


def _kind(line: str) -> NodeFaultKind | None:
    if xid := _XID.search(line):
        number = int(xid[1])
        if number in _ACCESS:
            return NodeFaultKind.GPU_ACCESS
        return NodeFaultKind.GPU if number in XIDS else None
    if "blocked for more than" in line:
        return NodeFaultKind.HUNG_TASK
    return NodeFaultKind.HARDWARE if _UNCORRECTED.search(line) else None


def _limit(own: str) -> str:
    """`; cgroup memory.max is 530 MiB`; '' without a limit. A machine whose memory ran out has reached none."""
    try:
        found = cgroups.memory(own)
    except (OSError, ValueError):
        return ""
    return f"; {found.name} is {found.maximum >> 20} MiB" if found else ""


def _counter(own: str) -> str:
    """The file that counts, of the innermost group that has one: those above count the processes of other jobs too."""
    try:
        folders = list(cgroups.levels("memory", own))
    except (OSError, ValueError):
        return ""
    paths = (f"{folder}/{name}" for folder in folders for name in _FILES)
    return next((path for path in paths if _count(path) is not None), "")


def _count(path: str) -> int | None:
    """None where nothing is counted."""
    found = _COUNT.search(content(path)) if path else None
    return int(found[1]) if found else None


# -- GPUs ------------------------------------------------------------------------------------------------------

FIELDS = (
    "index",
    "name",
    "ecc.errors.uncorrected.volatile.total",
    "remapped_rows.failure",
    "clocks_throttle_reasons.hw_thermal_slowdown",
    "clocks_throttle_reasons.hw_power_brake_slowdown",
    "clocks_throttle_reasons.sw_thermal_slowdown",
    "temperature.gpu",
)
"""Of `nvidia-smi --query-gpu`; newer drivers take these names too."""
_THROTTLED = {
    4: "it is too hot (hardware)",
    5: "the power supply asks it to (power brake)",
    6: "it is too hot (driver)",
}
_LOST = re.compile(r"GPU is lost|Unable to determine the device handle|fallen off the bus", re.IGNORECASE)


def gpu_facts(until: float) -> Facts:
    """What is unusual, by `until` (monotonic seconds); a driver that does not answer is a fact too. Never raises."""
    if not proc.nvidia_driver():
        return (), ()
    try:
        return within(max(until - time.monotonic(), 0.0), lambda: _queried(until))
    except TooLate:
        return (), ("The NVIDIA driver did not answer in time.",)
    except Exception as error:
        return (), (f"The GPUs could not be asked: {error!r} (please report this).",)


def _queried(until: float) -> Facts:
    program = programs.find("nvidia-smi")
    if not program:
        return (), ()
    words = [program, f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"]
    table, why_not = programs.output(words, until)
    if not why_not:
        return gpu_faults(table), ()
    text = f"The NVIDIA driver did not report its GPUs: {why_not.splitlines()[0]}."
    return ((NodeFault(NodeFaultKind.GPU, text),), ()) if _LOST.search(why_not) else ((), (text,))


def gpu_faults(table: str) -> tuple[NodeFault, ...]:
    """From the program's lines, one for each GPU. Pure."""
    found = []
    for line in table.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) != len(FIELDS):
            continue
        gpu = f"GPU {fields[0]} ({fields[1]})"
        if fields[2].isdigit() and int(fields[2]):
            text = f"{gpu} has had {fields[2]} uncorrectable memory errors since its driver was loaded"
            found.append(NodeFault(NodeFaultKind.GPU_BEFORE, text))
        if fields[3].lower() in ("yes", "1"):
            text = f"{gpu} could not remap a broken row of its memory and must be replaced"
            found.append(NodeFault(NodeFaultKind.GPU, text))
        found += [
            NodeFault(NodeFaultKind.SLOW_GPU, f"{gpu} runs slower because {why}; it has {fields[7]} degrees")
            for at, why in _THROTTLED.items()
            if fields[at] == "Active"
        ]
    return tuple(found)


# -- core dumps ------------------------------------------------------------------------------------------------

DUMPING = frozenset(
    getattr(signal, f"SIG{name}")
    for name in ("QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "SEGV", "XCPU", "XFSZ", "SYS")
)
"""The signals that end a process with a core dump (signal(7))."""


def core_dump(pid: int, number: int) -> str:
    """Where the core dump of a rank is or goes that signal `number` ended; '' where there is none.

    The rank is gone: its limit and its folder are taken to be this process's, which it inherited.
    """
    pattern = content("/proc/sys/kernel/core_pattern").strip("\n")
    if content("/proc/sys/kernel/core_uses_pid").strip() not in ("", "0") and "%p" not in pattern:
        pattern += "" if pattern.startswith("|") else ".%p"
    limit, folder = resource.getrlimit(resource.RLIMIT_CORE)[0], link("/proc/self/cwd")
    return core_dump_path(pattern, number, pid, limit=limit, folder=folder)


def core_dump_path(pattern: str, number: int, pid: int, *, limit: int, folder: str) -> str:
    """The same, from the kernel's pattern, the limit on core files in bytes, and the working directory. Pure.

    What is not known here (`%t`, the moment) becomes a star, for a search by pattern.
    """
    if number not in DUMPING:
        return ""
    if pattern.startswith("|"):
        program = pattern[1:].split()[0] if pattern[1:].split() else "a program"
        how = f": coredumpctl info {pid}" if program.endswith("systemd-coredump") else ""
        return f"piped to {program}{how}"
    if limit == 0 or not pattern:
        return ""
    values = {"%": "%", "p": pid, "s": number, "h": os.uname().nodename, "e": "python"}
    values |= {"u": os.getuid(), "g": os.getgid()}
    path = re.sub(r"%(.)", lambda match: str(values.get(match[1], "*")), pattern).removesuffix("%")
    return os.path.join(folder or "the rank's working directory", path)
