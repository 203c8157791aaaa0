"""`make gpu`: test what needs a GPU within 8 minutes, without network, and write gpu.json, gpu.md and gpu.log.

A failed check does not stop the others. Exit codes: 0 every check that is possible here has passed, 1 a check has
failed or was not reached, 2 there is no GPU or an argument is invalid.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from holdfast.fault_tolerance.processes import proc

from . import (
    gpu_environment,
    gpu_faults,
    gpu_health,
    gpu_lightning,
    gpu_nvml,
    gpu_page,
    gpu_restart,
    gpu_stragglers,
    gpu_warm_start,
)
from .gpu_check import FAILED, GRACE, NOT_REACHED, ROOT, Check, Row, by_mode, is_dry, run_check

CHECKS = [
    *gpu_nvml.CHECKS,
    *gpu_health.CHECKS,
    *gpu_restart.CHECKS,
    *gpu_warm_start.CHECKS,
    *gpu_faults.CHECKS,
    *gpu_stragglers.CHECKS,
    *gpu_lightning.CHECKS,
]
LIMIT = 8 * 60.0  # seconds for everything
LEAST = 10.0  # seconds: a check does not start with less
TORCH = """
import json, torch
print(json.dumps({
    "gpus": torch.cuda.device_count(),
    "torch": torch.__version__,
    "cuda": torch.version.cuda or "none",
    "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none",
}))
"""


class CannotRun(Exception):
    """The reason, one sentence without its full stop."""


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the running check is ended
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="CHECK", help="checks to run (default: all)")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu", help="folder for the results")
    parser.add_argument("--wheels", type=Path, help="folder with wheels for packages that this Python lacks")
    parser.add_argument(
        "--list", action="store_true", help="list the checks with their time limits, and exit"
    )
    given = parser.parse_args()
    if given.list:
        for check in CHECKS:
            print(f"{check.name} ({check.seconds:.0f} s)", *check.rows, sep="\n    ")
        return 0
    try:
        return _run(given.names or [check.name for check in CHECKS], given.out, given.wheels)
    except CannotRun as error:
        print(f"make gpu: {error}.", file=sys.stderr)
        return 2


def _run(names: list[str], out: Path, wheels: Path | None) -> int:
    began = time.monotonic()
    if unknown := sorted(set(names) - {check.name for check in CHECKS}):
        raise CannotRun(f"there is no check {', '.join(unknown)}; --list shows all")
    if wheels and not wheels.is_dir():
        raise CannotRun(f"--wheels {wheels}: no such folder")
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / "gpu.log").touch()
    except OSError as error:
        raise CannotRun(f"--out {out}: {error.strerror}") from None
    result = describe_machine() | {"complete": False, "notes": [], "rows": [], "seconds": 0}
    work = Path(tempfile.mkdtemp(prefix="holdfast-gpu-"))
    try:
        python = Path(sys.executable)
        if not is_dry():
            python, result["notes"] = gpu_environment.install(work, wheels)
        for rows in _run_checks([check for check in CHECKS if check.name in names], work, python, began):
            result["rows"] += rows
            result["seconds"] = round(time.monotonic() - began)
            _write(result, out)
    except RuntimeError as error:
        raise CannotRun(str(error)) from None
    finally:
        _write_log(work, out / "gpu.log")
        shutil.rmtree(work, ignore_errors=True)
    result["complete"] = set(names) == {check.name for check in CHECKS}
    _write(result, out)
    failed = sum(row["result"] in (FAILED, NOT_REACHED) for row in result["rows"])
    print(f"{failed} of {len(result['rows'])} failed or not reached, {result['seconds']} s; results in {out}")
    return int(failed > 0)


def _run_checks(
    checks: list[Check], work: Path, python: Path, began: float
) -> Iterator[list[dict[str, Any]]]:
    """Yield the rows of each check. Sequentially, because checks measure times; a dry run measures nothing."""

    def run(check: Check) -> list[Row]:
        left = LIMIT - 2 * GRACE - (time.monotonic() - began)
        if left < LEAST:
            return [Row(name, NOT_REACHED, reason="time limit of 8 minutes reached") for name in check.rows]
        # On a busy machine four checks of a dry run side by side take a multiple of their time.
        seconds = by_mode(min(check.seconds, left), left)
        return run_check(check, work / check.name, seconds, str(python))

    with ThreadPoolExecutor(4) as pool:
        for check, found in zip(checks, by_mode(map, pool.map)(run, checks), strict=True):  # type: ignore[operator]
            rows = [{"check": check.name, **asdict(row)} for row in found]
            print(*map(gpu_page.format_line, rows), sep="\n", flush=True)
            yield rows


def _write(result: dict[str, Any], out: Path) -> None:
    (out / "gpu.json").write_text(json.dumps(result, indent=1) + "\n")
    (out / "gpu.md").write_text(gpu_page.format_table(result) + "\n")


def describe_machine() -> dict[str, Any]:
    """Versions of everything. Raises CannotRun where there is no GPU or no torch."""
    if not is_dry() and not proc.nvidia_driver():
        raise CannotRun("this machine has no NVIDIA driver, so there is nothing to test")
    asked = subprocess.run([sys.executable, "-c", TORCH], capture_output=True, text=True)
    if asked.returncode:
        why = (asked.stderr.strip().splitlines() or [f"exit code {asked.returncode}"])[-1]
        raise CannotRun(
            f"torch cannot be imported by {sys.executable} ({why}): set PYTHON to a Python that has it"
        )
    versions: dict[str, Any] = json.loads(asked.stdout)
    if not is_dry() and not versions["gpus"]:
        raise CannotRun(
            f"torch {versions['torch']} of {sys.executable} finds no GPU, so there is nothing to test"
        )
    return {
        **versions,
        "driver": _first_line("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cores": len(os.sched_getaffinity(0)),
        "day": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "commit": _first_line(
            "git", "-c", "safe.directory=*", "-C", str(ROOT), "describe", "--always", "--dirty"
        ),
        "dry": is_dry(),
        "warm_start": gpu_page.fingerprint(),
    }


def _first_line(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return done.stdout.partition("\n")[0].strip() or "unknown"


def _write_log(work: Path, log: Path) -> None:
    """The end of what checks and their jobs wrote, in one file."""
    with log.open("w") as output:
        for path in sorted([*work.glob("*.log"), *work.glob("*/log"), *work.glob("*/*.err")]):
            output.write(f"==== {path.relative_to(work)}\n{path.read_text(errors='replace')[-20000:]}\n")


if __name__ == "__main__":
    sys.exit(main())
