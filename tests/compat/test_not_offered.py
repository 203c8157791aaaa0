"""The error for a name that is not offered states this, and programs that ask first find out as they always did."""

from __future__ import annotations

import importlib
import importlib.util
import sys

import pytest

from tests.compat.conftest import NAME

pytestmark = pytest.mark.usefixtures("alias")

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
