"""Warm start is safe with an NVIDIA driver: the zygote touches no GPU, and a forked rank uses it as a cold one does."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from .check import Check, Place, Row, row
from .environment import linked
from .job import Job, Mark

ZYGOTE = "zygote and standbys: no /dev/nvidia* open or mapped, no process on the GPU, one thread"
REFUSED = "a module that initialises CUDA at import is refused in one line"
SAME = (
    "CUDA_VISIBLE_DEVICES, device count, streams, graphs, pinned memory and loader workers: as in a cold rank"
)
MODULE = "initialises_cuda"
SOURCE = """
import ctypes, os
if os.environ.get("GPU_CHECK_DEVICE") == "cpu":
    ctypes.CDLL("libcuda.so.1").cuInit(0)  # the stand-in
else:
    import torch
    torch.cuda.init()
"""
LIBRARIES = ("lightning.pytorch", "pytorch_lightning", "transformers")


def warm_start(place: Place) -> Iterator[Row]:
    """Three jobs: one to look at its zygote, and one script warm and cold."""
    yield from _zygote(place)
    results = {mode: _behaviour(place, mode) for mode in ("on", "off")}
    differ = sorted(
        f"rank {rank}, {what}: {found!r} warm, {results['off'][rank].get(what)!r} cold"
        for rank, each in results["on"].items()
        for what, found in each.items()
        if found != results["off"][rank].get(what)
        or (found.startswith("error") and not place.dry and rank == 0)
    )
    tried = sum(map(len, results["on"].values()))
    yield row(SAME, not differ and tried > 0, "; ".join(differ) or "nothing was tried", tried=tried)


def _zygote(place: Place) -> Iterator[Row]:
    """Look at them while the rank trains."""
    python, packages = linked(place.folder / "environment")
    (packages / f"{MODULE}.py").write_text(SOURCE)  # only what is installed is imported ahead
    preload = [MODULE, *(() if place.dry else _installed())]
    options = ("--ft-warm-start=on", f"--ft-preload={','.join(preload)}")
    with Job(place, "zygote", "train.py", "--steps", "1000000", options=options, python=python) as job:
        next(job.cycles())
        job.until_standbys_wait(settled=not place.dry)
        pids = [*job.reserve("zygote"), *job.reserve("standby")]
        faults = [fault for pid in pids for fault in touches(pid)]
        loaded = modules(pids[0])
    refused = [record for record in job.journal("warm_start") if record["state"] == "refused"]
    others = [f"{each['module']}: {each['reason']}" for each in refused if MODULE not in each["without"]]
    yield row(
        ZYGOTE,
        not faults and "torch" in loaded and not any("torch" in each["without"] for each in refused),
        "; ".join([*faults, *others]) or f"torch was not imported ahead: {job.said()[-300:]}",
        imported_ahead=", ".join(name for name in loaded),
        refused="; ".join(others) or "none",
    )
    lines = [line for line in job.said().splitlines() if MODULE in line]
    yield row(
        REFUSED,
        len(lines) == 1 and "it initialises CUDA" in lines[0],
        " | ".join(lines) or "no line",
        line="".join(lines),
    )


def _installed() -> list[str]:
    """Of the libraries those that are here, without importing them."""
    from importlib.util import find_spec

    return [name for name in LIBRARIES if find_spec(name.partition(".")[0])]


def touches(pid: int) -> list[str]:
    """What this process has of the GPU, in words."""
    folder = Path("/proc") / str(pid)
    found = [os.readlink(each) for each in (folder / "fd").iterdir()]
    opened = [target for target in found if target.startswith("/dev/nvidia")]
    mapped = {
        line.split()[-1] for line in (folder / "maps").read_text().splitlines() if "/dev/nvidia" in line
    }
    threads = len(list((folder / "task").iterdir()))
    query = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]
    on_gpu = str(pid) in subprocess.run(query, capture_output=True, text=True, timeout=20).stdout.split()
    said = [f"{each} is open" for each in opened] + [f"{each} is mapped" for each in sorted(mapped)]
    said += [f"{threads} threads"] if threads > 1 else []
    return [f"pid {pid}: {each}" for each in [*said, *(["it is on the GPU"] if on_gpu else [])]]


def modules(pid: int) -> list[str]:
    """Which of torch and the libraries it has imported, by the libraries and files that only those bring."""
    maps = (Path("/proc") / str(pid) / "maps").read_text()
    return [name for name, part in (("torch", "/libtorch"), ("tokenizers", "/tokenizers")) if part in maps]


def _behaviour(place: Place, mode: str) -> dict[int, dict[str, str]]:
    """What each rank saw; all started as `mode` says."""
    ranks = place.pick(2, 1)
    with Job(place, f"alike-{mode}", "alike.py", ranks=ranks, options=(f"--ft-warm-start={mode}",)) as job:
        marks: list[Mark] = list(job.marks("behaviour"))
        job.end()
    starts = {record["start"] for record in job.journal("rank_start")}
    if starts != {"warm" if mode == "on" else "cold"} or len(marks) != ranks:
        raise RuntimeError(f"--ft-warm-start {mode}: ranks started {starts}; {job.said()[-300:]}")
    return {mark["rank"]: mark["results"] for mark in marks}


CHECKS = [Check("warm-start", "Warm start is safe", 100, (ZYGOTE, REFUSED, SAME), warm_start)]
