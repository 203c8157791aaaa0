"""A check is a process of its own with a time limit, and yields one row for each thing that it tries.

`python -m tests.gpu.check MODULE NAME FOLDER` runs one, and writes its rows to FOLDER/rows.jsonl as they come.
What always holds: every row that a check declares has a result, whatever becomes of its process, and no process of it
is left.
"""

from __future__ import annotations

import contextlib
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

ROOT = Path(__file__).resolve().parents[2]
DEVICE = "GPU_CHECK_DEVICE"
MARK = "GPU_CHECK"
"""Set for each process of a check, so that what it leaves behind can be found."""
MODULES = ("nvml", "restart", "warm_start", "faults", "stragglers", "lightning")
PASSED, FAILED, NOT_POSSIBLE, NOT_REACHED = "passed", "failed", "not possible here", "not reached"
GRACE = 10.0  # seconds that a check has after SIGTERM for ending its jobs


@dataclass(frozen=True)
class Row:
    """One thing that was tried. `figures` are values with their units in the names; `said` explains the result."""

    name: str
    result: str
    figures: Mapping[str, float | str] = field(default_factory=dict)
    said: str = ""


def row(name: str, passed: bool, said: str = "", **figures: float | str) -> Row:
    """A row that passed or failed; what it said is kept only of a failure."""
    return Row(name, PASSED if passed else FAILED, figures, "" if passed else said)


def is_dry() -> bool:
    """Whether checks run on the CPU, with stand-ins and fewer repetitions, to try their own code."""
    return os.environ.get(DEVICE) == "cpu"


@dataclass(frozen=True)
class Place:
    """Where a check runs. `folder` is its own."""

    folder: Path

    @property
    def dry(self) -> bool:
        return is_dry()

    def pick(self, real: int, dry: int) -> int:
        return dry if self.dry else real


@dataclass(frozen=True)
class Check:
    """`function` yields the declared rows; `seconds` is its time limit on a GPU."""

    name: str
    title: str
    seconds: float
    rows: Sequence[str]
    function: Callable[[Place], Iterator[Row]]


def checks() -> list[Check]:
    """All, in the order in which they run."""
    return [check for name in MODULES for check in importlib.import_module(f"tests.gpu.{name}").CHECKS]


def run(check: Check, folder: Path, seconds: float, python: str = sys.executable) -> list[Row]:
    """The check's rows, after at most about `seconds`; its output is in FOLDER/log."""
    folder.mkdir(parents=True)
    mark = f"{os.getpid()}-{check.name}"
    environment = {**os.environ, MARK: mark, "PYTHONPATH": _path(), "PYTHONUNBUFFERED": "1"}
    ended = ""
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [python, "-m", "tests.gpu.check", check.function.__module__, check.name, str(folder)],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            if code := process.wait(seconds):
                ended = f"the check ended with {code}: {_last_line(folder / 'log')}"
        except subprocess.TimeoutExpired:
            ended = f"its time limit of {seconds:.0f} s was over"
        finally:
            _end(process, mark)
    lines = (folder / "rows.jsonl").read_text().splitlines() if (folder / "rows.jsonl").exists() else []
    found = {each["name"]: Row(**each) for each in map(json.loads, lines)}
    return [
        found.get(name) or _missing(name, index == len(found), ended) for index, name in enumerate(check.rows)
    ]


def _missing(name: str, first: bool, ended: str) -> Row:
    return Row(name, FAILED if first else NOT_REACHED, said=ended if first else "the check ended before it")


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def _path() -> str:
    """For Python: the tests of this tree. Holdfast itself is installed, but for a dry run."""
    own = [str(ROOT), *([str(ROOT / "src")] if is_dry() else [])]
    return os.pathsep.join([*own, *filter(None, [os.environ.get("PYTHONPATH")])])


def _end(process: subprocess.Popen[bytes], mark: str) -> None:
    """End the check, then whatever it has left."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
    deadline = time.monotonic() + GRACE
    while (left := marked(mark)) and time.monotonic() < deadline:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.poll()
        time.sleep(0.05)


def marked(mark: str) -> list[int]:
    """Processes that live and have this mark in their environment, other than this one."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return [pid for pid in found if pid != os.getpid()]


def main(module: str, name: str, folder: Path) -> int:
    """Run one check in this process."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that jobs are ended in good order
    (check,) = [check for check in importlib.import_module(module).CHECKS if check.name == name]
    with (folder / "rows.jsonl").open("a", buffering=1) as rows:
        try:
            for each in check.function(Place(folder)):
                print(json.dumps(asdict(each)), file=rows)
        except Exception:
            traceback.print_exc()
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
