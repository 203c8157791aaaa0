"""A process's Python stacks by py-spy, for ranks that do not tell their own.

Always holds: py-spy reads the process's memory without pausing it (`--nonblocking`), unless native frames are asked
for, which cannot be had without a pause of some milliseconds; it is ended when its time is over.
Does not cover: native frames of a rank that must not be paused, and processes of other users.
"""

from __future__ import annotations

import json
import time
from typing import Any

from ..evidence import Frame, Thread
from .kernel_file import content
from .program import answer, found

MOST_FRAMES = 128
_PYTHONLESS = ("Failed to find python version", "not a python", "Failed to find a python")
_REFUSED = ("Permission denied", "Permission Denied", "Operation not permitted", "EPERM", "os error 1)")
_GONE = ("No such process", "No such file or directory", "os error 3)")


def stacks(pid: int, until: float, *, native: bool = False) -> tuple[tuple[Thread, ...], str]:
    """All threads of the process, the main one first; or none, and why, in words.

    `until` is in monotonic seconds. `native` pauses the process and adds the frames of native code.
    """
    program = found("py-spy")
    if not program:
        return (), "py-spy is not installed"
    if until <= time.monotonic():
        return (), "no time was left for py-spy"
    how = ["--native"] if native else ["--nonblocking"]
    told = answer([program, "dump", *how, "--full-filenames", "--json", "--pid", str(pid)], until)
    if told.why_not:
        return (), why(told.why_not, content("/proc/sys/kernel/yama/ptrace_scope").strip())
    return parsed(told.out, pid)


def parsed(text: str, pid: int) -> tuple[tuple[Thread, ...], str]:
    """What `py-spy dump --json` has written. Pure."""
    try:
        found = [_thread(each, pid) for each in json.loads(text)]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        return (), f"py-spy wrote what we do not understand ({type(error).__name__}: {error})"
    threads = tuple(sorted(found, key=lambda thread: not thread.main))
    return threads, "" if threads else "py-spy saw no thread"


def _thread(told: dict[str, Any], pid: int) -> Thread:
    tid = told.get("os_thread_id")
    return Thread(
        name=str(told.get("thread_name") or f"thread {tid}"),
        frames=tuple(_frame(each) for each in told["frames"][:MOST_FRAMES]),
        main=tid == pid or (tid is None and told.get("thread_name") == "MainThread"),
        holds_gil=None if told.get("owns_gil") is None else bool(told["owns_gil"]),
    )


def _frame(told: dict[str, Any]) -> Frame:
    file = str(told.get("filename") or told.get("module") or "")
    return Frame(str(told["name"]), file, int(told.get("line") or 0), native=bool(told.get("module")))


def why(error: str, ptrace_scope: str = "") -> str:
    """In words for people, what py-spy has written to stderr. Pure."""
    if any(words in error for words in _PYTHONLESS):
        return "py-spy finds no Python in it, or one that it does not know"
    if any(words in error for words in _REFUSED):
        scope = f" (kernel.yama.ptrace_scope is {ptrace_scope})" if ptrace_scope not in ("", "0") else ""
        return f"py-spy may not read the process's memory{scope}"
    if any(words in error for words in _GONE):
        return "the process was gone when py-spy came"
    first = next((line for line in error.splitlines() if line.strip()), "")
    return first if first.startswith("py-spy") else f"py-spy: {first.removeprefix('Error: ')}"
