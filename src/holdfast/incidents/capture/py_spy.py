"""A process's Python stacks by py-spy, for ranks that do not report their own; and programs that answer in time.

Always holds: py-spy reads the process's memory without pausing it (`--nonblocking`). A program is killed when its time
is over, and not waited for where even that does not end it (it is blocked in the kernel). Starting one may wait for
its disk, so this belongs in a thread.
Does not cover: native frames, which need a pause of some milliseconds; processes of other users; programs that leave
children behind.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from ..evidence import Frame, Thread
from ..wire import both_ends
from .procfs import content

_PYTHONLESS = ("Failed to find python version", "not a python", "Failed to find a python")
_REFUSED = ("Permission denied", "Permission Denied", "Operation not permitted", "EPERM", "os error 1)")
_GONE = ("No such process", "No such file or directory", "os error 3)")


def stacks(pid: int, until: float) -> tuple[tuple[Thread, ...], str]:
    """All threads of the process by `until` (monotonic seconds), the main one first; or none, and why, in words."""
    program = find_program("py-spy")
    if not program:
        return (), "py-spy is not installed"
    if until <= time.monotonic():
        return (), "no time was left for py-spy"
    words = [program, "dump", "--nonblocking", "--full-filenames", "--json", "--pid", str(pid)]
    output, why_not = run_with_deadline(words, until)
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


# -- a program that answers in time ----------------------------------------------------------------------------

RUNNING: set[int] = set()
"""Pids of the programs that run now: a sweep of what ranks have left behind spares them."""

_BURIAL = 0.1
"""Seconds for which a program that was ended is waited for."""


def find_program(name: str) -> str:
    """The path of a program: on PATH, or in this interpreter's folder; '' where it is in neither place."""
    own = os.path.join(os.path.dirname(sys.executable), name)
    return shutil.which(name) or (own if os.access(own, os.X_OK) else "")


def run_with_deadline(words: Sequence[str], until: float) -> tuple[str, str]:
    """What the program writes, if it ends well before `until` (monotonic seconds); or why there is nothing."""
    name = os.path.basename(words[0])
    try:
        running = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        return "", f"{name} cannot be started: {error.strerror or error}"
    RUNNING.add(running.pid)
    try:
        out, err = running.communicate(timeout=max(until - time.monotonic(), 0.0))
    except subprocess.TimeoutExpired:
        return "", f"{name} was not done in time{_end(running)}"
    finally:
        if running.returncode is not None:
            RUNNING.discard(running.pid)
    if running.returncode:
        return "", err.decode(errors="replace").strip() or f"{name} ended with {running.returncode}"
    return out.decode(errors="replace"), ""


def _end(running: subprocess.Popen[bytes]) -> str:
    running.kill()
    for pipe in (running.stdout, running.stderr):
        if pipe is not None:
            pipe.close()
    try:
        running.wait(_BURIAL)
    except subprocess.TimeoutExpired:
        return ", and does not end"
    return ""
