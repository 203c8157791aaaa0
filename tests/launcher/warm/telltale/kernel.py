"""What the kernel shows of this process: ids, descriptors, masks, limits, scheduling, memory policy.

Does not cover: other machines than x86_64 and aarch64 for the calls that libc has no name for (told as None).
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import resource
from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)
CALLS = {
    "x86_64": {"ioprio_get": 252, "get_mempolicy": 239},
    "aarch64": {"ioprio_get": 31, "get_mempolicy": 236},
}
PRCTL = {
    "dumpable": 3,
    "keepcaps": 7,
    "timing": 13,
    "seccomp": 21,
    "securebits": 27,
    "timerslack": 30,
    "no new privileges": 39,
    "transparent huge pages off": 42,
}
OF_LIBC = 0b11 << 31  # signals 32 and 33, which it handles from the first thread on, OpenBLAS's for one
OF_STATUS = """
    Name Umask State TracerPid Uid Gid Groups Kthread Threads CoreDumping VmLck CapInh CapPrm CapEff CapBnd CapAmb
    NoNewPrivs Seccomp Seccomp_filters Cpus_allowed_list Mems_allowed_list SigPnd ShdPnd SigBlk SigIgn SigCgt
"""
VARIABLES = """
    RANK LOCAL_RANK MASTER_ADDR OMP_NUM_THREADS PATH TZ PYTHONPATH HOLDFAST_LAUNCHER_PID NEVER_SET
"""


def facts() -> dict[str, Any]:
    return {f"kernel: {name}": value for part in (_ids(), _calls(), _proc()) for name, value in part.items()}


def _ids() -> dict[str, Any]:
    me, parent = os.getpid(), os.getppid()
    with open(f"/proc/{parent}/cmdline") as file:
        of_parent = file.read()
    return {
        "parent is the launcher": "holdfast.fault_tolerance.launcher" in of_parent,
        "session": os.getsid(0) == me,
        "process group": os.getpgid(0) == me,
        "foreground group": _terminal(),
        "users": [os.getresuid(), os.getresgid()],
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "scheduler": [os.sched_getscheduler(0), os.sched_getparam(0).sched_priority],
        "affinity": sorted(os.sched_getaffinity(0)),
        "limits": {
            name: resource.getrlimit(getattr(resource, name))
            for name in sorted(vars(resource))
            if name.startswith("RLIMIT_")
        },
        "children's time": list(resource.getrusage(resource.RUSAGE_CHILDREN))[:2],
    }


def _terminal() -> str:
    try:
        with open("/dev/tty"):
            return "a terminal"
    except OSError as error:
        return str(error.strerror)


def _calls() -> dict[str, Any]:
    number, subreaper = ctypes.c_int(), ctypes.c_int()
    LIBC.prctl(2, ctypes.byref(number))  # PR_GET_PDEATHSIG
    LIBC.prctl(37, ctypes.byref(subreaper))  # PR_GET_CHILD_SUBREAPER
    calls = CALLS.get(platform.machine(), {})
    policy = ctypes.c_int(-1)
    if calls:
        LIBC.syscall(calls["get_mempolicy"], ctypes.byref(policy), None, 0, None, 0)
    LIBC.getenv.restype = ctypes.c_char_p
    return {
        **{name: LIBC.prctl(option, 0, 0, 0, 0) for name, option in PRCTL.items()},
        "parent-death signal": number.value,
        "subreaper": subreaper.value,
        "personality": LIBC.personality(0xFFFFFFFF),
        "io priority": LIBC.syscall(calls["ioprio_get"], 1, 0) if calls else None,
        "memory policy": policy.value,
        "getenv": {name: (LIBC.getenv(name.encode()) or b"none").decode() for name in VARIABLES.split()},
    }


def _proc() -> dict[str, Any]:
    status = dict(line.split(":\t", 1) for line in _read("status").splitlines())
    status["SigCgt"] = f"{int(status['SigCgt'], 16) & ~OF_LIBC:016x}"
    environment = _read("environ").split("\0")
    return {
        **{f"status {name}": status[name].strip() for name in OF_STATUS.split() if name in status},
        "descriptors": _descriptors(),
        "command line": _read("cmdline").split("\0"),
        "name": _read("comm").strip(),
        "environment at exec": sorted(entry.partition("=")[0] for entry in environment if entry),
        "oom_score_adj": _read("oom_score_adj").strip(),
        "core dump filter": _read("coredump_filter").strip(),
        "control group": _read("cgroup"),
        "namespaces": {
            name: os.readlink(f"/proc/self/ns/{name}") for name in sorted(os.listdir("/proc/self/ns"))
        },
        "root": os.readlink("/proc/self/root"),
    }


def _read(name: str) -> str:
    with open(f"/proc/self/{name}", errors="replace") as file:
        return file.read()


def _descriptors() -> dict[int, list[str]]:
    """Number -> what it leads to, and its flags."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
            with open(f"/proc/self/fdinfo/{name}") as file:
                flags = file.read().split("flags:\t")[1].split("\n")[0]
        except OSError:
            continue  # the one that lists this folder
        found[int(name)] = [re.sub(r"\d+", "N", target) if ":[" in target else target, flags]
    return found
