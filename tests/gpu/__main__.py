"""`make gpu`: what can only be tried on a GPU, in at most 8 minutes; writes gpu.json and gpu.md.

It needs no network: the tree is installed into an environment made from what this Python has. It goes on after a
failure. Exit codes: 0 all that is possible here has passed, 1 something has not, 2 there is no GPU.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "src"))  # for what is needed before the tree is installed

from holdfast import nvidia  # noqa: E402

from . import check, environment, page  # noqa: E402

LIMIT = 8 * 60.0  # seconds for everything
DRY_TOGETHER = 4  # checks
LEAST = 10.0  # seconds: with less, no check is begun
FACTS = """
import json, torch
print(json.dumps({
    "gpus": torch.cuda.device_count(),
    "torch": torch.__version__,
    "cuda": torch.version.cuda or "none",
    "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else "none",
}))
"""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="CHECK", help="some of the checks (default: all)")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "build" / "gpu", help="folder for gpu.json and gpu.md"
    )
    parser.add_argument("--wheels", type=Path, help="folder with wheels for what this Python lacks")
    parser.add_argument("--list", action="store_true", help="name the checks and their limits, and end")
    return parser.parse_args()


def main() -> int:
    began = time.monotonic()
    given = arguments()
    every = check.checks()
    if unknown := set(given.names) - {each.name for each in every}:
        return _refuse(f"there is no check {', '.join(sorted(unknown))}; --list names them")
    if given.list:
        print(*(f"{each.name:18} {each.seconds:4.0f} s  {', '.join(each.rows)}" for each in every), sep="\n")
        return 0
    if given.wheels and not given.wheels.is_dir():
        return _refuse(f"--wheels {given.wheels}: there is no such folder")
    machine = look()
    if isinstance(machine, str):
        return _refuse(machine)
    work = Path(tempfile.mkdtemp(prefix="holdfast-gpu-"))
    print(f"{machine['gpu']}, torch {machine['torch']}; logs in {work}", flush=True)
    try:
        python, machine["notes"] = (
            (Path(sys.executable), []) if check.is_dry() else environment.install(work, given.wheels)
        )
    except RuntimeError as error:
        return _refuse(str(error), code=1)
    machine["seconds_to_install"] = round(time.monotonic() - began)
    chosen = [each for each in every if not given.names or each.name in given.names]

    def rows_of(each: check.Check) -> list[dict[str, Any]]:
        left = LIMIT - check.GRACE - (time.monotonic() - began)
        if left < LEAST:
            return [
                asdict(check.Row(name, check.NOT_REACHED, said="the 8 minutes were over"))
                for name in each.rows
            ]
        return [
            asdict(row) for row in check.run(each, work / each.name, min(each.seconds, left), str(python))
        ]

    rows = []
    # One after the other: they measure. A dry run does not.
    with ThreadPoolExecutor(DRY_TOGETHER if check.is_dry() else 1) as pool:
        for each, found in zip(chosen, pool.map(rows_of, chosen), strict=True):
            for row in found:
                rows.append({"check": each.title, **row})
                print(page.line(rows[-1]), flush=True)
    machine["seconds"] = round(time.monotonic() - began)
    result = {**machine, "warm_start": page.fingerprint(), "rows": rows}
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "gpu.json").write_text(json.dumps(result, indent=1) + "\n")
    (given.out / "gpu.md").write_text(page.table(result) + "\n")
    failed = [row for row in rows if row["result"] in (check.FAILED, check.NOT_REACHED)]
    if failed:
        _keep_logs(work, given.out)
    shutil.rmtree(work, ignore_errors=True)
    print(
        f"{len(rows) - len(failed)} of {len(rows)} rows without a failure, {machine['seconds']} s; {given.out}/gpu.md"
    )
    return bool(failed)


def look() -> dict[str, Any] | str:
    """The machine and its versions; or why nothing can be tried here, one sentence."""
    if not check.is_dry() and not nvidia.driver():
        return "there is no NVIDIA driver on this machine, so nothing can be tried"
    asked = subprocess.run([sys.executable, "-c", FACTS], capture_output=True, text=True)
    if asked.returncode:
        why = (asked.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return f"{sys.executable} has no torch that can be used ({why}): choose one with make gpu PYTHON=..."
    facts: dict[str, Any] = json.loads(asked.stdout)
    if not check.is_dry() and not facts["gpus"]:
        return f"torch {facts['torch']} of {sys.executable} finds no GPU, so nothing can be tried"
    return {
        **facts,
        "driver": _driver_version(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cores": len(os.sched_getaffinity(0)),
        "day": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "holdfast": _commit(),
    }


def _driver_version() -> str:
    try:
        line = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        return subprocess.run(line, capture_output=True, text=True, timeout=20).stdout.split("\n")[0].strip()
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"


def _commit() -> str:
    """Of this tree, where it is a clone."""
    line = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(line, capture_output=True, text=True).stdout.strip() or "unknown"
    except OSError:
        return "unknown"


def _keep_logs(work: Path, out: Path) -> None:
    """The last of what checks and their jobs have said, in one file."""
    with (out / "gpu.log").open("w") as kept:
        for path in sorted([*work.glob("*.log"), *work.glob("*/log"), *work.glob("*/*.err")]):
            kept.write(f"==== {path.relative_to(work)}\n{path.read_text(errors='replace')[-20000:]}\n")


def _refuse(why: str, code: int = 2) -> int:
    print(f"make gpu: {why}.", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
