"""Imports only point inward: from what people start, through packages, to decisions that are functions of values.

A name that a package re-exports counts as the module that defines it, and an import inside a function counts as well.
"""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src"

LAYERS = (
    {"fault_tolerance.errors"},
    {"holdfast", "in_time", "lazy", "patches", "prefixed_log", "private_file", "side_group", "visible"},
    {"fault_tolerance.processes"},
    {"checkpoints", "health", "html_page", "journal"},
    {"fault_tolerance.board"},
    {"incidents"},
    {"fault_tolerance"},
    {"doctor", "straggler", "testing"},
    {"callbacks"},
    {"autoresume", "ptl_resiliency"},
    {"integrations"},
    {"views"},
    {"cli"},
    {"__main__"},
)
"""Packages, parts of packages and helpers, from inside to outside: each imports only what lies further in, and itself.

What is named here as a part (`fault_tolerance.board`) is not in the layer of its package.
"""

PURE = (
    "holdfast.fault_tolerance.launcher.control",
    "holdfast.incidents.rules",
    *(f"holdfast.straggler.{name}" for name in ("groups", "judge", "rule", "window")),
)
"""Decisions as functions of values: packages, and the rule for stragglers. So is each module that calls itself pure."""

# Reading a clock or touching anything outside the process takes one of these.
IMPURE = {
    "fcntl", "glob", "mmap", "multiprocessing", "numpy", "os", "pathlib", "random", "resource", "rich", "select",
    "selectors", "shutil", "socket", "subprocess", "tempfile", "threading", "time", "torch", "yaml",
}  # fmt: skip

HEAVY = ("torch", "numpy", "yaml", "rich", "psutil", "pydantic", "jinja2")
"""What no package loads when it is imported, nor these modules: training code pays for it at every start, the monitor
runs beside every job."""
LIGHT = (
    "checkpoints.complete",
    "doctor.checks",
    "fault_tolerance.monitor.main",
    "fault_tolerance.stop.point",
    "journal.incidents",
    "journal.reader",
    "journal.run_dir",
    "journal.writer",
    "straggler.detector",
)


@cache
def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name. The launcher's prologue is code for other processes."""
    found = {}
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        if "prologue" not in parts:
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imports(module: str) -> tuple[tuple[str, str | None], ...]:
    """What a module imports: (module, None) or (module, name), absolute."""
    path = modules()[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    found: list[tuple[str, str | None]] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            found += [(source, alias.name) for alias in node.names]
    return tuple(found)


def home(source: str, name: str | None) -> str:
    """The module that defines what is imported: through the re-exports of packages."""
    if name is None or source not in modules():
        return source
    if f"{source}.{name}" in modules():
        return f"{source}.{name}"
    if modules()[source].name == "__init__.py":
        for further, exported in imports(source):
            if exported == name and further.startswith("holdfast"):
                return home(further, name)
    return source


def edges() -> Iterator[tuple[str, str]]:
    """(importer, imported), inside the package, but for what packages re-export."""
    for module, path in modules().items():
        if path.name == "__init__.py":
            continue  # its re-exports are resolved where they are used
        for source, name in imports(module):
            target = home(source, name)
            if target.startswith("holdfast"):
                yield module, target


def part(module: str, layers: Mapping[str, int]) -> str:
    """The part of ours that it is in, the smallest one that has a layer; `holdfast` is one by itself."""
    name = module.removeprefix("holdfast.")
    while name not in layers and "." in name:
        name = name.rpartition(".")[0]
    return name


def test_imports_point_inward() -> None:
    layers = {name: number for number, names in enumerate(LAYERS) for name in names}
    wrong = set()
    for importer, target in edges():
        ours, theirs = part(importer, layers), part(target, layers)
        if ours != theirs and layers[theirs] >= layers[ours]:
            wrong.add(f"{importer} imports {target}")
    assert not wrong, "\n".join(sorted(wrong))


def test_lightnings_parts_are_used_by_its_callbacks_alone() -> None:
    """NeMo-Run configures those callbacks. Whatever others share with them lies further in."""
    room = "holdfast.ptl_resiliency"
    allowed = (room, "holdfast.integrations.nemo_run.")
    wrong = {
        f"{importer} imports {target}"
        for importer, target in edges()
        if target.startswith(room) and not importer.startswith(allowed)
    }
    assert not wrong, "\n".join(sorted(wrong))


@cache
def is_pure(module: str) -> bool:
    """Whether its docstring has `Pure.`, or its package is pure."""
    about = ast.get_docstring(ast.parse(modules()[module].read_text())) or ""
    return "Pure." in about or f"{module}.".startswith(tuple(f"{name}." for name in PURE))


def test_pure_modules_reach_nothing_outside_of_the_process() -> None:
    """Also by what it imports of ours."""
    wrong = set()
    for module in filter(is_pure, modules()):
        reached, found = {module}, [module]
        while found:
            for source, name in imports(found.pop()):
                target = home(source, name)
                allowed = {"numpy"} if module in PURE else set()
                if source.partition(".")[0] in IMPURE - allowed:
                    wrong.add(f"{module} reaches {source}")
                if target in modules() and target not in reached:
                    reached.add(target)
                    found.append(target)
    assert not wrong, "\n".join(sorted(wrong))


def test_importing_is_light() -> None:
    packages = sorted(module for module, path in modules().items() if path.name == "__init__.py")
    code = f"""
import importlib, json, sys
for module in {[*packages, *(f"holdfast.{module}" for module in LIGHT)]}:
    importlib.import_module(module)
    if loaded := [name for name in {HEAVY} if name in sys.modules]:
        sys.exit(f"{{module}} loads {{loaded}}")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


PUBLIC = {
    "holdfast": "Loop __version__",
    "holdfast.checkpoints": (
        "Search Skipped last_complete last_complete_on_all_ranks look whole_file why_incomplete"
    ),
    "holdfast.fault_tolerance": (
        "FaultToleranceConfig HeartbeatTimeouts RankMonitorClient RankMonitorClientError "
        "RankMonitorServer SectionTimeouts WorkloadAction WorkloadControlRequest"
    ),
    "holdfast.incidents": "judge",
    "holdfast.fault_tolerance.stop": "END LOADER_END StopPoint in_loader position",
    "holdfast.ptl_resiliency": (
        "FaultToleranceCallback FaultToleranceSectionsCallback HoldfastCallback PreemptionCallback "
        "SimulatedFaultParams StragglerDetectionCallback"
    ),
    "holdfast.straggler": (
        "CallableId Detector Findings Report Statistic StragglerId Thresholds Verdict find_stragglers"
    ),
    "holdfast.testing": "Fault FaultSpecError Faults InjectedFault KINDS SimulatedFaultParams inject parse",
}


@pytest.mark.parametrize("package", PUBLIC)
def test_the_public_names(package: str) -> None:
    module = importlib.import_module(package)
    assert sorted(module.__all__) == PUBLIC[package].split()
    assert set(module.__all__) <= set(dir(module))
    # The callbacks are loaded by their own tests, and Lightning with them, which takes seconds.
    loaded = ["SimulatedFaultParams"] if package == "holdfast.ptl_resiliency" else module.__all__
    assert [name for name in loaded if not hasattr(module, name)] == []
