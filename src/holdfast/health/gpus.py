"""GPUs: what NVML and the kernel's log have of them, and what of it is a finding.

`Reader` belongs in a process of its own (`probe`): a driver that hangs holds the process that asks it.
What a GPU, driver or package does not know is named in the finding, never taken for good.
Sources: NVML's reference; NVIDIA's catalogue of Xids.
Does not cover: GPUs of other makers; parts of a GPU that MIG makes, for which the whole GPU is judged; an Xid that a
reset of the GPU without a new load of the driver has repaired, which counts as long as the kernel's log has it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

from . import ABSENT, GOOD, SICK, WARNING, Finding
from .kernel_log import KernelLog

CHECK = "GPUs"
XIDS = {
    48: "uncorrectable memory error",
    64: "row remapping or page retirement failed",
    74: "NVLink error",
    79: "the GPU has fallen off the bus",
    95: "uncontained memory error",
    119: "its system processor (GSP) does not answer",
    120: "its system processor (GSP) failed",
    140: "unrecovered memory error",
}
"""The Xids that no program causes, after which the GPU needs a reset at least."""
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)")
_LOADED = re.compile(r"NVRM: loading NVIDIA")
SLOWED = {0x40: "it is too hot (hardware)", 0x80: "the power supply asks it to (power brake)"}
"""NVML's bits of the reasons for low clocks."""
FACTS = {
    "memory errors": "uncorrected",
    "row remapping": "remap_failed",
    "retired pages": "retire_pending",
    "NVLink": "links",
    "reasons for low clocks": "slowed",
}
"""Facts that may be unavailable: the name for people, and the key in `Gpu`."""
_LOST = (15, 16)
"""NVML's errors that say that the GPU is lost, and that it needs a reset. Others are no fault of the GPU."""

Gpu = dict[str, Any]
"""Facts by name, None where unknown: index, pci, name, lost (why it cannot be asked), uncorrected (memory errors since
the driver was loaded), remap_failed, remap_pending, retire_pending, links (that are up), slowed (NVML's bits)."""


class Reader:
    """NVML, opened once; and the kernel's log from the last driver load on. Raises what NVML raises."""

    def __init__(self) -> None:
        self._nvml: Any = import_module("pynvml")
        self._nvml.nvmlInit()
        self._log = KernelLog()

    def gpus(self) -> list[Gpu]:
        """The facts of each GPU."""
        nvml = self._nvml
        found = []
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                found.append(self._facts(index, nvml.nvmlDeviceGetHandleByIndex(index)))
            except nvml.NVMLError as error:
                why = {"lost": str(error)} if error.value in _LOST else {}
                found.append({"index": index, **why})
        return found

    def _facts(self, index: int, gpu: Any) -> Gpu:
        nvml = self._nvml
        remapped = self._value("nvmlDeviceGetRemappedRows", gpu)
        slowed = self._value("nvmlDeviceGetCurrentClocksEventReasons", gpu)
        if slowed is None:  # drivers before 535
            slowed = self._value("nvmlDeviceGetCurrentClocksThrottleReasons", gpu)
        pci, name = self._value("nvmlDeviceGetPciInfo", gpu), self._value("nvmlDeviceGetName", gpu)
        kind = nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        return {
            "index": index,
            "pci": "" if pci is None else _text(pci.busId),
            "name": _text(name or "unknown GPU"),
            "uncorrected": self._value("nvmlDeviceGetTotalEccErrors", gpu, *kind),
            "remap_failed": remapped and bool(remapped[3]),
            "remap_pending": remapped and bool(remapped[2]),
            "retire_pending": self._value("nvmlDeviceGetRetiredPagesPendingStatus", gpu),
            "links": self._links(gpu),
            "slowed": slowed,
        }

    def _value(self, function: str, *arguments: Any) -> Any:
        """What NVML returns; None where it is unknown. Raises NVMLError if the GPU is lost or needs a reset."""
        call, nvml = getattr(self._nvml, function, None), self._nvml
        if call is None:
            return None
        try:
            return call(*arguments)
        except nvml.NVMLError as error:
            if error.value in _LOST:
                raise
            return None

    def _links(self, gpu: Any) -> list[int] | None:
        states = [
            self._value("nvmlDeviceGetNvLinkState", gpu, link)
            for link in range(self._nvml.NVML_NVLINK_MAX_LINKS)
        ]
        known = [state for state in states if state is not None]
        return [link for link, state in enumerate(states) if state] if known else None

    def xids(self) -> tuple[list[str], str]:
        """The lines of Xids that the kernel's log has had since the last call; or none, and why it cannot be read."""
        found: list[str] = []
        for text in self._log.texts():
            if _LOADED.search(text):
                found.clear()
            if _XID.search(text):
                found.append(text)
        return found[-50:], self._log.refused

    def holders(self) -> list[list[int]]:
        """Who holds memory: [GPU, pid, MiB]. Empty where NVML does not know processes."""
        found, nvml = [], self._nvml
        for index in range(nvml.nvmlDeviceGetCount()):
            with suppress(nvml.NVMLError):
                gpu = nvml.nvmlDeviceGetHandleByIndex(index)
                for each in nvml.nvmlDeviceGetComputeRunningProcesses(gpu):
                    found.append([index, each.pid, (each.usedGpuMemory or 0) >> 20])
        return found

    def cluster(self) -> str:
        """The NVLink domain of the GPUs, their cluster UUID; "" where they have none or are in several."""
        nvml, found = self._nvml, set()
        for index in range(nvml.nvmlDeviceGetCount()):
            info = nvml.c_nvmlGpuFabricInfo_t()
            gpu = nvml.nvmlDeviceGetHandleByIndex(index)
            is_known = self._value("nvmlDeviceGetGpuFabricInfo", gpu, nvml.byref(info)) is not None
            is_ready = is_known and info.state == nvml.NVML_GPU_FABRIC_STATE_COMPLETED
            found.add(bytes(info.clusterUuid).hex() if is_ready else "")
        (only,) = found if len(found) == 1 else [""]
        return only if only.strip("0") else ""


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def judged(
    gpus: Sequence[Gpu],
    start: Sequence[Gpu] | None,
    xids: Iterable[str],
    before: Collection[str],
    no_log: str,
) -> list[Finding]:
    """What these facts mean. Pure.

    Args:
        start: The facts at the launcher's start; None at the start.
        xids: Lines of the kernel's log since the start.
        before: Those that it had at the start. A reset may have repaired the GPU since.
        no_log: Why it cannot be read.
    """
    found = []
    if start is not None and len(gpus) < len(start):
        found.append(_sick(f"{len(gpus)} GPUs, and {len(start)} at the start"))
    for gpu in gpus:
        old = next((each for each in start or () if each["index"] == gpu["index"]), None)
        peers = [len(each.get("links") or ()) for each in gpus if each.get("name") == gpu.get("name")]
        found += _troubles(gpu, old, max(peers))
    found += [_sick(text) for text in _described(set(xids) - set(before), gpus)]
    for text in _described(before, gpus):
        found.append(Finding(CHECK, WARNING, f"{text}, before the job began"))
    if found:
        return found
    missing = [word for word, name in FACTS.items() if any(gpu.get(name) is None for gpu in gpus)]
    text = f"{len(gpus)} ({', '.join(sorted({gpu['name'] for gpu in gpus}))})" if gpus else "none"
    text += f"; unknown: {', '.join(missing)}" if missing else ""
    text += f"; Xid errors are not seen ({no_log})" if no_log and gpus else ""
    return [Finding(CHECK, GOOD if gpus else ABSENT, text)]


def _sick(text: str, what: str = "") -> Finding:
    return Finding(CHECK, SICK, text, is_hardware=True, what=what)


def _troubles(gpu: Gpu, old: Gpu | None, most_links: int) -> Iterator[Finding]:
    who = f"GPU {gpu['index']}" + (f" ({gpu['name']})" if gpu.get("name") else "")
    if gpu.get("lost"):
        yield _sick(f"{who} cannot be asked: {gpu['lost']}", f"{who} is lost")
        return
    errors = gpu.get("uncorrected") or 0
    new = errors - (old.get("uncorrected") or 0) if old is not None else 0
    if new > 0:
        yield _sick(f"{who} has had {new} uncorrectable memory errors since the start")
    elif errors:
        text = f"{who} has had {errors} uncorrectable memory errors since its driver was loaded"
        yield Finding(CHECK, WARNING, text)
    if gpu.get("remap_failed"):
        yield _sick(f"{who} could not remap a broken row of its memory and must be replaced")
    if gpu.get("remap_pending") or gpu.get("retire_pending"):
        what = "remapped rows" if gpu.get("remap_pending") else "retired pages"
        yield Finding(CHECK, WARNING, f"{who} has {what} of memory that wait for a reset of the GPU")
    links = set(gpu.get("links") or ())
    before = set((old or {}).get("links") or ()) if gpu.get("links") is not None else set()
    if down := before - links:
        yield _sick(f"{who}: NVLink {', '.join(map(str, sorted(down)))} is down")
    elif links and len(links) < most_links:
        yield Finding(CHECK, WARNING, f"{who} has {len(links)} NVLinks, and others have {most_links}")
    for bit, why in SLOWED.items():
        if int(gpu.get("slowed") or 0) & bit:
            yield Finding(CHECK, WARNING, f"{who} runs slower because {why}")


def _described(lines: Iterable[str], gpus: Sequence[Gpu]) -> Iterator[str]:
    """Xids of the node's own GPUs, where NVML knows their places: a container may see the log of others."""
    own = {_place(gpu["pci"]): gpu["index"] for gpu in gpus if gpu.get("pci")}
    for match in filter(None, map(_XID.search, sorted(lines))):
        place, number = _place(match[1]), int(match[2])
        if number in XIDS and (place in own or not own):
            who = f"GPU {own[place]}" if place in own else f"the GPU at {match[1]}"
            yield f"{who}: Xid {number}, {XIDS[number]} (kernel log)"


def _place(pci: str) -> str:
    """`0000:3b:00`: NVML writes eight digits for the domain, the kernel four, and the function only at times."""
    return pci.lower().partition(".")[0][-10:]
