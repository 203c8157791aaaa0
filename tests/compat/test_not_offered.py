"""What is not offered says so, and programs that ask first find out as they always did."""

from __future__ import annotations

import importlib
import importlib.util

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
    """Megatron-LM's arguments ask for the module's place, and take an error for no."""
    for module in ("checkpointing.local.ckpt_managers.local_manager", "checkpointing.async_ckpt.core"):
        with pytest.raises(ModuleNotFoundError, match="does not offer"):
            importlib.util.find_spec(f"{NAME}.{module}")
    assert importlib.util.find_spec(f"{NAME}.no_such_module") is None
    assert importlib.util.find_spec(f"{NAME}.attribution.straggler") is not None
    assert not hasattr(importlib.import_module(NAME), "inprocess")
