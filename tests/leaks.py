"""What a test may leave behind: nothing.

Owns the picture of everything a test could leak (processes, threads, descriptors, files in /dev/shm and $TMPDIR) and
the comparison of two such pictures. What always holds: a thing counts as leaked only when it is still there after a
grace, so a process that is just ending is no leak, and no test has to sleep.

Does not cover: files in /dev/shm while another test session runs beside this one (one cannot tell whose they are),
native threads (OpenMP and gloo pools are kept by torch on purpose), memory, files elsewhere, and
processes that changed their environment and their parent both.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

SHM = Path("/dev/shm")
MARK = "HOLDFAST_TEST_SESSION"
"""In the environment of everything that a test starts. It finds the orphans that no longer are our descendants."""

CLONE_NEWNS = 0x00020000
MS_NOSUID, MS_NODEV = 2, 4
MS_REC, MS_PRIVATE = 16384, 1 << 18
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, CAPABILITY_VERSION_3 = 47, 4, 0x20080522
OWN = "HOLDFAST_TEST_OWN_SHM"
"""In the environment of everything that sees this /dev/shm: no other test session does."""

GRACE = 30.0
"""Seconds for things that are on their way out: a monitor that ends what a killed launcher left, on a busy machine."""


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything a test could leave behind, at one moment."""

    processes: frozenset[psutil.Process]
    threads: frozenset[threading.Thread]
    descriptors: frozenset[tuple[int, str]]
    files: frozenset[str]


@dataclass(frozen=True, slots=True)
class Leaks:
    """What is in a later picture and was not in the earlier one."""

    processes: tuple[psutil.Process, ...]
    threads: tuple[threading.Thread, ...]
    descriptors: tuple[tuple[int, str], ...]
    files: tuple[Path, ...]

    def __bool__(self) -> bool:
        return bool(self.processes or self.threads or self.descriptors or self.files)

    def lines(self) -> Iterator[str]:
        """One line for each thing, for the person whose test left it."""
        for process in self.processes:
            yield f"process {_story(process)}"
        for thread in self.threads:
            yield f"thread {thread.name} ({'daemon' if thread.daemon else 'not daemon'})"
        for number, target in self.descriptors:
            yield f"descriptor {number} -> {target}"
        for path in self.files:
            yield f"file {path}"


def take() -> Picture:
    return Picture(
        processes=frozenset(_processes()),
        threads=frozenset(thread for thread in threading.enumerate() if thread.is_alive()),
        descriptors=frozenset(_descriptors()),
        files=frozenset(_files()),
    )


def since(before: Picture, grace: float = GRACE) -> Leaks:
    """What was left behind since `before` and is still there after `grace` seconds at most."""
    deadline = time.monotonic() + grace
    leaks = _difference(before, take())
    while leaks and time.monotonic() < deadline:
        gc.collect()  # an unreachable Popen or mmap is closed by its finaliser
        time.sleep(0.02)
        leaks = _difference(before, take())
    return leaks


def clear(leaks: Leaks) -> None:
    """End the leaked processes, so that the tests that follow are not disturbed."""
    for process in leaks.processes:
        with contextlib.suppress(psutil.Error):
            process.kill()  # psutil compares the start time first: a recycled pid is not touched
    psutil.wait_procs(leaks.processes, timeout=5)


def _difference(before: Picture, after: Picture) -> Leaks:
    return Leaks(
        processes=tuple(after.processes - before.processes),
        threads=tuple(after.threads - before.threads),
        descriptors=tuple(sorted(after.descriptors - before.descriptors)),
        files=tuple(sorted(_ours(_own(after.files - before.files), after.processes))),
    )


def _own(paths: frozenset[str]) -> frozenset[Path]:
    """Those of this user."""
    found = set()
    for path in map(Path, paths):
        with contextlib.suppress(OSError):
            if path.lstat().st_uid == os.getuid():
                found.add(path)
    return frozenset(found)


def _ours(fresh: frozenset[Path], processes: frozenset[psutil.Process]) -> Iterator[Path]:
    """Those that this session made. $TMPDIR is ours alone; /dev/shm is shared with whatever else the user runs."""
    shared = {path for path in fresh if path.parent == SHM}
    yield from fresh - shared
    if shared and not _another_session():
        used = _in_use_by_others(processes)
        yield from (path for path in shared if not any(_is_in(name, path) for name in used))


def _is_in(name: str, path: Path) -> bool:
    return name == str(path) or name.startswith(f"{path}/")


def _another_session() -> bool:
    """Whether another test session shares this /dev/shm: the owner of a file in it is then unknown."""
    if OWN in os.environ:
        return False
    own = os.environ.get(MARK, "").encode()
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                name, _, value = entry.partition(b"=")
                if name == MARK.encode() and value != own:
                    return True
    return False


_FOREIGN: dict[int, bytes] = {}
"""Pid → start time of processes that lack our mark. They never get it: it comes with the fork."""


def _processes() -> Iterator[psutil.Process]:
    """Our descendants, and all with our mark. Looked for twice in each test, so as little as possible is read."""
    mark, me = f"{MARK}={os.environ.get(MARK, '')}".encode(), os.getpid()
    children: dict[int, list[int]] = {}
    found: set[int] = set()
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        with contextlib.suppress(OSError):
            fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
            children.setdefault(int(fields[1]), []).append(pid)
            started = fields[19]
            if _FOREIGN.get(pid) == started:
                continue
            environ = _read(f"/proc/{pid}/environ")
            if mark in environ.split(b"\0"):
                found.add(pid)
            elif environ:  # empty in the middle of an exec
                _FOREIGN[pid] = started
    below = [me]
    for pid in below:
        below += children.get(pid, ())
    for pid in (found | set(below)) - {me}:
        with contextlib.suppress(psutil.Error):
            yield psutil.Process(pid)


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read()


def _descriptors() -> Iterator[tuple[int, str]]:
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor of this very listing is closed by now
            yield int(name), os.readlink(f"/proc/self/fd/{name}")


def _files() -> Iterator[str]:
    for folder in (str(SHM), tempfile.gettempdir()):
        with contextlib.suppress(OSError):
            yield from (f"{folder}/{name}" for name in os.listdir(folder))


def _in_use_by_others(ours: frozenset[psutil.Process]) -> set[str]:
    """Paths under /dev/shm that processes outside this test session have open or mapped."""
    mine = {process.pid for process in ours} | {os.getpid()}
    used: set[str] = set()
    for pid in psutil.pids():
        if pid in mine:
            continue
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
                _, slash, rest = line.partition(f"{SHM}/")
                used.update([slash + rest] if slash else [])
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    used.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    return used


def _story(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        command = " ".join(process.cmdline())[:200] or process.name()
        return f"{process.pid} (parent {process.ppid()}, {process.status()}): {command}"
    return f"{process.pid} (gone meanwhile)"


# -- a /dev/shm that one process and all that it starts have for themselves -------------------------------------


def take_own_shm() -> None:
    """Give this process, single-threaded or from its main thread, a fresh /dev/shm. Raises OSError.

    Two sessions that share /dev/shm cannot tell whose the files in it are, nor check what a test left there. A mount
    namespace is one process's own view of the mounted filesystems; making one needs CAP_SYS_ADMIN, which root has, and
    anybody in a user namespace of their own. The tests then run without it.
    Source: unshare(2), mount(2), capabilities(7), capset(2).
    """
    libc = ctypes.CDLL(None, use_errno=True)
    _checked(libc.unshare(CLONE_NEWNS), "a mount namespace")
    _checked(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None), "private mounts")
    _checked(libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", MS_NOSUID | MS_NODEV, b"mode=1777"), "a tmpfs")
    if os.geteuid() != 0:
        _checked(libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0), "end of ambient capabilities")
        header, none = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
        _checked(libc.capset(header, none), "end of capabilities")
    os.environ[OWN] = "1"


def _checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"no {what} for the tests' own /dev/shm: {os.strerror(number)}")
