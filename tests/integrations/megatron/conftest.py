"""One rank with a board, and Megatron-Bridge's objects by their shape."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.fault_tolerance import FaultToleranceConfig
from holdfast.integrations import megatron

LIMITS = {"setup": 600.0, "step": 180.0, "checkpointing": 420.0}


@pytest.fixture
def config() -> FaultToleranceConfig:
    return FaultToleranceConfig(rank_section_timeouts=dict(LIMITS), rank_out_of_section_timeout=300.0)


@dataclass
class BridgeState:
    """As `megatron.bridge.training.state.FaultToleranceState`."""

    ft_state_path: str | None = None
    is_persistent_chkpt_loaded: bool = False
    is_async_chkpt_enabled: bool = False
    is_calculating_timeouts: bool = False
    is_setup_section_open: bool = False
    seen_checkpoints_cnt: int = 0
    seen_tr_iters_cnt: int = 0
    curr_eval_iter_idx: int = 0


@dataclass
class GlobalState:
    """As `megatron.bridge.training.state.GlobalState`."""

    cfg: Any = None
    rank_monitor_client: Any = None
    fault_tolerance_state: Any = field(default_factory=BridgeState)


def config_container(save: Path | None, *, learn: bool = True, asynchronous: bool = False) -> Any:
    return SimpleNamespace(
        checkpoint=SimpleNamespace(save=save and str(save), async_save=asynchronous),
        ft=SimpleNamespace(enable_ft_package=True, calc_ft_timeouts=learn, simulate_fault=False),
    )


def train(state: Any, steps: int, *, loaded: bool = False, evaluate: int = 0, saves: int = 1) -> None:
    """A loop's calls, between `setup` and the end."""
    if loaded:
        megatron.on_checkpoint_loaded(False, state)
    for _ in range(steps):
        megatron.on_training_step_start(state)
        megatron.on_training_step_end(state)
    for _ in range(evaluate):
        megatron.on_eval_step_start(state)
        megatron.on_eval_step_end(state)
    for _ in range(saves):
        megatron.on_checkpointing_start(state)
        megatron.on_checkpointing_end(False, state)


def fields(state: Any) -> dict[str, Any]:
    return dataclasses.asdict(state.fault_tolerance_state)
