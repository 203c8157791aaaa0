"""Warm start is safe with an NVIDIA driver: zygotes do not use the GPU, and a forked rank uses it like a cold one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from .gpu_check import Check, Row, by_mode, is_dry, row
from .gpu_environment import link_packages
from .gpu_job import Job, Mark

ZYGOTE = "zygote and standbys, torch and frameworks imported: no /dev/nvidia* open or mapped, one thread"
REFUSED = "a module that initialises CUDA at import is refused in one line"
SAME = "CUDA_VISIBLE_DEVICES, device count, streams, graphs, pinned memory, loader workers: as in a cold rank"
ATTEMPTS = 5
MODULE = "initialises_cuda_at_import"
SOURCE = """
import ctypes, os
if os.environ.get("GPU_CHECK_DEVICE") == "cpu":
    ctypes.CDLL("libcuda.so.1").cuInit(0)  # the stand-in
    device = os.open("/dev/null", os.O_RDWR)
else:
    import torch
    torch.cuda.init()
"""
FRAMEWORKS = ("lightning.pytorch", "pytorch_lightning", "transformers")


def run(folder: Path) -> Iterator[Row]:
    yield from _inspect_zygote(folder)
    warm, cold = (_observe(folder, mode) for mode in ("on", "off"))
    differ = [
        f"rank {rank}, {name}: {found!r} warm, {cold[rank].get(name)!r} cold"
        for rank, observed in warm.items()
        for name, found in observed.items()
        if found != cold[rank].get(name) or (found.startswith("error") and rank == 0 and not is_dry())
    ]
    yield row(SAME, not differ, "; ".join(differ), compared=sum(map(len, warm.values())))


def _inspect_zygote(folder: Path) -> Iterator[Row]:
    python, packages = link_packages(folder / "environment")
    (packages / f"{MODULE}.py").write_text(SOURCE)  # only installed modules are imported ahead
    frameworks = [name for name in by_mode(FRAMEWORKS, ()) if find_spec(name.partition(".")[0])]
    options = ("--ft-warm-start=on", f"--ft-preload={','.join([MODULE, *frameworks])}")
    with Job(folder, "zygote", "gpu_train.py", "--steps", "1000000", options=options, python=python) as job:
        next(job.read_cycles())
        job.wait_for_standbys(settled=not is_dry())
        inspected = _inspect(job)
    faults = [fault for each in inspected for fault in each.faults]
    # In a dry run another zygote may still be importing.
    has_torch = bool(inspected) and by_mode(all, any)(each.has_torch for each in inspected)
    refused = {record.get("module", "").partition(".")[0] for record in job.journal("warm_start")}
    kept_out = [name for name in ("torch", *frameworks) if name.partition(".")[0] in refused]
    failed = [line for line in job.error_lines() if "cannot be imported" in line]
    yield row(
        ZYGOTE,
        has_torch and not (faults or kept_out or failed),
        "; ".join([*faults, *(f"{name} is refused" for name in kept_out), *failed])
        or "a process lacks torch",
        imported=", ".join(["torch", *frameworks]),
        inspected_processes=len(inspected),
    )
    lines = [line for line in job.error_lines() if MODULE in line]
    is_one = len(lines) == 1 and "it initialises CUDA" in lines[0]
    yield row(REFUSED, is_one, f"{len(lines)} lines: {lines[:2]}")


@dataclass(frozen=True)
class Inspected:
    """`faults`: signs that a process has used the GPU, and threads, which no fork copies."""

    faults: list[str]
    has_torch: bool


def _inspect(job: Job) -> list[Inspected]:
    """Zygote and standbys; all again if one of them was replaced meanwhile."""
    for _ in range(ATTEMPTS):
        with suppress(OSError):
            pids = [*job.find_processes("zygote"), *job.find_processes("standby")]
            return [_inspect_process(pid) for pid in pids]
    raise RuntimeError(f"zygote and standbys were replaced {ATTEMPTS} times: {job.errors()}")


def _inspect_process(pid: int) -> Inspected:
    folder = Path("/proc") / str(pid)
    opened = [os.readlink(each) for each in (folder / "fd").iterdir()]
    maps = (folder / "maps").read_text()
    mapped = {line.split()[-1] for line in maps.splitlines() if "/dev/nvidia" in line}
    threads = len(list((folder / "task").iterdir()))
    found = [f"{each} is open" for each in opened if each.startswith("/dev/nvidia")]
    found += [f"{each} is mapped" for each in sorted(mapped)]
    found += [f"{threads} threads"] if threads > 1 else []
    return Inspected([f"pid {pid}: {each}" for each in found], "/libtorch" in maps)


def _observe(folder: Path, mode: str) -> dict[int, dict[str, str]]:
    """Rank -> what it observed of the GPU."""
    ranks = by_mode(2, 1)
    options = (f"--ft-warm-start={mode}",)
    with Job(folder, f"observe-{mode}", "gpu_observe.py", ranks=ranks, options=options) as job:
        marks: list[Mark] = list(job.read("observed"))
        job.wait()
    starts = {record["start"] for record in job.journal("rank_start")}
    if starts != {"warm" if mode == "on" else "cold"} or len(marks) != ranks:
        raise RuntimeError(f"--ft-warm-start={mode}: {len(marks)} ranks, started {starts}; {job.errors()}")
    return {mark["rank"]: mark["observed"] for mark in marks}


CHECKS = [Check("warm-start", 110, (ZYGOTE, REFUSED, SAME), run)]
