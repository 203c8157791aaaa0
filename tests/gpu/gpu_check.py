"""Checks: each runs as a process with a time limit and yields one row for each thing that it tries.

`python -m tests.gpu.gpu_check MODULE NAME FOLDER` runs one check and appends its rows to FOLDER/rows.jsonl.
Always holds: every declared row gets a result, also when the process fails, and no process of the check survives it.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

from holdfast.in_time import TooLate, within

ROOT = Path(__file__).resolve().parents[2]
DEVICE = "GPU_CHECK_DEVICE"
MARK = "GPU_CHECK"
"""Environment variable that identifies all processes of a check."""
PASSED, FAILED, NOT_POSSIBLE, NOT_REACHED = "passed", "failed", "not possible here", "not reached"
GRACE = 10.0  # seconds between SIGTERM and SIGKILL
PR_SET_PDEATHSIG = 1
T = TypeVar("T")


@dataclass(frozen=True)
class Row:
    """Result of one thing that was tried. Names in `figures` end with the unit; `reason` explains a failure."""

    name: str
    result: str
    figures: Mapping[str, float | str] = field(default_factory=dict)
    reason: str = ""


def row(name: str, passed: bool, reason: str = "", **figures: float | str) -> Row:
    """A row that passed or failed; `reason` is kept only for a failure."""
    return Row(name, PASSED if passed else FAILED, figures, "" if passed else reason)


@dataclass(frozen=True)
class Check:
    """`run` gets a folder for its files and yields the declared rows; `seconds` is its time limit."""

    name: str
    seconds: float
    rows: Sequence[str]
    run: Callable[[Path], Iterator[Row]]


def is_dry() -> bool:
    """Whether checks run on the CPU, with stand-ins and fewer repetitions, to test their own code."""
    return os.environ.get(DEVICE) == "cpu"


def by_mode(on_gpu: T, dry: T) -> T:
    return dry if is_dry() else on_gpu


def run_check(check: Check, folder: Path, seconds: float, python: str = sys.executable) -> list[Row]:
    """Run the check in a new process for at most `seconds` plus two grace periods; its output is in FOLDER/log."""
    folder.mkdir(parents=True)
    mark = f"{os.getpid()}-{check.name}"
    environment = {
        **os.environ,
        MARK: mark,
        "PYTHONPATH": _python_path(),
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",  # packages are links to another Python
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
    }
    failure = ""
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [python, "-m", "tests.gpu.gpu_check", check.run.__module__, check.name, str(folder)],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            if code := process.wait(seconds):
                failure = f"the check exited with code {code}: {_last_line(folder / 'log')}"
        except subprocess.TimeoutExpired:
            failure = f"time limit of {seconds:.0f} s reached"
        finally:
            left = _terminate(process, mark)
    lines = (folder / "rows.jsonl").read_text().splitlines() if (folder / "rows.jsonl").exists() else []
    found = {each["name"]: Row(**each) for each in map(json.loads, lines)}
    missing = [name for name in check.rows if name not in found]
    reasons = {name: Row(name, NOT_REACHED, reason="the check ended before it") for name in missing}
    if missing:
        reasons[missing[0]] = Row(missing[0], FAILED, reason=failure or "the check has not yielded this row")
    rows = [found.get(name) or reasons[name] for name in check.rows]
    if left and not failure:
        rows.append(Row("no process is left", FAILED, reason="; ".join(left)))
    return rows


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "no output"


def _python_path() -> str:
    """The tests of this tree. Holdfast is the installed one, which has the kernel core, except in a dry run."""
    source = ROOT / "src"
    given = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    others = [path for path in given if Path(path).resolve() != source]
    return os.pathsep.join([str(ROOT), *by_mode([], [str(source)]), *others])


def _terminate(process: subprocess.Popen[bytes], mark: str) -> list[str]:
    """Terminate the check, then kill every process that it left; returns their command lines."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
    left = [_read_command_line(pid) for pid in processes_with(mark)]
    deadline = time.monotonic() + GRACE
    while (living := processes_with(mark)) and time.monotonic() < deadline:
        for pid in living:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.poll()
        time.sleep(0.05)
    return left


def _read_command_line(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:100]
    return f"pid {pid}"


def processes_with(mark: str) -> list[int]:
    """Living processes with this mark in their environment, except this one."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        # A process that is stuck in a driver may block who reads its memory.
        with contextlib.suppress(OSError, TooLate):
            if f"{MARK}={mark}".encode() in within(1.0, (folder / "environ").read_bytes).split(b"\0"):
                found.append(int(folder.name))
    return [pid for pid in found if pid != os.getpid()]


def main(module: str, name: str, folder: Path) -> int:
    """Run one check in this process."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that `finally` blocks end the jobs
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    (check,) = [check for check in importlib.import_module(module).CHECKS if check.name == name]
    with (folder / "rows.jsonl").open("a", buffering=1) as rows:
        try:
            for each in check.run(folder):
                print(json.dumps(asdict(each)), file=rows)
        except Exception:
            traceback.print_exc()
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
