"""Hooks for a training loop in Megatron's manner: sections "setup", "step" and "checkpointing", and limits from them.

A drop-in for `megatron.bridge.training.fault_tolerance`; with any object for the state, such as
`types.SimpleNamespace()`, for loops of another kind. What is read: `config.checkpoint.save`,
`config.checkpoint.async_save`, `config.ft.calc_ft_timeouts`. What is written: `global_state.rank_monitor_client` and
`global_state.fault_tolerance_state`.

The section "setup" lasts from `setup` to the first step. The first step of a run, and the first evaluation step after
training steps, are slower than others and in no section.
What always holds: before `setup` and after `shutdown` or `abort` every hook does nothing; a hook never raises because
supervision failed; limits are learned by all ranks or by none, and none after a failure.
Does not cover: heartbeats. Ranks that call different hooks: those that learn wait for them, `PATIENCE` at most.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from holdfast.fault_tolerance import RankMonitorClient, RankMonitorClientError
from holdfast.fault_tolerance.timeouts.learning_conditions import CHECKPOINTING, FAILURE_NOTE, SETUP, STEP
from holdfast.fault_tolerance.timeouts.learning_conditions import is_clean_stop as _is_clean_stop
from holdfast.testing.injector import Faults, simulate
from holdfast.testing.simulated import SimulatedFaultParams

from . import megatron_state
from .megatron_learning import (
    _MIN_ITERS_FOR_STEP_TIMEOUT_UPDATE,
    _load_state_if_exists,
    _maybe_update_timeouts,
    _update_timeouts,
)
from .megatron_state import FaultToleranceState, supervised

__all__ = [
    "FaultToleranceState",
    "setup",
    "on_training_step_start",
    "on_training_step_end",
    "on_eval_step_start",
    "on_eval_step_end",
    "on_checkpointing_start",
    "on_checkpointing_end",
    "on_checkpoint_loaded",
    "shutdown",
    "abort",
    "maybe_setup_simulated_fault",
    "_MIN_ITERS_FOR_STEP_TIMEOUT_UPDATE",
    "_NUM_WARMUP_ITERS",
    "_load_state_if_exists",
    "_maybe_update_timeouts",
    "_update_timeouts",
]

_NUM_WARMUP_ITERS: int = 1
"""So many steps at a run's start are in no section."""
_FT_STATE_FILENAME = "ft_state.json"

_faults: list[Faults] = []


def setup(config: Any, global_state: Any) -> None:
    """Begin supervision and open the section "setup". Collective: after `init_process_group`, on every rank.

    Learned limits of earlier jobs are taken from `ft_state.json` in the checkpoint directory, whether or not this job
    is to learn any (`config.ft.calc_ft_timeouts`).

    Raises:
        ValueError: `config.checkpoint.save` names no directory, or (on all ranks) rank 0 cannot make it.
        RankMonitorClientError: the program was not started by `ft_launcher`, or supervision has begun already.
    """
    folder = getattr(config.checkpoint, "save", None)
    if not folder:
        raise ValueError("checkpointing save dir must be set to enable fault tolerance")
    client = RankMonitorClient()
    client.init_workload_monitoring()
    state = megatron_state.begin(global_state)
    state.ft_state_path = os.path.join(os.fspath(folder), _FT_STATE_FILENAME)
    state.is_async_chkpt_enabled = bool(getattr(config.checkpoint, "async_save", False))
    state.is_calculating_timeouts = bool(getattr(getattr(config, "ft", None), "calc_ft_timeouts", False))
    global_state.rank_monitor_client = client
    try:
        _load_state_if_exists(global_state)
    except BaseException:
        abort(global_state)
        raise
    _call(client, client.start_section, SETUP)
    state.is_setup_section_open = True


def on_training_step_start(global_state: Any) -> None:
    """Before a training step: "setup" ends, and after the warm-up "step" begins."""
    client, state = supervised(global_state)
    if client is None or _is_off(global_state):
        return
    _end_setup(client, state)
    state.curr_eval_iter_idx = 0
    if state.seen_tr_iters_cnt >= _NUM_WARMUP_ITERS:
        _call(client, client.start_section, STEP)


def on_training_step_end(global_state: Any) -> None:
    """After a training step."""
    client, state = supervised(global_state)
    if client is None or _is_off(global_state):
        return
    if state.seen_tr_iters_cnt >= _NUM_WARMUP_ITERS:
        _call(client, client.end_section, STEP)
    state.seen_tr_iters_cnt += 1


def on_eval_step_start(global_state: Any) -> None:
    """Before an evaluation step: "setup" ends, and after the warm-up "step" begins."""
    client, state = supervised(global_state)
    if client is None:
        return
    _end_setup(client, state)
    if state.curr_eval_iter_idx >= _NUM_WARMUP_ITERS:
        _call(client, client.start_section, STEP)


def on_eval_step_end(global_state: Any) -> None:
    """After an evaluation step."""
    client, state = supervised(global_state)
    if client is None:
        return
    if state.curr_eval_iter_idx >= _NUM_WARMUP_ITERS:
        _call(client, client.end_section, STEP)
    state.curr_eval_iter_idx += 1


def on_checkpointing_start(global_state: Any) -> None:
    """Before a checkpoint is saved, or the saving of one is finished."""
    client, _ = supervised(global_state)
    if client is not None and not _is_off(global_state):
        _call(client, client.start_section, CHECKPOINTING)


def on_checkpointing_end(is_async_finalization: bool, global_state: Any) -> None:
    """After that. A checkpoint that was saved is a moment to learn, so this is collective with `calc_ft_timeouts`.

    is_async_finalization: it was only looked whether an asynchronous save has finished, which is no such moment.
    """
    client, state = supervised(global_state)
    if client is None or _is_off(global_state):
        return
    _call(client, client.end_section, CHECKPOINTING)
    if not is_async_finalization:
        state.seen_checkpoints_cnt += 1
        _maybe_update_timeouts(global_state)


def on_checkpoint_loaded(is_local_chkpt: bool, global_state: Any) -> None:
    """After a checkpoint was loaded. From a local one (of this node's disk) the time of "setup" is not learned."""
    client, state = supervised(global_state)
    if client is not None and not _is_off(global_state) and not is_local_chkpt:
        state.is_persistent_chkpt_loaded = True


def shutdown(global_state: Any) -> None:
    """End supervision; with `calc_ft_timeouts` learn first, so it is collective. May be called twice.

    While an exception is handled (in `finally`, say) it does what `abort` does.
    """
    client, _ = supervised(global_state)
    if client is None:
        return
    error = sys.exc_info()[1]
    if error is None or _is_clean_stop(error):
        _maybe_update_timeouts(global_state, is_closing_ft=True)
    else:
        megatron_state.companion(client).once(FAILURE_NOTE)
    abort(global_state)


def abort(global_state: Any) -> None:
    """End supervision and learn nothing: after a failure. Waits for no other rank. May be called twice."""
    while _faults:
        _faults.pop().close()
    client, _ = supervised(global_state)
    if client is None:
        return
    global_state.rank_monitor_client = None
    try:
        if client.is_initialized:
            client.end_all_sections()
        client.shutdown_workload_monitoring()
    except RankMonitorClientError as error:
        megatron_state.log.warning("supervision ended badly: %s", error)
    megatron_state.forget(client)


def maybe_setup_simulated_fault(config: Any) -> None:
    """Arm the fault that `config` asks for, if any; `shutdown` and `abort` disarm it. On every rank.

    Reads `simulate_fault`, `simulated_fault_type` ("random", "rank_killed", "rank_hung", or a kind of
    `holdfast.testing`), `simulated_fault_rank` (None: one of them) and `simulated_fault_base_delay` (seconds; up to a
    fifth more). Raises ValueError for what is no fault.
    """
    if config is None or not getattr(config, "simulate_fault", False):
        return
    base = float(getattr(config, "simulated_fault_base_delay", 0) or 0)
    params = SimulatedFaultParams(
        getattr(config, "simulated_fault_type", "random"),
        base_delay=base,
        rand_delay=0.2 * base,
        rank_to_fail=getattr(config, "simulated_fault_rank", None),
    )
    _faults.append(simulate(params))


def _is_off(global_state: Any) -> bool:
    """Whether Megatron's own configuration says that there is no fault tolerance."""
    return getattr(getattr(global_state, "cfg", None), "ft", True) is None


def _end_setup(client: RankMonitorClient, state: Any) -> None:
    if state.is_setup_section_open:
        state.is_setup_section_open = False
        _call(client, client.end_section, SETUP)


def _call(client: RankMonitorClient, call: Callable[[str], None], section: str) -> None:
    try:
        call(section)
    except RankMonitorClientError as error:
        megatron_state.trouble(client, error)
