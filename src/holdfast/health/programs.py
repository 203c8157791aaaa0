"""Programs that answer in time: each in a session of its own, killed and left behind where it does not.

Always holds: nothing here waits beyond its deadline, and a process that does not end is not waited for. Starting one
may wait for its disk, so this belongs in a thread.
Does not cover: a process in the kernel's state D, which stays until the kernel lets go of it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import Any

from . import GOOD, SICK, WARNING, Finding

RUNNING: set[int] = set()
"""Pids of the processes that run now: a sweep of what ranks have left behind spares them."""
_paused = threading.Event()
_WITH_LAUNCHER = """exec 3<&0 </dev/null
{ read -r _; kill -s KILL -- -$$; } <&3 >/dev/null 2>&1 &
exec 3<&-
exec /bin/sh -c "$1"
"""
"""Runs a command. When the launcher ends, however it does, the pipe closes and the command's group is killed."""
_REAP = 0.1
_OUTPUT = 10_000  # bytes


def find(name: str) -> str:
    """The path of a program: on PATH, or in this interpreter's folder; '' where it is in neither place."""
    own = os.path.join(os.path.dirname(sys.executable), name)
    return shutil.which(name) or (own if os.access(own, os.X_OK) else "")


def output(words: Sequence[str], until: float) -> tuple[str, str]:
    """What the program writes, if it ends well before `until` (monotonic seconds); or why there is nothing."""
    name = os.path.basename(words[0])
    try:
        process = start(words, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
    except OSError as error:
        return "", f"{name} cannot be started: {error.strerror or error}"
    try:
        out, err = process.communicate(timeout=max(until - time.monotonic(), 0.0))
    except subprocess.TimeoutExpired:
        return "", f"{name} was not done in time"
    finally:
        if process.returncode is None:
            end(process)
        else:  # its number may be another's by now
            RUNNING.discard(process.pid)
    if process.returncode:
        return "", err.decode(errors="replace").strip() or f"{name} ended with {process.returncode}"
    return out.decode(errors="replace"), ""


def end_all() -> None:
    """Kill the processes that run now."""
    for pid in list(RUNNING):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)


def pause(is_paused: bool) -> None:
    """Start no process meanwhile: a sweep would end one that it does not know of."""
    _paused.set() if is_paused else _paused.clear()


def start(words: Sequence[str], **more: Any) -> subprocess.Popen[bytes]:
    """Start a process; its output is read, unless `more` says otherwise. Raises OSError, also while it is paused."""
    more = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, **more}
    if _paused.is_set():
        raise OSError("ranks are being stopped")
    process = subprocess.Popen(words, start_new_session=True, **more)
    RUNNING.add(process.pid)
    if _paused.is_set():
        end(process)
        raise OSError("ranks are being stopped")
    return process


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of the process and its children."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    for pipe in process.stdin, process.stdout, process.stderr:
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_REAP)
    if process.returncode is not None:
        RUNNING.discard(process.pid)
    else:  # in the kernel's state D: it is waited for in the background, so that its number is known to be taken
        threading.Thread(target=_wait, args=(process,), daemon=True).start()


def _wait(process: subprocess.Popen[bytes]) -> None:
    process.wait()
    RUNNING.discard(process.pid)


def run_command(command: str, seconds: float) -> Finding:
    """The user's own check: exit code 0 is healthy, and its last line of output is the reason."""
    check = "command"
    with tempfile.TemporaryFile() as file:  # no pipe: what the command leaves behind may keep one open
        try:
            words = ["/bin/sh", "-c", _WITH_LAUNCHER, "sh", command]
            process = start(words, stdin=subprocess.PIPE, stdout=file, stderr=subprocess.STDOUT)
        except OSError as error:
            return Finding(
                check, WARNING, f"--ft-health-command cannot be started: {error.strerror or error}"
            )
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            return Finding(check, SICK, f"no answer of --ft-health-command within {seconds:g} s")
        finally:
            end(process)  # also what it left behind
        file.seek(max(0, file.seek(0, os.SEEK_END) - _OUTPUT))
        text = file.read().decode(errors="replace")
    lines = [line for line in text.splitlines() if line.strip()]
    last = lines[-1].strip()[:300] if lines else ""
    if process.returncode == 0:
        return Finding(check, GOOD, last or "exit code 0")
    return Finding(check, SICK, last or f"exit code {process.returncode} of --ft-health-command")
