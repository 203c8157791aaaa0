"""What the kernel lets a launcher do, tried by a program that ends at once (:mod:`.trial`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from ...fault_tolerance.launcher.ranks.boards import TMPFS
from ...fault_tolerance.processes import proc
from ..judgements.kernel import NEEDED, Ptrace
from . import limits, places, text_file, trial

PATIENCE = 2.0
"""Seconds that the program may take."""


def look() -> tuple[dict[str, str], Ptrace]:
    """What of `NEEDED` failed and why (empty where it did not), and whether ranks can be looked into."""
    errors = _tried()
    errors["flock"] = (
        places.why_not_written(TMPFS, locked=True) if places.why_not_written(TMPFS) == "" else ""
    )
    errors["proc"] = "" if proc.stat(os.getpid()) else "it is not mounted, or hides this very process"
    scope = text_file.number("/proc/sys/kernel/yama/ptrace_scope")
    return (
        {name: errors.get(name, "") for name in NEEDED},
        Ptrace(errors.get("ptrace", ""), scope, limits.capable(limits.CAP_SYS_PTRACE)),
    )


def _tried() -> dict[str, str]:
    """Raises OSError when the program did not answer."""
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", trial.__file__],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        answer: dict[str, str] = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        raise OSError(f"the trial of processes did not end within {PATIENCE:g} s") from None
    except ValueError:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise OSError(f"the trial of processes failed: {last}") from None
    return answer
