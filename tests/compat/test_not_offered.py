"""What is not offered says so, and programs that ask first find out as they always did."""

from __future__ import annotations

import importlib
import importlib.util
import sys

import pytest

from tests.compat.conftest import NAME

pytestmark = pytest.mark.usefixtures("alias")

INSTEAD = {
    "inprocess": "ft_launcher",
    "inprocess.abort": "ft_launcher",
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
        with pytest.raises(ModuleNotFoundError, match="Holdfast, which is installed as") as error:
            importlib.import_module(f"{NAME}.{module}")
        assert f"does not offer {'restarts' if 'inproc' in module else 'local'}" in str(error.value)
        assert INSTEAD[module] in str(error.value)


@pytest.mark.parametrize(
    "line", ["import {n}.inprocess as i", "from {n} import inprocess", "from {n}.inprocess import Wrapper"]
)
def test_in_every_form_of_import(line: str) -> None:
    with pytest.raises(ModuleNotFoundError, match="does not offer restarts within the process"):
        exec(line.format(n=NAME))


def test_who_looks_before_importing() -> None:
    """Python's own answers: None, or the error of the parent that is not there, which Megatron-LM takes for no."""
    for module in ("checkpointing.local.ckpt_managers.local_manager", "checkpointing.async_ckpt.core"):
        with pytest.raises(ModuleNotFoundError, match="does not offer"):
            importlib.util.find_spec(f"{NAME}.{module}")
    for missing in (
        "no_such_module",
        "inprocess",
        "checkpointing",
        "ptl_resiliency.local_checkpoint_callback",
    ):
        assert importlib.util.find_spec(f"{NAME}.{missing}") is None
    assert importlib.util.find_spec(f"{NAME}.attribution.straggler") is not None
    assert not hasattr(importlib.import_module(NAME), "inprocess")


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
def test_the_rest_of_the_original_does_not_look_like_a_broken_installation(module: str) -> None:
    with pytest.raises(
        ModuleNotFoundError, match=r"does not offer this name\. Instead: what .* is not broken"
    ):
        importlib.import_module(f"{NAME}.{module}")


def test_a_name_in_a_package_is_told_as_well() -> None:
    with pytest.raises(ImportError, match=r"fault_tolerance\.RankMonitorState: Holdfast, .* does not offer"):
        exec(f"from {NAME}.fault_tolerance import RankMonitorState")


def test_the_finder_leaves_others_alone() -> None:
    importlib.reload(importlib.import_module(NAME))
    (finder,) = [each for each in sys.meta_path if getattr(each, "__module__", "").startswith(NAME)]
    assert finder is sys.meta_path[-1]
    assert finder.find_spec(f"{NAME}.inprocess", None) is None  # by hand: that is no import
    for name in (f"{NAME}_more", "no_such_module"):
        with pytest.raises(ModuleNotFoundError, match=f"^No module named '{name}'$"):
            importlib.import_module(name)
    with pytest.raises(ModuleNotFoundError, match=r"^No module named .*__main__'$"):
        importlib.import_module(f"{NAME}.__main__")
