"""What doctor and reports tell of a GPU is what nvidia-smi shows."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Iterator

from .check import Check, Place, Row, row

FACTS = "facts of verdicts: clocks, temperature, power limit, memory errors"
INCIDENT = "the driver tells the incident report of its GPUs"
DOCTOR = "holdfast doctor finds the driver"
# Field of `gpu_facts` -> that of nvidia-smi, and by how much two looks in a row may differ.
SAME = {
    "max_sm_clock": ("clocks.max.sm", 0.0),
    "power_limit": ("enforced.power.limit", 1.0),
    "temperature": ("temperature.gpu", 5.0),
    "sm_clock": ("clocks.sm", 30.0),
}
ATTEMPTS = 5


def nvml(place: Place) -> Iterator[Row]:
    """One row for each way in which Holdfast asks."""
    yield _facts(place)
    from holdfast.incidents.gathering import gpu

    told = gpu.facts(time.monotonic() + 10)
    refused = [each for each in told if "did not tell" in each]
    yield row(INCIDENT, not refused, "; ".join(refused), facts=len(told))
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "doctor", "--json"], capture_output=True, text=True
    )
    found = [each for each in json.loads(done.stdout)["findings"] if each["check"] == "NVIDIA driver"]
    text = found[0]["what"] if found else "nothing"
    yield row(DOCTOR, place.dry or "present" in text, text)


def _facts(place: Place) -> Row:
    """Clocks change, so the two are compared until they agree."""
    from holdfast.straggler.gpu_facts import FIELDS
    from holdfast.straggler.nvml import Gpu, GpuFacts

    if not place.dry:
        import torch

        torch.zeros(1, device="cuda")
    facts = GpuFacts((lambda: Gpu(visible="0")) if place.dry else None, patience=5.0)
    differ = "no facts"
    for _ in range(ATTEMPTS):
        took = time.perf_counter()
        read = facts.take()
        took = time.perf_counter() - took
        if read is None:
            return row(FACTS, False, facts.reason or "torch does not use a GPU")
        ours = dict(zip(FIELDS, read, strict=True))
        shown = _shown(*(name for name, _ in SAME.values()))
        differ = "; ".join(
            f"{field} {ours[field]:g}, nvidia-smi {other:g}"
            for (field, (_, apart)), other in zip(SAME.items(), shown, strict=True)
            if not (abs(ours[field] - other) <= apart or (math.isnan(ours[field]) and math.isnan(other)))
        )
        if not differ:
            break
    facts.close()
    return row(FACTS, not differ, differ, reading_ms=took * 1000)


def _shown(*names: str) -> list[float]:
    """nvidia-smi's values; NaN for what it does not know."""
    line = ["nvidia-smi", "--id=0", f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits"]
    told = (
        subprocess.run(line, check=True, capture_output=True, text=True, timeout=20).stdout.strip().split(",")
    )
    return [float(each) if each.strip()[:1].isdigit() else math.nan for each in told]


CHECKS = [Check("nvml", "NVML", 30, (FACTS, INCIDENT, DOCTOR), nvml)]
