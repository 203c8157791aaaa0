"""Importing the second name costs no more than importing Holdfast; the newer places are found first."""

from __future__ import annotations

import json

from tests.processes import Spawner

PROGRAM = """
import importlib.util, json, sys
assert "holdfast_nvrx.answers" not in sys.modules and "importlib.metadata" not in sys.modules, "at the start"

assert importlib.util.find_spec("nvidia_resiliency_ext") is not None

# As Megatron-Bridge does.
try:
    import nvidia_resiliency_ext.attribution.straggler as straggler
except (ImportError, ModuleNotFoundError):
    import nvidia_resiliency_ext.straggler as straggler
import nvidia_resiliency_ext.fault_tolerance as ft
import nvidia_resiliency_ext.fault_tolerance.dict_utils
import nvidia_resiliency_ext.fault_tolerance.launcher
import nvidia_resiliency_ext.ptl_resiliency as ptl
import nvidia_resiliency_ext.ptl_resiliency.fault_tolerance_callback
import nvidia_resiliency_ext.shared_utils.inject_fault

before = sorted(name for name in sys.modules if name.partition(".")[0] == "holdfast")
names = [straggler.__name__, ft.__name__]
ft.RankMonitorClient, straggler.Detector
heavy = [name for name in ("torch", "numpy", "lightning", "pytorch_lightning", "yaml") if name in sys.modules]
print(json.dumps([names, before, heavy]))
"""


def test_newest_first_and_nothing_heavy(spawn: Spawner, python: str) -> None:
    run = spawn([python, "-c", PROGRAM])
    assert run.wait() == 0, run.output()
    names, ours, heavy = json.loads(run.out())
    assert names == ["nvidia_resiliency_ext.attribution.straggler", "nvidia_resiliency_ext.fault_tolerance"]
    # The two that `inject_fault` names; nothing of a package that the program only imports.
    assert ours == ["holdfast", "holdfast.lazy", "holdfast.testing"]
    assert heavy == []
