"""What is known of a GPU beside its times: NVML's answers, as numbers that travel with a report and in a verdict.

They are read by nvidia-ml-py (the extra `gpu`), once for each report.
What always holds: a GPU's facts are `len(FIELDS)` numbers, NaN where unknown, and whole ones are small enough to be
exact as 32-bit floats. Nothing is loaded before the training initialised CUDA; reading raises nothing and takes at most
about `PATIENCE`, whatever the driver does, because it runs in a thread that is not waited for any longer; there is at
most one such thread, and after `MOST_LATE` late readings in a row no further one.
Does not cover: whether a fact is why a rank is slow: a verdict only puts it beside. GPUs of other makers; the parts of
one GPU that MIG makes: facts are those of the whole GPU.
"""

from __future__ import annotations

import logging
import math
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from statistics import median
from typing import Any

from holdfast.in_time import TooLate, UnderWay, within

log = logging.getLogger("holdfast.straggler")

FIELDS = (
    "sm_clock",  # MHz, when the report was made
    "max_sm_clock",  # MHz
    "slowed_by",  # bits of `REASONS`
    "temperature",  # degrees Celsius
    "power",  # W
    "power_limit",  # W
    "corrected_ecc",  # errors since the last report
    "uncorrected_ecc",  # errors since the last report
    "remapped_rows",  # of memory, ever
    "remapping",  # 0: done, 1: waits for a reset of the GPU, 2: failed, 3: both
)
Facts = Sequence[float]
"""One number for each of `FIELDS`."""
UNKNOWN: tuple[float, ...] = (math.nan,) * len(FIELDS)
"""Those of a rank that has no GPU, or could not ask it."""

IDLE = 0x1
REASONS = {
    0x2: "applications clocks setting",
    0x4: "SW power cap",
    0x8: "HW slowdown",
    0x10: "sync boost",
    0x20: "SW thermal slowdown",
    0x40: "HW thermal slowdown",
    0x80: "HW power brake",
    0x100: "display clock setting",
}
"""Why clocks are low: NVML's bits (nvmlClocksEventReasons) and its names for them."""
KNOWN_BITS = 0x1FF
_ALWAYS_TOLD = 0x8 | 0x20 | 0x40 | 0x80
"""Heat and hardware. The rest is how many clusters run all the time, and told only if most others are without."""

SLOW_CLOCK = 0.97
"""Below this share of the others' clock it is reported. Clocks of equal GPUs differ by 1-2 % under load."""
SLOW_ALONE = 0.9
"""The same, of its own maximum, where nothing is known of others."""
HOT, HOTTER = 85.0, 10.0
"""Degrees Celsius; and those above the others."""


def typical(rows: Sequence[Facts]) -> tuple[float, ...]:
    """What most of some GPUs have: medians, NaN where none is known; of `slowed_by`, the bits of more than half."""
    found = []
    for index, field in enumerate(FIELDS):
        known = [row[index] for row in rows if math.isfinite(row[index])]
        if not known:
            found.append(math.nan)
        elif field == "slowed_by":
            bits = [
                bit for bit in (IDLE, *REASONS) if sum(bool(int(one) & bit) for one in known) * 2 > len(known)
            ]
            found.append(float(sum(bits)))
        else:
            found.append(float(median(known)))
    return tuple(found)


def told(values: Facts, median_of_others: Facts) -> str:
    """One clause on what is remarkable of a GPU; empty if nothing is. `median_of_others` is `typical` of those that it
    is compared with."""
    own, others = _named(values), _named(median_of_others)
    clock, reasons = _clock(own, others), _reasons(own, others)
    rest = [*_heat(own, others), *_power(own, others, bool(clock or reasons)), *_memory(own, others)]
    if clock:
        return "; ".join([f"its SM clock is {clock}{f', slowed by: {reasons}' if reasons else ''}", *rest])
    if reasons:
        return "; ".join([f"its clocks are slowed by: {reasons}", *rest])
    return f"its GPU: {'; '.join(rest)}" if rest else ""


def _named(values: Facts) -> dict[str, float]:
    return dict(zip(FIELDS, values, strict=True))


def _bits(facts: dict[str, float]) -> int:
    return int(facts["slowed_by"]) if math.isfinite(facts["slowed_by"]) else 0


def _clock(own: dict[str, float], others: dict[str, float]) -> str:
    clock, most, usual = own["sm_clock"], own["max_sm_clock"], others["sm_clock"]
    if _bits(own) & IDLE:  # it had nothing to do just then: its clock says nothing about how fast it works
        return ""
    usual = math.nan if _bits(others) & IDLE else usual
    expected = SLOW_CLOCK * usual if math.isfinite(usual) else SLOW_ALONE * most
    if not clock < expected:
        return ""
    of = f" of {most:,.0f}" if math.isfinite(most) else ""
    beside = f" (others {usual:,.0f})" if math.isfinite(usual) else ""
    return f"{clock:,.0f}{of} MHz{beside}"


def _reasons(own: dict[str, float], others: dict[str, float]) -> str:
    bits = _bits(own) & (_ALWAYS_TOLD | ~_bits(others))
    return ", ".join(name for bit, name in REASONS.items() if bits & bit)


def _heat(own: dict[str, float], others: dict[str, float]) -> list[str]:
    heat, usual = own["temperature"], others["temperature"]
    if heat >= usual + HOTTER:
        return [f"{heat:.0f} °C (others {usual:.0f})"]
    return [f"{heat:.0f} °C"] if heat >= HOT else []


def _power(own: dict[str, float], others: dict[str, float], slowed: bool) -> list[str]:
    """Its power if its clocks are low: is it held back, or without work? And a limit below the others'."""
    power, limit, usual = own["power"], own["power_limit"], others["power_limit"]
    lower = limit < 0.99 * usual
    if not math.isfinite(limit) or not (lower or (slowed and math.isfinite(power))):
        return []
    of = f"{power:,.0f} of {limit:,.0f} W" if math.isfinite(power) else f"power limit {limit:,.0f} W"
    return [f"{of} (others' limit {usual:,.0f})" if lower else of]


def _memory(own: dict[str, float], others: dict[str, float]) -> list[str]:
    found = []
    for field, kind in (("uncorrected_ecc", "uncorrected"), ("corrected_ecc", "corrected")):
        if own[field] >= 1:
            found.append(f"{own[field]:,.0f} new {kind} ECC error{'s' if own[field] > 1 else ''}")
    rows, usual = own["remapped_rows"], others["remapped_rows"]
    if rows >= 1 and not rows <= usual:
        found.append(f"{rows:,.0f} remapped memory row{'s' if rows > 1 else ''}")
    trouble = int(own["remapping"]) if math.isfinite(own["remapping"]) else 0
    if trouble & 1:
        found.append("row remapping waits for a GPU reset")
    if trouble & 2:
        found.append("row remapping failed")
    return found


# -- reading them ---------------------------------------------------------------------------------------------------

PATIENCE = 0.05
"""Seconds. A reading takes about 1 ms; the first one also loads the library."""
MOST_LATE = 3
_ECC = slice(FIELDS.index("corrected_ecc"), FIELDS.index("uncorrected_ecc") + 1)


@dataclass(frozen=True)
class Gpu:
    """What torch tells of a GPU; each is empty if unknown."""

    pci: str = ""
    """Its place, `00000000:3b:00.0`. The same for all MIG parts of a GPU."""
    uuid: str = ""
    visible: str = ""
    """Its entry in CUDA_VISIBLE_DEVICES, or its number: the last resort, as CUDA may count in another order."""


class GpuFacts:
    """The facts of the current GPU of the thread that asks."""

    def __init__(self, gpu: Callable[[], Gpu | None] | None = None, patience: float = PATIENCE) -> None:
        """`gpu` tells which GPU; None asks torch. `patience` is in seconds."""
        self._gpu = gpu or _current
        self._patience = patience
        self._nvml: Any = None
        self._handles: dict[Gpu, Any] = {}
        self._counted: dict[Gpu, tuple[float, ...]] = {}
        self._reading: UnderWay[tuple[float, ...]] | None = None
        self._late = 0
        self._process = os.getpid()
        self.reason = ""
        """Why there are no facts, one clause; empty while there are."""

    def take(self) -> tuple[float, ...] | None:
        """One number for each of `FIELDS`, NaN if unknown; None if there is no GPU or no way to ask it.

        Errors are counted since the last call, so the first one does not know how many are new.
        """
        try:
            gpu = self._gpu()
            if gpu is None or self._late >= MOST_LATE or (self._reading and not self._reading.is_done):
                return None
            self._reading = UnderWay(partial(self._read, gpu))
            read = self._reading.answer(self._patience)
        except ImportError:
            self.reason = "nvidia-ml-py is not installed"
        except TooLate:
            self._late += 1
            self.reason = f"NVML did not answer within {self._patience * 1000:.0f} ms"
            if self._late == MOST_LATE:
                log.warning(
                    "%s, %d times: verdicts go without clocks and temperatures", self.reason, MOST_LATE
                )
        except Exception as error:  # NVMLError, which a broken library may not even have
            self._reading, self.reason = None, f"NVML: {error}"
        else:
            self._reading, self._late, self.reason = None, 0, ""
            counts, before = read[_ECC], self._counted.get(gpu, (math.nan, math.nan))
            self._counted[gpu] = counts
            return read[: _ECC.start] + tuple(map(_new, counts, before)) + read[_ECC.stop :]
        return None

    def close(self) -> None:
        """Give NVML back, unless it is being read or the driver is too slow; a forked child has nothing to give."""
        nvml, self._nvml = self._nvml, None
        if nvml is not None and os.getpid() == self._process and not self._reading:
            with suppress(TooLate):
                within(self._patience, partial(_number, nvml.nvmlShutdown))

    def _read(self, gpu: Gpu) -> tuple[float, ...]:
        nvml = self._nvml = self._nvml or _opened()
        if gpu not in self._handles:
            self._handles[gpu] = _handle(nvml, gpu)
        return _facts(nvml, self._handles[gpu])


def _opened() -> Any:
    nvml = import_module("pynvml")
    nvml.nvmlInit()
    return nvml


def _handle(nvml: Any, gpu: Gpu) -> Any:
    """NVML's handle of the whole GPU. NVMLError of the last way that was tried if it knows none such."""
    uuid = gpu.uuid.removeprefix("GPU-").removeprefix("MIG-")
    ways: list[tuple[Callable[[Any], Any], Any]] = []
    if gpu.pci:
        ways.append((nvml.nvmlDeviceGetHandleByPciBusId, gpu.pci))
    if uuid:
        ways += [(nvml.nvmlDeviceGetHandleByUUID, f"{prefix}-{uuid}") for prefix in ("GPU", "MIG")]
    if gpu.visible.isdecimal():
        ways.append((nvml.nvmlDeviceGetHandleByIndex, int(gpu.visible)))
    elif gpu.visible:
        ways.append((nvml.nvmlDeviceGetHandleByUUID, gpu.visible))
    error: Exception = LookupError("torch does not say which GPU it uses")
    for way, value in ways:
        try:
            handle = way(value)
        except Exception as failed:
            error = failed
            continue
        is_part = str(value).startswith("MIG-")
        return nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle) if is_part else handle
    raise error


def _facts(nvml: Any, gpu: Any) -> tuple[float, ...]:
    """The facts, with all ECC errors since the driver was loaded."""

    def errors(kind: int) -> float:
        return _number(nvml.nvmlDeviceGetTotalEccErrors, gpu, kind, nvml.NVML_VOLATILE_ECC)

    reasons = _number(getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None), gpu)
    if math.isnan(reasons):  # drivers before 535, and the package before 12.535
        reasons = _number(getattr(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", None), gpu)
    rows, remapping = _remapping(nvml, gpu)
    return (
        _number(nvml.nvmlDeviceGetClockInfo, gpu, nvml.NVML_CLOCK_SM),
        _number(nvml.nvmlDeviceGetMaxClockInfo, gpu, nvml.NVML_CLOCK_SM),
        reasons if math.isnan(reasons) else float(int(reasons) & KNOWN_BITS),
        _number(nvml.nvmlDeviceGetTemperature, gpu, nvml.NVML_TEMPERATURE_GPU),
        _number(nvml.nvmlDeviceGetPowerUsage, gpu) / 1000,
        _number(nvml.nvmlDeviceGetEnforcedPowerLimit, gpu) / 1000,
        errors(nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
        errors(nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
        rows,
        remapping,
    )


def _remapping(nvml: Any, gpu: Any) -> tuple[float, float]:
    try:
        corrected, uncorrected, pending, failed = nvml.nvmlDeviceGetRemappedRows(gpu)
    except Exception:
        return math.nan, math.nan
    return float(corrected + uncorrected), float(bool(pending) + 2 * bool(failed))


def _new(now: float, before: float) -> float:
    """How many errors are new; NaN if that is unknown. Counters begin again when the driver is loaded again."""
    return now if now < before else now - before


def _number(call: Any, *arguments: Any) -> float:
    """What a call gives; NaN if this GPU, driver or package does not know it."""
    try:
        found = call(*arguments)
    except Exception:
        return math.nan
    return math.nan if found is None else float(found)


def _current() -> Gpu | None:
    """The GPU that torch uses in this thread; None if torch or its CUDA is not in use."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return None
    index = cuda.current_device()
    return identified(cuda.get_device_properties(index), index, os.environ.get("CUDA_VISIBLE_DEVICES"))


def identified(properties: Any, index: int, visible: str | None) -> Gpu:
    """The GPU with torch's properties of it, its number for torch, and what CUDA_VISIBLE_DEVICES is."""
    pci = ""
    if hasattr(properties, "pci_bus_id"):
        domain, device = getattr(properties, "pci_domain_id", 0), getattr(properties, "pci_device_id", 0)
        pci = f"{domain:08x}:{properties.pci_bus_id:02x}:{device:02x}.0"
    entries = [entry.strip() for entry in visible.split(",")] if visible else []
    entry = entries[index] if index < len(entries) else "" if entries else str(index)
    return Gpu(pci, str(getattr(properties, "uuid", "")), entry)
