"""A process's Python stacks by py-spy, for ranks that do not report their own.

Always holds: py-spy reads the process's memory without pausing it (`--nonblocking`). Starting it may wait for its disk,
so this belongs in a thread.
Does not cover: native frames, which need a pause of some milliseconds; processes of other users.
"""

from __future__ import annotations

import json
import time
from typing import Any

from ...health import programs
from ..evidence import Frame, Thread
from ..wire import both_ends
from .procfs import content

_PYTHONLESS = ("Failed to find python version", "not a python", "Failed to find a python")
_REFUSED = ("Permission denied", "Permission Denied", "Operation not permitted", "EPERM", "os error 1)")
_GONE = ("No such process", "No such file or directory", "os error 3)")


def stacks(pid: int, until: float) -> tuple[tuple[Thread, ...], str]:
    """All threads of the process by `until` (monotonic seconds), the main one first; or none, and why, in words."""
    program = programs.find("py-spy")
    if not program:
        return (), "py-spy is not installed"
    if until <= time.monotonic():
        return (), "no time was left for py-spy"
    words = [program, "dump", "--nonblocking", "--full-filenames", "--json", "--pid", str(pid)]
    output, why_not = programs.output(words, until)
    if why_not:
        return (), why(why_not, content("/proc/sys/kernel/yama/ptrace_scope").strip())
    return parsed(output, pid)


def parsed(text: str, pid: int) -> tuple[tuple[Thread, ...], str]:
    """What `py-spy dump --json` has written. Pure."""
    try:
        found = [_thread(each, pid) for each in json.loads(text)]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        return (), f"py-spy wrote no list of threads ({type(error).__name__}: {error})"
    threads = tuple(sorted(found, key=lambda thread: not thread.main))
    return threads, "" if threads else "py-spy found no thread"


def _thread(value: dict[str, Any], pid: int) -> Thread:
    tid = value.get("os_thread_id")
    return Thread(
        name=str(value.get("thread_name") or f"thread {tid}"),
        frames=both_ends(tuple(_frame(each) for each in value["frames"])),
        main=tid == pid or (tid is None and value.get("thread_name") == "MainThread"),
        holds_gil=None if value.get("owns_gil") is None else bool(value["owns_gil"]),
        tid=tid if isinstance(tid, int) else 0,
    )


def _frame(value: dict[str, Any]) -> Frame:
    file = str(value.get("filename") or value.get("module") or "")
    return Frame(str(value["name"]), file, int(value.get("line") or 0), native=bool(value.get("module")))


def why(error: str, ptrace_scope: str = "") -> str:
    """In words for people, what py-spy has written to stderr. Pure."""
    if any(words in error for words in _PYTHONLESS):
        return "py-spy finds no Python in it, or an unknown version"
    if any(words in error for words in _REFUSED):
        scope = f" (kernel.yama.ptrace_scope is {ptrace_scope})" if ptrace_scope not in ("", "0") else ""
        return f"py-spy may not read the process's memory{scope}"
    if any(words in error for words in _GONE):
        return "the process had ended before py-spy read it"
    first = next((line for line in error.splitlines() if line.strip()), "")
    return first if first.startswith("py-spy") else f"py-spy: {first.removeprefix('Error: ')}"
