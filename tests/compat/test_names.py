"""Every name is Holdfast's very object, wherever a program looks for it, and however it refers to it."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import pickle
from pathlib import Path
from types import ModuleType

import pytest
from packaging.version import Version

from tests.compat.conftest import NAME
from tests.processes import Spawner

pytestmark = pytest.mark.usefixtures("alias")


def places() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Module here -> module of Holdfast's, names."""
    names = importlib.import_module("holdfast_nvrx.names").NAMES
    return {f"{NAME}.{place}": found for place, found in names.items()}


def load(name: str) -> ModuleType:
    return importlib.import_module(name)


def test_every_offered_name_is_the_very_object() -> None:
    pytest.importorskip("lightning", reason="the callbacks derive from its classes")
    assert len(places()) >= 18
    for place, (home, names) in places().items():
        for name in names:
            assert getattr(load(place), name) is getattr(load(home), name), (place, name)


def test_packages_offer_all_that_is_public_and_say_so() -> None:
    for place, (home, names) in places().items():
        module = load(place)
        # `main` is the one name that a module here has of its own.
        assert [name for name in module.__all__ if name != "main"] == list(names)
        assert set(names) <= set(dir(module))
        if place.count(".") == 1:
            assert sorted(names) == sorted(load(home).__all__)


def test_submodules_are_attributes_of_their_package() -> None:
    """After the import of the package alone, as in the original."""
    package = load(f"{NAME}.fault_tolerance")
    assert package.data.WorkloadAction is load("holdfast.fault_tolerance").WorkloadAction
    assert package.rank_monitor_client.RankMonitorClient is package.RankMonitorClient
    assert load(f"{NAME}.straggler").reporting.Report is load("holdfast.straggler").Report
    assert load(f"{NAME}.ptl_resiliency").fault_tolerance_callback.__name__.endswith(
        "fault_tolerance_callback"
    )
    assert load(NAME).attribution.straggler.Detector is load("holdfast.straggler").Detector


def test_what_is_not_there_is_not_pretended() -> None:
    module = load(f"{NAME}.fault_tolerance")
    assert not hasattr(module, "RankMonitorState")
    with pytest.raises(AttributeError, match="of Holdfast has no attribute 'RankMonitorState'"):
        _ = module.RankMonitorState


def test_errors_and_instances_agree() -> None:
    theirs, ours = load(f"{NAME}.fault_tolerance"), load("holdfast.fault_tolerance")
    with pytest.raises(ours.RankMonitorClientError):
        theirs.RankMonitorClient().send_heartbeat()
    with pytest.raises(theirs.RankMonitorClientError):
        ours.RankMonitorClient().send_heartbeat()
    assert isinstance(theirs.FaultToleranceConfig(), ours.FaultToleranceConfig)
    assert isinstance(ours.FaultToleranceConfig(), theirs.FaultToleranceConfig)


def test_pickles_agree() -> None:
    theirs, ours = load(f"{NAME}.fault_tolerance"), load("holdfast.fault_tolerance")
    request = theirs.WorkloadControlRequest(ours.WorkloadAction.ShutdownWorkload, "enough")
    again = pickle.loads(pickle.dumps(request))
    assert again == request and type(again) is ours.WorkloadControlRequest
    assert again.action is theirs.WorkloadAction.ShutdownWorkload
    # A pickle that names the second name: of a class of the program's own that derives from one, or the original's.
    by_name = f"c{NAME}.fault_tolerance.data\nWorkloadAction\n(I2\ntR.".encode()
    assert pickle.loads(by_name) is ours.WorkloadAction.ShutdownWorkload


def test_reload_changes_nothing() -> None:
    module = load(f"{NAME}.straggler")
    before = module.Detector
    assert importlib.reload(module) is module
    assert module.Detector is before


def test_star_import_and_module_imports() -> None:
    space: dict[str, object] = {}
    exec(f"from {NAME}.ptl_resiliency._utils import *\nimport {NAME}.straggler.statistics as s", space)
    assert space["SimulatedFaultParams"] is load("holdfast.testing").SimulatedFaultParams
    assert space["s"] is load(f"{NAME}.straggler.statistics")
    assert load(f"{NAME}.straggler").statistics is space["s"]


def test_versions() -> None:
    version = load(NAME).__version__
    assert Version(version) >= Version("0.6.0") and Version(version).release == (0, 6, 0)
    assert importlib.metadata.version("nvidia-resiliency-ext") == version


def test_the_functions_on_nested_containers() -> None:
    utils = load(f"{NAME}.fault_tolerance.dict_utils")
    inner = [1, {"c": 2}]
    nested = {"a": inner, "b": 3}
    outside = utils.dict_list_map_outplace(lambda leaf: leaf * 10, nested)
    assert outside == {"a": [10, {"c": 20}], "b": 30} and nested == {"a": [1, {"c": 2}], "b": 3}
    assert utils.dict_list_map_inplace(lambda leaf: leaf + 1, nested) is nested
    assert nested["a"] is inner and nested == {"a": [2, {"c": 3}], "b": 4}
    assert utils.dict_list_map_inplace(str, 5) == "5"


def test_the_page_names_what_is_offered_and_what_is_not() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "drop-in.md").read_text()
    for place in places():
        for part in place.split(".")[1:]:
            assert part.startswith("_") or part in page
    for part in ("inprocess", "checkpointing.local", "checkpointing.async_ckpt", "local_checkpoint_callback"):
        assert f".{part}`" in page
    assert load(NAME).__version__ in page


# -- importing the second name costs no more than importing Holdfast; the newer places are found first


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
