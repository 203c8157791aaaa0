"""The second name: what it offers, what the error states for the rest, and how programs ask."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import pickle
import sys
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


# -- the error for a name that is not offered states this, and programs that ask first find out as they always did


INSTEAD = {
    "inprocess.tools.inject_fault": "ft_launcher",
    "checkpointing": "torch.distributed.checkpoint",
    "checkpointing.async_ckpt.cached_metadata_filesystem_reader": "torch.distributed.checkpoint",
    "checkpointing.async_ckpt.core": "torch.distributed.checkpoint",
    "checkpointing.async_ckpt.filesystem_async": "torch.distributed.checkpoint",
    "checkpointing.async_ckpt.state_dict_saver": "torch.distributed.checkpoint",
    "checkpointing.local.base_state_dict": "torch.distributed.checkpoint",
    "checkpointing.local.ckpt_managers.base_manager": "torch.distributed.checkpoint",
    "checkpointing.local.ckpt_managers.local_manager": "torch.distributed.checkpoint",
    "checkpointing.local.replication.group_utils": "torch.distributed.checkpoint",
    "checkpointing.local.replication.strategies": "torch.distributed.checkpoint",
    "ptl_resiliency.local_checkpoint_callback": "ModelCheckpoint",
}
"""All that NeMo, Megatron-Bridge and Megatron-LM import of these."""


@pytest.mark.parametrize("module", INSTEAD)
def test_the_error_says_so_and_what_to_use(module: str) -> None:
    # Clients catch ImportError, ModuleNotFoundError or both; Megatron-LM's fault injector the latter.
    for _ in range(2):  # the second time too
        with pytest.raises(ModuleNotFoundError, match=r"Holdfast answers for .* and does not offer") as error:
            importlib.import_module(f"{NAME}.{module}")
        assert f"does not offer {'restarts' if 'inproc' in module else 'local'}" in str(error.value)
        assert "async" not in module or "--async-strategy mcore" in str(error.value)
        assert INSTEAD[module] in str(error.value)


@pytest.mark.parametrize(
    "line",
    [
        "import {n}.checkpointing as c",
        "from {n} import checkpointing",
        "from {n}.checkpointing.local import utils",
    ],
)
def test_in_every_form_of_import(line: str) -> None:
    with pytest.raises(ModuleNotFoundError, match="does not offer local and asynchronous checkpoints"):
        exec(line.format(n=NAME))


BRIDGE = """
from {n}.inprocess import CallWrapper

def pretrain(wrapper: CallWrapper | None = None) -> str:
    return "trained"

class Own(CallWrapper):
    pass
"""


def test_inprocess_is_imported_and_refuses_to_be_called() -> None:
    """As Megatron-Bridge's training/pretrain.py imports it, unguarded."""
    space: dict[str, object] = {}
    exec(BRIDGE.format(n=NAME), space)
    assert space["pretrain"]() == "trained"  # type: ignore[operator]
    names = importlib.import_module("holdfast_nvrx.names")
    inprocess = importlib.import_module(f"{NAME}.inprocess")
    places = [(f"{NAME}.{module}", name) for module, found in names.STUBS.items() for name in found]
    for place, name in places:
        stub = getattr(importlib.import_module(place), name)
        if name in names.EXCEPTIONS:
            assert issubclass(stub, Exception)
            continue
        with pytest.raises(
            RuntimeError, match=r"does not offer restarts within the process: start .* ft_launcher"
        ):
            stub(timeout=3)
    assert inprocess.Mode is inprocess.state.Mode
    with pytest.raises(RuntimeError, match="does not offer"):  # as Megatron-LM and Megatron-Bridge call it
        inprocess.rank_assignment.Layer(flag=inprocess.rank_assignment.LayerFlag.RESERVE)
    with pytest.raises(RuntimeError, match="does not offer"):
        space["Own"]()  # type: ignore[operator]


def test_missing_names_are_not_called_modules() -> None:
    for line in ("fault_tolerance.config import nope", "ptl_resiliency import LocalCheckpointCallback"):
        with pytest.raises(ImportError) as error:
            exec(f"from {NAME}.{line}")
        assert "of Holdfast has no" in str(error.value) and "beside it" not in str(error.value)


def test_who_looks_before_importing() -> None:
    """Python's own answers: None, or the error of the parent that is not there, which Megatron-LM takes for no."""
    for module in ("checkpointing.local.ckpt_managers.local_manager", "checkpointing.async_ckpt.core"):
        with pytest.raises(ModuleNotFoundError, match="does not offer"):
            importlib.util.find_spec(f"{NAME}.{module}")
    for missing in (
        "no_such_module",
        "checkpointing",
        "ptl_resiliency.local_checkpoint_callback",
    ):
        assert importlib.util.find_spec(f"{NAME}.{missing}") is None
    assert importlib.util.find_spec(f"{NAME}.attribution.straggler") is not None
    assert not hasattr(importlib.import_module(NAME), "checkpointing")


@pytest.mark.parametrize(
    "module",
    [
        "fault_tolerance.utils",
        "attribution.straggler.cupti",
        "shared_utils.health_check",
        "log_manager",
        "a.b",
    ],
)
def test_other_modules_name_the_page(module: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=r"does not offer this module; see docs/drop-in\.md"):
        importlib.import_module(f"{NAME}.{module}")


def test_other_packages_are_left_alone() -> None:
    importlib.reload(importlib.import_module(NAME))
    ours = [each for each in sys.meta_path if getattr(each, "__module__", "") == "holdfast_nvrx_start"]
    assert [getattr(each, "__name__", "") for each in ours] == ["Finder"]
    for name in (f"{NAME}_more", "no_such_module"):
        with pytest.raises(ModuleNotFoundError, match=f"^No module named '{name}'$"):
            importlib.import_module(name)
    with pytest.raises(ModuleNotFoundError, match=r"^No module named .*__main__'$"):
        importlib.import_module(f"{NAME}.__main__")
