"""Where this process's libcupti may be.

What always holds: a copy that is loaded already comes first, because two copies in one process disturb each other;
and only copies of the CUDA that torch was built for are looked at. Nothing is loaded here.
Does not cover: programs that use CUDA without torch, unless HOLDFAST_CUPTI_LIBRARY names the file.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

OVERRIDE = "HOLDFAST_CUPTI_LIBRARY"
"""Names the one file to use instead of everything below."""
_WHEELS = {12: "cuda_cupti/lib", 13: "cu13/lib"}
"""Where NVIDIA's wheels have it, below the package `nvidia`."""


@dataclass(frozen=True)
class Candidate:
    """One place to look: a file, or a name that the loader finds; with `loaded_only`, only what is loaded already."""

    path: str
    loaded_only: bool = False


def candidates(environment: Mapping[str, str] = os.environ) -> list[Candidate] | str:
    """All places, the best first; or why there can be none, one clause."""
    override = environment.get(OVERRIDE)
    if override:
        return [Candidate(override)]
    torch = sys.modules.get("torch")
    if torch is None:
        return "torch is not loaded"
    major = _cuda_of(torch)
    if major is None:
        return "torch is built without CUDA"
    name = f"libcupti.so.{major}"
    files = [folder / name for folder in _folders(major, environment)]
    return [
        Candidate(name, loaded_only=True),
        *(Candidate(str(file)) for file in files if file.exists()),
        Candidate(name),
    ]


def tool_in_the_way(environment: Mapping[str, str] = os.environ) -> str:
    """The variable by which a profiler tells that it has started this process; empty if there is none."""
    for name in environment:
        # Where Nsight Systems is installed says nothing about whether it runs.
        session = name.startswith("NSYS_") and not name.endswith(("_HOME", "_ROOT", "_DIR", "_PATH"))
        if session or name == "CUDA_INJECTION64_PATH":
            return name
    return ""


def _cuda_of(torch: ModuleType) -> int | None:
    version = getattr(getattr(torch, "version", None), "cuda", None)
    text = str(version).partition(".")[0] if version else ""
    return int(text) if text.isdecimal() else None


def _folders(major: int, environment: Mapping[str, str]) -> Iterator[Path]:
    if major in _WHEELS:
        spec = importlib.util.find_spec("nvidia")
        for place in (spec.submodule_search_locations if spec else None) or ():
            yield Path(place) / _WHEELS[major]
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        home = environment.get(variable)
        if home:
            yield Path(home) / "lib64"
            yield Path(home) / "extras" / "CUPTI" / "lib64"
