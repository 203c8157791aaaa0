"""Imports only point inward: core (pure) <- shell (processes, files, signals) <- edge (what people import and run).

The table below says which module is in which ring. What is not in it is shell. A name that a package re-exports
counts as the module that defines it, and an import inside a function counts as well.
"""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src"

CORE = {
    "holdfast.torch_version",
    "holdfast.autoresume.policy",
    "holdfast.autoresume.outcome",
    "holdfast.autoresume.ledger",
    "holdfast.doctor.table",
    "holdfast.fault_tolerance.board.values",
    "holdfast.fault_tolerance.config_fields",
    "holdfast.fault_tolerance.errors",
    "holdfast.fault_tolerance.launcher.control",
    "holdfast.fault_tolerance.launcher.control.agreed_stop",
    "holdfast.fault_tolerance.launcher.control.controller",
    "holdfast.fault_tolerance.launcher.control.exiting",
    "holdfast.fault_tolerance.launcher.control.gathering",
    "holdfast.fault_tolerance.launcher.control.messages",
    "holdfast.fault_tolerance.launcher.control.node",
    "holdfast.fault_tolerance.launcher.control.records",
    "holdfast.fault_tolerance.launcher.control.running",
    "holdfast.fault_tolerance.launcher.control.stopping",
    "holdfast.fault_tolerance.launcher.exit_codes",
    "holdfast.fault_tolerance.launcher.progress",
    "holdfast.fault_tolerance.launcher.ranks.exits",
    "holdfast.fault_tolerance.monitor.deadlines",
    "holdfast.fault_tolerance.stop.rules",
    "holdfast.fault_tolerance.timeouts.learned_timeouts",
    "holdfast.fault_tolerance.timeouts.learning_conditions",
    "holdfast.incidents.classify",
    "holdfast.incidents.evidence",
    "holdfast.incidents.report.next_steps",
    "holdfast.incidents.report.redaction",
    "holdfast.incidents.report.text",
    "holdfast.incidents.report.wording",
    "holdfast.incidents.rules",
    "holdfast.incidents.rules.blame",
    "holdfast.incidents.rules.differences",
    "holdfast.incidents.rules.exits",
    "holdfast.incidents.rules.graph",
    "holdfast.incidents.rules.places",
    "holdfast.incidents.rules.recorder",
    "holdfast.incidents.rules.sentence",
    "holdfast.incidents.rules.signatures",
    "holdfast.incidents.schema_1",
    "holdfast.incidents.verdict",
    "holdfast.incidents.wire",
    "holdfast.integrations.slurm.exclusion",
    "holdfast.integrations.slurm.facts",
    "holdfast.integrations.slurm.place",
    "holdfast.integrations.slurm.plan",
    "holdfast.integrations.slurm.script",
    "holdfast.journal.event",
    "holdfast.journal.incidents",
    "holdfast.preemption.log_texts",
    "holdfast.preemption.time_left",
    "holdfast.callbacks.straggler_findings",
    "holdfast.callbacks.straggler_settings",
    "holdfast.straggler.baseline",
    "holdfast.straggler.exchange",
    "holdfast.straggler.gpu_facts",
    "holdfast.straggler.groups",
    "holdfast.straggler.interval",
    "holdfast.straggler.judge",
    "holdfast.straggler.kernels.names",
    "holdfast.straggler.log_texts",
    "holdfast.straggler.readings.kept",
    "holdfast.straggler.record",
    "holdfast.straggler.report",
    "holdfast.straggler.rule",
    "holdfast.straggler.scores",
    "holdfast.straggler.settings",
    "holdfast.straggler.statistic",
    "holdfast.straggler.thresholds",
    "holdfast.straggler.window",
    "holdfast.testing.fault",
    "holdfast.visible",
}
"""Decisions as functions of values: no clock, no file, no process, no torch."""

EDGE = {
    "holdfast.__main__",
    "holdfast.callbacks.exception_policy",
    "holdfast.callbacks.learning_limits",
    "holdfast.callbacks.sections",
    "holdfast.callbacks.straggler_training",
    "holdfast.callbacks.supervised_training",
    "holdfast.callbacks.supervision",
    "holdfast.checkpoints",
    "holdfast.cli",
    "holdfast.cli.autoresume",
    "holdfast.cli.diagnose",
    "holdfast.cli.doctor",
    "holdfast.cli.incidents",
    "holdfast.cli.main",
    "holdfast.cli.options",
    "holdfast.cli.replay",
    "holdfast.cli.slurm",
    "holdfast.cli.stragglers",
    "holdfast.fault_tolerance",
    "holdfast.fault_tolerance.client",
    "holdfast.fault_tolerance.launcher.__main__",
    "holdfast.fault_tolerance.launcher.main",
    "holdfast.fault_tolerance.server",
    "holdfast.fault_tolerance.stop",
    "holdfast.fault_tolerance.stop.point",
    "holdfast.integrations.loop",
    "holdfast.integrations.megatron",
    "holdfast.integrations.nemo_run.callback_configs",
    "holdfast.integrations.nemo_run.fault_tolerance_plugin",
    "holdfast.integrations.nemo_run.launcher",
    "holdfast.integrations.nemo_run.preemption_plugin",
    "holdfast.integrations.transformers.bundle",
    "holdfast.integrations.transformers.fault_tolerance_callback",
    "holdfast.integrations.transformers.preemption_callback",
    "holdfast.integrations.transformers.straggler_det_callback",
    "holdfast.ptl_resiliency.bundle",
    "holdfast.ptl_resiliency.fault_tolerance_callback",
    "holdfast.ptl_resiliency.fault_tolerance_sections_callback",
    "holdfast.ptl_resiliency.preemption_callback",
    "holdfast.ptl_resiliency.recipes",
    "holdfast.preemption.stopping_place",
    "holdfast.ptl_resiliency.straggler_det_callback",
    "holdfast.ptl_resiliency.supervised_callback",
    "holdfast.straggler",
    "holdfast.straggler.detector",
    "holdfast.testing",
    "holdfast.testing.__main__",
}
"""What training programs import and what people start."""

RINGS = ("core", "shell", "edge")

# Reading a clock or touching anything outside the process takes one of these.
NOT_IN_CORE = {
    "fcntl", "glob", "mmap", "multiprocessing", "numpy", "os", "pathlib", "random", "resource", "rich", "select",
    "selectors", "shutil", "socket", "subprocess", "tempfile", "threading", "time", "torch", "yaml",
}  # fmt: skip

NUMERIC = tuple(f"holdfast.straggler.{name}" for name in ("baseline", "groups", "judge", "rule", "window"))
"""Decisions over all ranks and kernels at once: the one part of the core that computes with numpy."""

HEAVY = ("torch", "numpy", "yaml", "rich", "psutil", "pydantic", "jinja2")

LIGHT = [
    "holdfast",
    "holdfast.cli",
    "holdfast.checkpoints",
    "holdfast.checkpoints.complete",
    "holdfast.doctor.checks",
    "holdfast.fault_tolerance",
    "holdfast.fault_tolerance.board",
    "holdfast.fault_tolerance.monitor",
    "holdfast.fault_tolerance.monitor.main",
    "holdfast.fault_tolerance.stop.point",
    "holdfast.integrations.nemo_run",
    "holdfast.journal.incidents",
    "holdfast.journal.reader",
    "holdfast.journal.run_dir",
    "holdfast.journal.writer",
    "holdfast.integrations.transformers",
    "holdfast.preemption.notices",
    "holdfast.ptl_resiliency",
    "holdfast.straggler",
    "holdfast.straggler.detector",
    "holdfast.testing",
]
"""Importing these loads nothing heavy: training code pays for it at every start, the monitor runs beside every job."""


def ring(module: str) -> str:
    return "core" if module in CORE else "edge" if module in EDGE else "shell"


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


def test_the_table_names_only_modules_that_exist() -> None:
    assert (CORE | EDGE) - modules().keys() == set()


def test_imports_point_inward() -> None:
    wrong = {
        f"{importer} ({ring(importer)}) imports {target} ({ring(target)})"
        for importer, target in edges()
        if RINGS.index(ring(target)) > RINGS.index(ring(importer))
    }
    assert not wrong, "\n".join(sorted(wrong))


def test_what_is_lightnings_is_used_by_lightnings_callbacks_alone() -> None:
    """NeMo-Run configures those callbacks. Whatever others share with them lies further in."""
    room = "holdfast.ptl_resiliency"
    allowed = (room, "holdfast.integrations.nemo_run.")
    wrong = {
        f"{importer} imports {target}"
        for importer, target in edges()
        if target.startswith(room) and not importer.startswith(allowed)
    }
    assert not wrong, "\n".join(sorted(wrong))


def test_incidents_import_no_command() -> None:
    """Supervision depends on neither the self-check nor the command line."""
    commands = ("holdfast.doctor", "holdfast.cli")
    wrong = {
        f"{importer} imports {target}"
        for importer, target in edges()
        if importer.startswith("holdfast.incidents") and target.startswith(commands)
    }
    assert not wrong, "\n".join(sorted(wrong))


PACKAGES = ("cli", "doctor", "incidents", "journal", "testing")
"""Packages without an import cycle between them. `fault_tolerance` is left out: it imports `incidents` and `journal`,
and both import it."""


def test_packages_have_no_import_cycle() -> None:
    imported: dict[str, set[str]] = {package: set() for package in PACKAGES}
    for importer, target in edges():
        packages = [f"{module}.".split(".")[1] for module in (importer, target)]
        if packages[0] != packages[1] and set(packages) <= set(PACKAGES):
            imported[packages[0]].add(packages[1])
    while free := {package for package, targets in imported.items() if not targets & imported.keys()}:
        for package in free:
            del imported[package]
    assert imported == {}


def test_core_is_pure() -> None:
    wrong = {
        f"{module} imports {source}"
        for module in CORE & modules().keys()
        for source, _ in imports(module)
        if source.partition(".")[0] in NOT_IN_CORE
        if not (module.startswith(NUMERIC) and source.partition(".")[0] == "numpy")
    }
    assert not wrong, "\n".join(sorted(wrong))


def test_the_resolution_sees_what_it_should() -> None:
    """A test of this test: a relative import, a re-export, a module and a name."""
    assert ("holdfast.journal.incidents", "holdfast.journal.event") in set(edges())
    assert home("holdfast.fault_tolerance.board", "Snapshot") == "holdfast.fault_tolerance.board.values"
    assert home("holdfast.fault_tolerance", "errors") == "holdfast.fault_tolerance.errors"
    assert home("torch.distributed", "Store") == "torch.distributed"


@pytest.mark.parametrize("module", LIGHT)
def test_importing_is_light(module: str) -> None:
    code = (
        f"import sys, json, {module}; print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert json.loads(done.stdout) == []


PUBLIC = {
    "holdfast": ["Loop", "__version__"],
    "holdfast.checkpoints": [
        "Search",
        "Skipped",
        "last_complete",
        "last_complete_on_all_ranks",
        "look",
        "whole_file",
        "why_incomplete",
    ],
    "holdfast.fault_tolerance": [
        "FaultToleranceConfig",
        "HeartbeatTimeouts",
        "RankMonitorClient",
        "RankMonitorClientError",
        "RankMonitorServer",
        "SectionTimeouts",
        "WorkloadAction",
        "WorkloadControlRequest",
    ],
    "holdfast.fault_tolerance.stop": ["END", "LOADER_END", "StopPoint", "in_loader", "position"],
    "holdfast.ptl_resiliency": [
        "FaultToleranceCallback",
        "FaultToleranceSectionsCallback",
        "HoldfastCallback",
        "PreemptionCallback",
        "SimulatedFaultParams",
        "StragglerDetectionCallback",
    ],
    "holdfast.straggler": [
        "CallableId",
        "Detector",
        "Findings",
        "Report",
        "Statistic",
        "StragglerId",
        "Thresholds",
        "Verdict",
        "find_stragglers",
    ],
    "holdfast.testing": [
        "Fault",
        "FaultSpecError",
        "Faults",
        "InjectedFault",
        "KINDS",
        "SimulatedFaultParams",
        "inject",
        "parse",
    ],
}


@pytest.mark.parametrize("package", PUBLIC)
def test_the_public_names(package: str) -> None:
    module = importlib.import_module(package)
    assert sorted(module.__all__) == PUBLIC[package]
    assert [name for name in module.__all__ if not hasattr(module, name)] == []
    assert set(module.__all__) <= set(dir(module))
