"""What a scenario needs around its job: locked files, slow readers, cgroups, filesystems.

Everything that is made is undone in the reverse order. `missing` has what this machine does not allow, before anything
is made.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import os
import shutil
import socket
import sqlite3
import subprocess
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from .corpus import Scenario

MIB = 1 << 20
RANK_MEMORY = 192 * MIB
"""What a rank may use of a cgroup into which it moves; what it had before is not counted there."""


@functools.cache
def missing(need: str) -> str:
    """Why this machine does not allow it; "" if it does."""
    if need == "ptrace":
        return _no_ptrace()
    if os.geteuid() != 0:
        return f"{need} needs root"
    if need == "cgroup":
        return "" if _memory_root() else "no memory cgroup can be made here"
    if need == "fuse":
        return "" if os.path.exists("/dev/fuse") else "there is no /dev/fuse"
    if need == "names":
        tried = subprocess.run(["unshare", "--mount", "--uts", "true"], capture_output=True)
        return "" if tried.returncode == 0 else "no namespace can be made here"
    raise ValueError(f"nothing is known of {need!r}")


def surround(scenario: Scenario, folder: Path, stack: ExitStack) -> None:
    """Make what this scenario needs in its folder; `stack` undoes it."""
    locked = stack.enter_context((folder / "locked").open("w"))
    fcntl.flock(locked, fcntl.LOCK_EX)
    if scenario.kind == "slow_storage":
        _slow_reader(folder / "slow", stack)
    if scenario.kind == "dripping_service":
        _dripping_server(folder / "dripping", stack)
    if scenario.kind == "database_lock":
        database = sqlite3.connect(folder / "metrics.db", isolation_level=None)
        stack.callback(database.close)
        database.execute("create table loss (value)")
        database.execute("begin exclusive")
    if "cgroup" in scenario.fault.needs:
        (folder / "cgroup").write_text(_cgroup(folder.name, stack))
    if "fuse" in scenario.fault.needs:
        _mount(folder / "mounted", stack)


def _no_ptrace() -> str:
    with suppress(OSError, ValueError):
        scope = int(Path("/proc/sys/kernel/yama/ptrace_scope").read_text())
        return "" if scope < 2 or os.geteuid() == 0 else f"ptrace_scope is {scope}"
    return ""


def _slow_reader(path: Path, stack: ExitStack) -> None:
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    over = threading.Event()

    def read() -> None:
        while not over.wait(0.2):
            with suppress(BlockingIOError):
                os.read(reader, 1)
        os.close(reader)

    thread = threading.Thread(target=read, name="slow reader")
    thread.start()
    stack.callback(thread.join)
    stack.callback(over.set)


def _dripping_server(path: Path, stack: ExitStack) -> None:
    """A server that sends five bytes a second. Its port is in the file."""
    server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    path.write_text(str(server.getsockname()[1]))
    over = threading.Event()

    def send() -> None:
        with suppress(OSError), server.accept()[0] as connection:
            while not over.wait(0.2):
                connection.sendall(b"x")

    thread = threading.Thread(target=send, name="dripping server")
    thread.start()
    stack.callback(thread.join)
    stack.callback(lambda: server.shutdown(socket.SHUT_RDWR))  # which ends accept
    stack.callback(over.set)


@functools.cache
def _memory_root() -> str:
    """Where cgroups with a memory limit can be made: of version 1 or 2."""
    for root, file in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        made = Path(root, f"holdfast-corpus-{os.getpid()}")
        with suppress(OSError):
            made.mkdir()
            found = (made / file).exists()
            made.rmdir()
            if found:
                return root
    return ""


def _cgroup(name: str, stack: ExitStack) -> str:
    made = Path(_memory_root(), f"holdfast-corpus-{name}")
    made.mkdir()
    stack.callback(_remove, made)
    for file in ("memory.limit_in_bytes", "memory.max"):
        if (made / file).exists():
            (made / file).write_text(str(RANK_MEMORY))
    return str(made)


def _remove(cgroup: Path) -> None:
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        with suppress(OSError):
            cgroup.rmdir()  # refused as long as a process is in it
            return
        time.sleep(0.02)


def _mount(path: Path, stack: ExitStack) -> None:
    """A FUSE filesystem whose server, this process, never reads a request."""
    path.mkdir()
    device = os.open("/dev/fuse", os.O_RDWR)
    stack.callback(os.close, device)  # last: it ends every call that waits
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    if libc.mount(b"corpus", os.fsencode(path), b"fuse", 0, options) != 0:
        raise OSError(ctypes.get_errno(), "no FUSE filesystem can be mounted")
    stack.callback(libc.umount2, os.fsencode(path), 2)  # MNT_DETACH


def has_namespaces() -> bool:
    """Whether nodes can have names, and a /dev/shm, of their own."""
    return shutil.which("unshare") is not None and not missing("names")
