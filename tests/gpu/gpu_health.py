"""Checks of a node's health on a real GPU: NVML answers, nothing is found, and nvidia-smi tells the same."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from .gpu_check import NOT_POSSIBLE, Check, Row, by_mode, is_dry, row

HEALTHY = "the checks of a healthy node find nothing, within 2 seconds"
SAME = "the GPUs' facts equal those of nvidia-smi"
DOMAIN = "NVML tells the NVLink domain, or that there is none"
HOLDERS = "a process that holds GPU memory is found, and is gone when it has ended"
FIELDS = {
    "name": "name",
    "pci": "pci.bus_id",
    "uncorrected": "ecc.errors.uncorrected.volatile.total",
    "retire_pending": "retired_pages.pending",
}
HOLD = "import torch, time; held = torch.zeros(1 << 28, device='cuda'); print('holds', flush=True); time.sleep(60)"


def run(folder: Path) -> Iterator[Row]:
    from holdfast.health.checks import Checks, Wanted

    checks = Checks(Wanted(driver="/dev/nvidiactl", seconds=by_mode(2.0, 20.0)))
    try:
        began = time.perf_counter()
        first = checks.run()
        took = time.perf_counter() - began
        again = time.perf_counter()
        second = checks.run(trains=True)
        took_again = time.perf_counter() - again
        text = "; ".join(f"{each.verdict}: {each.line}" for each in (*first, *second) if each.check == "GPUs")
        is_well = all(each.verdict == "good" for each in (*first, *second) if each.check == "GPUs")
        figures = {"first_ms": took * 1000, "later_ms": took_again * 1000, "said": first[0].text[:200]}
        yield row(HEALTHY, is_dry() or (is_well and took < 2.5), text, **figures)
        (gpus,) = checks.gpus.ask("gpus", 20.0)
        yield _same(gpus)
        cluster = checks.gpus.ask("cluster", 20.0)
        has_one = len(cluster) == 1 and isinstance(cluster[0], str)
        yield row(DOMAIN, has_one, str(cluster), domain=str(cluster)[:80])
        yield _holders(checks)
    finally:
        checks.close()


def _same(gpus: list[dict[str, object]]) -> Row:
    if is_dry():
        return row(SAME, gpus[0]["name"] == "Stand-in", str(gpus))
    line = ["nvidia-smi", f"--query-gpu={','.join(FIELDS.values())}", "--format=csv,noheader,nounits"]
    output = subprocess.run(line, check=True, capture_output=True, text=True, timeout=20).stdout
    differ = []
    for gpu, text in zip(gpus, output.strip().splitlines(), strict=True):
        for name, theirs in zip(FIELDS, (each.strip() for each in text.split(",")), strict=True):
            ours = {True: "Yes", False: "No"}[bool(gpu[name])] if name == "retire_pending" else str(gpu[name])
            if gpu[name] is not None and not theirs.startswith("[") and ours.lower() != theirs.lower():
                differ.append(f"{name}: {ours}, nvidia-smi {theirs}")
    return row(SAME, not differ, "; ".join(differ), gpus=len(gpus), fields=len(FIELDS))


def _holders(checks: object) -> Row:
    from holdfast.health.checks import Checks

    assert isinstance(checks, Checks)
    if is_dry():
        return row(HOLDERS, checks.gpus.ask("holders", 20.0) == [[]])
    with subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        (held,) = checks.gpus.ask("holders", 20.0)
        holder.kill()
        holder.wait()
    ended = time.perf_counter()
    mine = [each for each in held if each[1] == holder.pid]
    if not held:
        return Row(HOLDERS, NOT_POSSIBLE, reason="NVML tells no processes here, as in a container")
    if not mine:
        told = {"told": str(held)[:100]}
        return Row(HOLDERS, NOT_POSSIBLE, told, "NVML's pids are not those of this container")
    while any(each[1] == holder.pid for each in checks.gpus.ask("holders", 20.0)[0]):
        if time.perf_counter() - ended > 20.0:
            return row(HOLDERS, False, f"{mine} is still told 20 s after its end")
        time.sleep(0.02)
    freed = (time.perf_counter() - ended) * 1000
    return row(HOLDERS, mine[0][2] >= 1000, str(mine), freed_ms=freed, MiB=mine[0][2])


CHECKS = [Check("health", 60, (HEALTHY, SAME, DOMAIN, HOLDERS), run)]
