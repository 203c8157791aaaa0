"""GPU facts in verdicts and in `holdfast doctor` equal those of nvidia-smi."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from .gpu_check import NOT_POSSIBLE, Check, Row, by_mode, is_dry, row

FACTS = "clocks, temperature and power limit of a verdict equal those of nvidia-smi"
INCIDENT = "nvidia-smi knows the fields that incident reports ask for"
DOCTOR = "holdfast doctor finds the driver and counts the GPUs"
# Field of `gpu_facts`: field of nvidia-smi, and the difference that is allowed between two readings in a row.
FIELDS = {
    "max_sm_clock": ("clocks.max.sm", 0.0),
    "power_limit": ("enforced.power.limit", 1.0),
    "temperature": ("temperature.gpu", 5.0),
    "sm_clock": ("clocks.sm", 30.0),
}
ATTEMPTS = 5


def run(folder: Path) -> Iterator[Row]:
    yield _compare_facts()
    yield _incident()
    yield _doctor()


def _compare_facts() -> Row:
    """Clocks change, so readings are repeated until both agree."""
    from holdfast.straggler.gpu_facts import FIELDS as NAMES
    from holdfast.straggler.gpu_facts import Gpu, GpuFacts

    keep_busy = by_mode(_keep_gpu_busy, lambda: None)
    keep_busy()
    facts = GpuFacts((lambda: Gpu(visible="0")) if is_dry() else None, patience=5.0)
    for _ in range(ATTEMPTS):
        keep_busy()
        began = time.perf_counter()
        read = facts.take()
        took = time.perf_counter() - began
        if read is None:
            return row(FACTS, False, facts.reason or "torch uses no GPU")
        ours = dict(zip(NAMES, read, strict=True))
        theirs = _query(*(name for name, _ in FIELDS.values()))
        known = {
            name for name in FIELDS if not math.isnan(ours[name]) or not math.isnan(theirs[FIELDS[name][0]])
        }
        differ = [name for name in known if not _equal(name, ours, theirs)]
        if not differ:
            break
    facts.close()
    if not known:
        return Row(FACTS, NOT_POSSIBLE, reason="neither NVML nor nvidia-smi has any of these facts here")
    pairs = ((name, ours[name], theirs[FIELDS[name][0]]) for name in sorted(differ))
    reason = "; ".join(f"{name}: {mine:g}, nvidia-smi {other:g}" for name, mine, other in pairs)
    return row(FACTS, not differ, reason, compared=len(known), reading_ms=took * 1000)


def _keep_gpu_busy() -> None:
    """For about a second, because the clocks of an idle GPU change between two readings."""
    import torch

    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000_000)


def _equal(name: str, ours: Mapping[str, float], theirs: Mapping[str, float]) -> bool:
    other, allowed = FIELDS[name]
    return abs(ours[name] - theirs[other]) <= allowed


def _query(*names: str) -> dict[str, float]:
    """Values of nvidia-smi; NaN for those that it does not have."""
    line = ["nvidia-smi", "--id=0", f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits"]
    output = subprocess.run(line, check=True, capture_output=True, text=True, timeout=20).stdout
    values = (each.strip() for each in output.split(","))
    numbers = (float(each) if each[:1].isdigit() else math.nan for each in values)
    return dict(zip(names, numbers, strict=True))


def _incident() -> Row:
    from holdfast.incidents.capture.host import FIELDS as ASKED

    line = ["nvidia-smi", f"--query-gpu={','.join(ASKED)}", "--format=csv,noheader,nounits"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=20)
    columns = {len(each.split(",")) for each in done.stdout.splitlines()}
    return row(INCIDENT, done.returncode == 0 and columns == {len(ASKED)}, (done.stdout + done.stderr)[:300])


def _doctor() -> Row:
    from holdfast.fault_tolerance.processes import proc

    command = [sys.executable, "-m", "holdfast", "doctor", "--json"]
    findings = json.loads(subprocess.run(command, capture_output=True, text=True).stdout)["findings"]
    text = next(each["what"] for each in findings if each["check"] == "NVIDIA driver")
    smi = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20)
    listed = smi.stdout.count("GPU ")
    passed = is_dry() or ("present" in text and proc.nvidia_gpus() == listed)
    return row(DOCTOR, passed, f"doctor: {text}; {proc.nvidia_gpus()} GPUs, nvidia-smi {listed}")


CHECKS = [Check("nvml", 40, (FACTS, INCIDENT, DOCTOR), run)]
