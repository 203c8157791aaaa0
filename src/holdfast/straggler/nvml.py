"""Reads the facts of this rank's GPU from NVML, by nvidia-ml-py (the extra `gpu`), once for each report.

What always holds: nothing is loaded before the training initialised CUDA; nothing raises; a call takes at most about
`PATIENCE`, whatever the driver does, because the reading runs in a thread that is not waited for any longer; there is
at most one such thread, and after `MOST_LATE` late readings in a row no further one.
Does not cover: GPUs of other makers; the parts of one GPU that MIG makes: facts are those of the whole GPU.
"""

from __future__ import annotations

import logging
import math
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

from holdfast.in_time import TooLate, UnderWay, within

from .gpu_facts import FIELDS, KNOWN_BITS

log = logging.getLogger("holdfast.straggler")

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
        """One number for each of `gpu_facts.FIELDS`, NaN if unknown; None if there is no GPU or no way to ask it.

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
