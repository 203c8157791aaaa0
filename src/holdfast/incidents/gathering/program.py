"""Another program's answer, by a moment.

Always holds: the program is ended when its time is over, and not waited for where even that does not end it (it sits
in the kernel). Starting it may wait for the disk that it is on, so this belongs in a thread.
Does not cover: programs that leave children behind; none that is started here does.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

RUNNING: set[int] = set()
"""Pids of the programs that run now: whoever ends what ranks have left behind is to spare them."""

_BURIAL = 0.1
"""Seconds for which a program that was ended is waited for."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a program wrote; `why_not` says why there is none."""

    out: str = ""
    why_not: str = ""


def found(name: str) -> str:
    """Where a program is: on PATH, or beside this interpreter; '' where it is in neither place."""
    beside = os.path.join(os.path.dirname(sys.executable), name)
    return shutil.which(name) or (beside if os.access(beside, os.X_OK) else "")


def answer(words: Sequence[str], until: float) -> Answer:
    """What the program writes, if it ends well before `until` (monotonic seconds)."""
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
        return Answer(why_not=f"{name} cannot be started: {error.strerror or error}")
    RUNNING.add(running.pid)
    try:
        out, err = running.communicate(timeout=max(until - time.monotonic(), 0.0))
    except subprocess.TimeoutExpired:
        return Answer(why_not=f"{name} was not done in time{_end(running)}")
    finally:
        if running.returncode is not None:
            RUNNING.discard(running.pid)
    if running.returncode:
        return Answer(
            why_not=err.decode(errors="replace").strip() or f"{name} ended with {running.returncode}"
        )
    return Answer(out.decode(errors="replace"))


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
