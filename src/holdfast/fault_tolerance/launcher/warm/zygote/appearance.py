"""How this process looks from outside: the command line and the environment in /proc, and its short name.

A rank that was forked would show its zygote's environment otherwise, to psutil and to whoever looks for the processes
of a job; and a zygote would pass for a rank, to ``pkill -f``. The text is put into memory that is never given back,
and the kernel is told that it is there.
Source: prctl(2), PR_SET_MM_MAP (Linux 3.18, with CONFIG_CHECKPOINT_RESTORE) and PR_SET_NAME.
Does not cover: kernels without it, where the text stays as it was.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence

PR_SET_NAME, PR_SET_MM, PR_SET_MM_MAP = 15, 35, 14
SHORT = 15  # bytes of a name
# Which field of /proc/self/stat, counted from 0 behind the name, is which field of the kernel's structure.
FIELDS = {
    "start_code": 23,
    "end_code": 24,
    "start_data": 42,
    "end_data": 43,
    "start_brk": 44,
    "start_stack": 25,
}
ORDER = (
    *("start_code", "end_code", "start_data", "end_data", "start_brk", "brk", "start_stack"),
    *("arg_start", "arg_end", "env_start", "env_end", "auxv"),
)


class Map(ctypes.Structure):
    """``struct prctl_mm_map``."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in ORDER),
        ("auxv_size", ctypes.c_uint32),
        ("exe_fd", ctypes.c_uint32),
    )


def name() -> str:
    """The short name now."""
    with open("/proc/self/comm") as file:
        return file.read().rstrip("\n")


def call(short: str) -> None:
    """Another short name, as `top` shows it."""
    ctypes.CDLL(None).prctl(PR_SET_NAME, short.encode()[:SHORT])


def show(command: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Show this command line and environment; whether the kernel does."""
    arguments = b"".join(os.fsencode(word) + b"\0" for word in command)
    variables = b"".join(os.fsencode(f"{key}={value}") + b"\0" for key, value in environment.items())
    libc = ctypes.CDLL(None, use_errno=True)
    libc.malloc.restype = libc.sbrk.restype = ctypes.c_void_p
    libc.malloc.argtypes, libc.sbrk.argtypes = [ctypes.c_size_t], [ctypes.c_ssize_t]
    place = libc.malloc(len(arguments) + len(variables))
    if not place:
        return False
    ctypes.memmove(place, arguments + variables, len(arguments) + len(variables))
    middle = place + len(arguments)
    text = {"arg_start": place, "arg_end": middle, "env_start": middle, "env_end": middle + len(variables)}
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b") ")[2].split()
    found = {each: int(fields[at]) for each, at in FIELDS.items()}
    told = Map(**found, **text, brk=libc.sbrk(0), exe_fd=0xFFFFFFFF)
    size = ctypes.c_ulong(ctypes.sizeof(told))
    return int(libc.prctl(PR_SET_MM, PR_SET_MM_MAP, ctypes.byref(told), size, ctypes.c_ulong(0))) == 0
