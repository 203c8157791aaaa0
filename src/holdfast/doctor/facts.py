"""Facts of this machine, as the checks need them. Nothing is sent but questions to the resolver, nothing is changed.

Functions raise OSError where a fact cannot be had. Each may block; :mod:`.checks` has the deadline.
Does not cover: quotas that bind only larger files; jobs in other containers, whose processes are not visible.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points

from ..fault_tolerance.board.layout import BOARD_BYTES
from ..fault_tolerance.board.values import DIRECTORY_PREFIX, FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR, OWNER_FILE
from ..fault_tolerance.launcher.ranks.boards import TMPFS, is_stale
from ..fault_tolerance.processes import cgroups, proc
from ..fault_tolerance.processes.cgroups import Limit
from ..fault_tolerance.stop.page import SIZE as PAGE_BYTES
from ..in_time import TooLate, within
from ..journal.run_dir import RunDirError, check, fallback_folder, state_folder, without_home
from ..lazy import torch_version
from . import kernel_trial

PROGRAM_SECONDS = 2.0
"""Seconds that another program may take to answer."""
NETWORK_SECONDS = 1.0
"""Seconds that a resolver or the loopback may take."""
IMPORT_NAMES = "holdfast.import_names"
"""A group of entry points. Each is a function that returns pairs: import names, and the distribution that answers."""
CONTROL_BYTES = 64 * 1024  # the control page and the other files of a board directory
CAP_SYS_PTRACE, CAP_SYS_ADMIN, CAP_SYS_RESOURCE = 19, 21, 24  # linux/capability.h
INTERFACE_VARIABLES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
LAUNCHERS = ("ft_launcher", "fault_tolerance.launcher")
"""Parts of the command line of a launcher."""
ZYGOTES = {"hf-zygote", "hf-standby"}
"""The names of processes of warm start."""
BOARD = f"{FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR}=".encode()
WHO = """
import sys
del sys.path[0]  # the current folder: a file there must not hide a module of Python
import json
from importlib.metadata import PackageNotFoundError, version
try:
    torch = version("torch")
except PackageNotFoundError:
    torch = ""
print(json.dumps([sys.executable, sys.version_info[:3], sys.prefix, torch]))
"""


# -- Python


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python, and the version of the torch that is installed for it."""

    executable: str
    version: tuple[int, ...] = ()
    prefix: str = ""
    torch: str = ""
    """From the package's metadata; empty without torch."""
    error: str = ""
    """Why the interpreter does not run."""


def own_interpreter() -> Interpreter:
    """This Python."""
    return Interpreter(sys.executable, tuple(sys.version_info[:3]), sys.prefix, torch=torch_version())


def ranks_interpreter(environment: Mapping[str, str] = os.environ) -> Interpreter:
    """The Python that PYTHON_EXEC names for the ranks; else this one."""
    wanted = environment.get("PYTHON_EXEC")
    if wanted is None:
        return own_interpreter()
    if not shutil.which(wanted):
        return Interpreter(wanted, error="there is no such program")
    try:
        executable, version, prefix, torch = json.loads(_output([wanted, "-c", WHO]))
    except OSError as error:
        return Interpreter(wanted, error=str(error))
    except ValueError:
        return Interpreter(wanted, error="it is not a Python")
    return Interpreter(executable, tuple(version), prefix, torch)


def import_names() -> list[tuple[str, str]]:
    """Import names that other distributions have registered, each with the distribution that answers for it."""
    found: list[tuple[str, str]] = []
    for entry in entry_points(group=IMPORT_NAMES):
        try:
            found += entry.load()()
        except Exception as error:  # of another distribution
            found.append((entry.name, f"unknown: {type(error).__name__}: {error}"))
    return found


def _output(command: Sequence[str]) -> str:
    """What a program prints; raises OSError if it does not end in time."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PROGRAM_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise OSError(f"no answer within {PROGRAM_SECONDS:g} s") from None
    return done.stdout


# -- Folders


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder that a job would make, or use as it is."""

    path: str
    error: str = ""
    """Why a job of this user cannot use it."""
    free: int = 0
    """Bytes that this user may still take."""
    size: int = 0
    filesystem: str = "tmpfs"


def shared_memory(nproc: int, path: str = TMPFS) -> Folder:
    """/dev/shm; room for the boards of `nproc` ranks is taken and given back."""
    try:
        found = os.statvfs(path)
    except OSError as error:
        return Folder(path, _reason(error))
    wanted = CONTROL_BYTES + nproc * (BOARD_BYTES + PAGE_BYTES)
    free = found.f_bavail * found.f_frsize
    reason = why_not_writable(path)
    if not reason:  # without room nothing is tried: the memory would be taken from running jobs
        reason = why_not_writable(path, wanted) if wanted <= free else os.strerror(errno.ENOSPC)
    return Folder(path, reason, free, found.f_blocks * found.f_frsize, _filesystem(path))


def _filesystem(path: str) -> str:
    """The type of the filesystem of the folder; empty if it is unknown."""
    device = os.stat(path).st_dev
    wanted, kind = f"{os.major(device)}:{os.minor(device)}", ""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            before, _, after = line.partition(" - ")
            if before.split()[2] == wanted:
                kind = after.split()[0]
    return kind


def why_not_writable(path: str, size: int = 0, *, locked: bool = False) -> str:
    """Why a file of `size` bytes cannot be made (and `locked`) in this folder; empty if it can."""
    try:
        with tempfile.TemporaryFile(dir=path) as file:
            if size:
                os.posix_fallocate(file.fileno(), 0, size)
            if locked:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return _reason(error)
    return ""


def run_folder(path: str) -> Folder:
    """A folder for journals as the launcher would make or refuse it; nothing is made."""
    existing = path
    while not os.path.lexists(existing):
        existing = os.path.dirname(existing)
    try:
        if existing == path:
            check(path)
    except RunDirError as error:
        return Folder(path, error.problem.removeprefix(f"run directory {path} "))
    why = why_not_writable(existing)
    if why:
        return Folder(path, why if existing == path else f"{existing}: {why}")
    found = os.statvfs(existing)
    return Folder(path, free=found.f_bavail * found.f_frsize)


def run_folders(chosen: str | None) -> list[Folder]:
    """Where the launcher keeps journals: the chosen folder, else the default and its substitute, in this order."""
    if chosen is not None:
        return [run_folder(os.path.abspath(chosen))]
    found = []
    for default in (state_folder, fallback_folder):
        try:
            path = default()
        except RunDirError as error:
            found.append(Folder("a default folder", error.problem))
            continue
        problem = without_home(path)
        found.append(Folder(path, problem) if problem else run_folder(path))
    return found


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


# -- Limits


def available_memory() -> int:
    """Bytes that can be had without swapping, as the kernel estimates."""
    return int(proc.table("/proc/meminfo")["MemAvailable"].split()[0]) * 1024


def resource_limit(which: int) -> tuple[int | None, int | None]:
    """(soft, hard); None: no limit."""
    soft, hard = (None if each == resource.RLIM_INFINITY else each for each in resource.getrlimit(which))
    return soft, hard


def has_capability(number: int) -> bool:
    """Whether this process has the capability."""
    return bool(int(proc.table("/proc/self/status").get("CapEff", "0"), 16) >> number & 1)


def process_limits() -> list[Limit]:
    """The limits of the number of processes and threads."""
    limits = []
    soft, _ = resource_limit(resource.RLIMIT_NPROC)
    is_exempt = os.getuid() == 0 or has_capability(CAP_SYS_ADMIN) or has_capability(CAP_SYS_RESOURCE)
    if soft is not None and not is_exempt:
        limits.append(Limit("RLIMIT_NPROC", soft, _threads_of_this_user()))
    if (found := cgroups.pids()) is not None:
        limits.append(found)
    most = proc.number("/proc/sys/kernel/threads-max")
    load = (proc.first_line("/proc/loadavg") or "").split()
    if most is not None and len(load) > 3:
        limits.append(Limit("kernel.threads-max", most, int(load[3].partition("/")[2])))
    own = threading.active_count() - 1  # the threads of this command
    return [Limit(each.name, each.maximum, max(0, each.used - own)) for each in limits]


def _threads_of_this_user() -> int:
    """The limit counts in all containers of the machine; only the processes of this one are visible."""
    statuses = [proc.table(f"/proc/{pid}/status") for pid in proc.all_stats()]
    own = [each for each in statuses if each.get("Uid", "").split()[:1] == [str(os.getuid())]]
    return sum(int(each.get("Threads", "1")) for each in own)


# -- Kernel


def kernel_errors() -> dict[str, str]:
    """Why what a launcher does with the kernel fails, by name; empty texts where it works."""
    try:
        errors: dict[str, str] = json.loads(_output([sys.executable, "-I", "-S", kernel_trial.__file__]))
    except ValueError:
        raise OSError("the trial of processes failed") from None
    unwritable = why_not_writable(TMPFS)  # which is a finding of its own
    errors["flock"] = "" if unwritable else why_not_writable(TMPFS, locked=True)
    errors["proc"] = "" if proc.stat(os.getpid()) else "it is not mounted, or hides this process"
    return errors


# -- Network


@dataclass(frozen=True, slots=True)
class Name:
    """The addresses of a host name."""

    name: str
    addresses: Sequence[str] = ()
    """In the order in which they are tried."""
    foreign: Sequence[str] = ()
    """The addresses among them at which this machine cannot listen."""
    error: str = ""
    """Why it does not resolve."""


def loopback_error(address: str = "127.0.0.1") -> str:
    """Why no port of this address can be listened on and connected to; empty if one can."""
    try:
        with socket.create_server((address, 0)) as listener:
            socket.create_connection(listener.getsockname(), NETWORK_SECONDS).close()
    except OSError as error:
        return _reason(error) or "no answer"
    return ""


def resolve(host: str) -> Name:
    """The addresses of a host name."""
    try:
        answer = within(NETWORK_SECONDS, lambda: socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM))
    except TooLate:
        return Name(host, error=f"no answer within {NETWORK_SECONDS:g} s")
    except (OSError, UnicodeError) as error:
        return Name(host, error=getattr(error, "strerror", None) or str(error))
    addresses = list(dict.fromkeys(str(each[4][0]) for each in answer))
    return Name(host, addresses, [each for each in addresses if not _is_own(each)])


def _is_own(address: str) -> bool:
    try:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def interface_variables(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables that name interfaces and are set."""
    return {name: environment[name] for name in INTERFACE_VARIABLES if environment.get(name)}


def interfaces() -> list[str]:
    """The network interfaces of this machine."""
    return [name for _, name in socket.if_nameindex()]


# -- Leftovers


def board_directories(bases: Iterable[str] | None = None) -> tuple[list[str], int]:
    """The board directories of dead launchers of this user, and the number of those of running launchers."""
    dead, running = [], 0
    for base in dict.fromkeys((TMPFS, tempfile.gettempdir()) if bases is None else bases):
        try:
            names = sorted(name for name in os.listdir(base) if name.startswith(DIRECTORY_PREFIX))
        except OSError:
            continue
        for path in (os.path.join(base, name) for name in names):
            if is_stale(path):
                dead.append(path)
            elif os.path.exists(os.path.join(path, OWNER_FILE)) and os.lstat(path).st_uid == os.geteuid():
                running += 1
    return dead, running


def orphans() -> list[tuple[int, str]]:
    """Processes (pid, command line) that a rank started, or that are one, whose launcher is dead."""
    stats = proc.all_stats()
    spared = {os.getpid(), *_ancestors(os.getpid(), stats)}
    found = []
    for pid in sorted(stats.keys() - spared):
        if not stats[pid].is_running:
            continue
        directory = _board_directory(pid)
        if directory and os.path.exists(os.path.join(directory, OWNER_FILE)):
            is_orphan = is_stale(directory)
        else:  # a zygote has no boards, and those of a rank may have been removed
            commands = map(_command, _ancestors(pid, stats))
            has_launcher = any(name in command for command in commands for name in LAUNCHERS)
            is_orphan = bool(directory or stats[pid].name in ZYGOTES) and not has_launcher
        if is_orphan:
            found.append((pid, _command(pid)))
    return found


def _board_directory(pid: int) -> str:
    """The board directory of the job that the process was started in; empty for other processes."""
    if not proc.has_environment(pid, BOARD):
        return ""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            words = file.read().split(b"\0")
    except OSError:
        return ""
    board = next((os.fsdecode(each[len(BOARD) :]) for each in words if each.startswith(BOARD)), "")
    directory, cycle = os.path.split(os.path.dirname(board))
    is_ours = cycle.startswith("cycle-") and os.path.basename(directory).startswith(DIRECTORY_PREFIX)
    return directory if is_ours else ""  # else it is the board of a `RankMonitorServer`


def _ancestors(pid: int, stats: Mapping[int, proc.Stat]) -> list[int]:
    found: list[int] = []
    while pid in stats and (pid := stats[pid].ppid) in stats and pid not in found:
        found.append(pid)
    return found


def _command(pid: int) -> str:
    words = proc.one_read(f"/proc/{pid}/cmdline").rstrip(b"\0")
    return os.fsdecode(words.replace(b"\0", b" ")) or "?"
