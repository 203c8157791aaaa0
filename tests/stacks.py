"""Where a process and its children are, for the report of a test that waited in vain: a hang leaves nothing else."""

from __future__ import annotations

import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil

MOST = 20
"""Processes. More than that is a wrong one, and a report too long to read."""


def where_they_are(pid: int) -> list[str]:
    """Lines: each process, where the kernel has it, and its Python stacks if py-spy is installed and may look."""
    try:
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []
    return [line for each in family[:MOST] for line in _where(each)]


def _where(process: psutil.Process) -> list[str]:
    with suppress(psutil.Error, OSError):
        command = " ".join(" ".join(process.cmdline()).split())[:120]
        lines = [f"-- {process.pid} ({process.status()}) {command}"]
        for task in sorted(Path(f"/proc/{process.pid}/task").iterdir()):
            lines.append(f"   thread {task.name} {(task / 'comm').read_text().strip()}: {_kernel(task)}")
        return lines + _python(process.pid)
    return []


def _kernel(task: Path) -> str:
    with suppress(OSError):
        return (task / "wchan").read_text() or "?"
    return "?"


def _python(pid: int) -> list[str]:
    found = shutil.which("py-spy", path=f"{Path(sys.executable).parent}")
    if found is None:
        return []
    # Not blocking: a stack that is a little wrong is better than a process that is stopped while others wait for it.
    line = [found, "dump", "--nonblocking", "--pid", str(pid)]
    with suppress(subprocess.TimeoutExpired):
        done = subprocess.run(line, capture_output=True, text=True, timeout=10, check=False)
        return [f"   {text}" for text in done.stdout.splitlines()[3:]]
    return []
