"""Hooks for a training loop in Megatron's manner: sections "setup", "step" and "checkpointing", and limits from them.

A drop-in for `megatron.bridge.training.fault_tolerance`; with any object for the state, such as
`types.SimpleNamespace()`, for loops of another kind. What is read: `config.checkpoint.save`,
`config.checkpoint.async_save`, `config.ft.calc_ft_timeouts`, and of `config.train` and `config.validation` `eval_iters`
and `eval_interval`. What is written: `global_state.rank_monitor_client` and `global_state.fault_tolerance_state`.

The section "setup" lasts from `setup` to the first step. The first step of a run, and the first evaluation step after
training steps, are slower than others and in no section.
What always holds: before `setup` and after `shutdown` or `abort` every hook does nothing; a hook never raises because
supervision failed; limits are learned by all ranks or by none, and none after a failure.
Does not cover: heartbeats. Ranks that call different hooks: those that learn wait for them, `PATIENCE` at most.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from holdfast.fault_tolerance import RankMonitorClient, RankMonitorClientError
from holdfast.fault_tolerance.timeouts import kept_timeouts
from holdfast.fault_tolerance.timeouts.kept_timeouts import KeptTimeouts
from holdfast.fault_tolerance.timeouts.learned_timeouts import SECTION
from holdfast.fault_tolerance.timeouts.learning_conditions import (
    CHECKPOINTING,
    FAILURE_NOTE,
    SETUP,
    STEP,
    SectionRules,
    Selection,
    is_clean_stop,
)
from holdfast.prefixed_log import Once, Prefixed
from holdfast.side_group import SideGroup
from holdfast.testing.fault import SimulatedFaultParams
from holdfast.testing.injector import Faults, simulate

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
"""Steps at a run's start that are in no section."""
_MIN_ITERS_FOR_STEP_TIMEOUT_UPDATE: int = 16
"""Training steps after which the limit of "step" may be learned."""
_FT_STATE_FILENAME = "ft_state.json"

log = logging.getLogger("holdfast.integrations.megatron")


@dataclass
class FaultToleranceState:
    """What a run has seen so far; Megatron-Bridge has a class of its own with the same fields."""

    ft_state_path: str | None = None
    is_persistent_chkpt_loaded: bool = False
    is_async_chkpt_enabled: bool = False
    is_calculating_timeouts: bool = False
    is_setup_section_open: bool = False
    seen_checkpoints_cnt: int = 0
    seen_tr_iters_cnt: int = 0
    curr_eval_iter_idx: int = 0


class _Run:
    """What belongs to a supervised run, in addition to the documented fields. Collective to make.

    Raises ValueError on all ranks if the folder of the state file cannot be made.
    """

    def __init__(self, path: str, *, evaluates: bool) -> None:
        self.evaluation_to_come = evaluates
        self.side = SideGroup()
        self.log = Prefixed(log, self.side.rank, "fault tolerance")
        self.faults: list[Faults] = []
        self.once = Once(self.log)
        try:
            self.kept = KeptTimeouts(Path(path).absolute(), SECTION, self.side, self.log)
        except BaseException:
            self.side.close()
            raise

    def close(self) -> None:
        """Not collective."""
        for faults in self.faults:
            faults.close()
        self.side.close()


_runs: WeakKeyDictionary[RankMonitorClient, _Run] = WeakKeyDictionary()


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
    state = _begun(global_state)
    state.ft_state_path = os.path.join(os.fspath(folder), _FT_STATE_FILENAME)
    state.is_async_chkpt_enabled = bool(getattr(config.checkpoint, "async_save", False))
    state.is_calculating_timeouts = bool(getattr(getattr(config, "ft", None), "calc_ft_timeouts", False))
    global_state.rank_monitor_client = client
    try:
        _runs[client] = _Run(state.ft_state_path, evaluates=_evaluates(config))
        _load_state_if_exists(global_state)
    except BaseException:
        abort(global_state)
        raise
    _call(client, client.start_section, SETUP)
    state.is_setup_section_open = True


def on_training_step_start(global_state: Any) -> None:
    """Before a training step: "setup" ends, and after the warm-up "step" begins."""
    client, state = _supervised(global_state)
    if client is None or _is_off(global_state):
        return
    _end_setup(client, state)
    state.curr_eval_iter_idx = 0
    if state.seen_tr_iters_cnt >= _NUM_WARMUP_ITERS:
        _call(client, client.start_section, STEP)


def on_training_step_end(global_state: Any) -> None:
    """After a training step."""
    client, state = _supervised(global_state)
    if client is None or _is_off(global_state):
        return
    if state.seen_tr_iters_cnt >= _NUM_WARMUP_ITERS:
        _call(client, client.end_section, STEP)
    state.seen_tr_iters_cnt += 1


def on_eval_step_start(global_state: Any) -> None:
    """Before an evaluation step: "setup" ends, and after the warm-up "step" begins."""
    client, state = _supervised(global_state)
    if client is None:
        return
    _end_setup(client, state)
    if state.curr_eval_iter_idx >= _NUM_WARMUP_ITERS:
        _call(client, client.start_section, STEP)


def on_eval_step_end(global_state: Any) -> None:
    """After an evaluation step."""
    client, state = _supervised(global_state)
    if client is None:
        return
    if state.curr_eval_iter_idx >= _NUM_WARMUP_ITERS:
        _call(client, client.end_section, STEP)
    state.curr_eval_iter_idx += 1
    _runs[client].evaluation_to_come = False


def on_checkpointing_start(global_state: Any) -> None:
    """Before a checkpoint is saved, or the saving of one is finished."""
    client, _ = _supervised(global_state)
    if client is not None and not _is_off(global_state):
        _call(client, client.start_section, CHECKPOINTING)


def on_checkpointing_end(is_async_finalization: bool, global_state: Any) -> None:
    """After that. A checkpoint that was saved is a moment to learn, so this is collective with `calc_ft_timeouts`.

    is_async_finalization: it was only looked whether an asynchronous save has finished, which is no such moment.
    """
    client, state = _supervised(global_state)
    if client is None or _is_off(global_state):
        return
    _call(client, client.end_section, CHECKPOINTING)
    if not is_async_finalization:
        state.seen_checkpoints_cnt += 1
        _maybe_update_timeouts(global_state)


def on_checkpoint_loaded(is_local_chkpt: bool, global_state: Any) -> None:
    """After a checkpoint was loaded. From a local one (of this node's disk) the time of "setup" is not learned."""
    client, state = _supervised(global_state)
    if client is not None and not _is_off(global_state) and not is_local_chkpt:
        state.is_persistent_chkpt_loaded = True


def shutdown(global_state: Any) -> None:
    """End supervision; with `calc_ft_timeouts` learn first, so it is collective. May be called twice.

    While an exception is handled (in `finally`, say) it does what `abort` does.
    """
    client, _ = _supervised(global_state)
    if client is None:
        return
    error = sys.exc_info()[1]
    if error is None or is_clean_stop(error):
        _maybe_update_timeouts(global_state, is_closing_ft=True)
    else:
        _runs[client].once(logging.INFO, FAILURE_NOTE)
    abort(global_state)


def abort(global_state: Any) -> None:
    """End supervision and learn nothing: after a failure. Waits for no other rank. May be called twice."""
    client = getattr(global_state, "rank_monitor_client", None)
    if client is None:
        return
    global_state.rank_monitor_client = None
    run = _runs.pop(client, None)
    if run is not None:
        run.close()
    try:
        if client.is_initialized:
            client.end_all_sections()
        client.shutdown_workload_monitoring()
    except RankMonitorClientError as error:
        log.warning("supervision ended badly: %s", error)


def maybe_setup_simulated_fault(config: Any) -> None:
    """Arm the fault that `config` asks for, if any; `shutdown` and `abort` disarm it. On every rank, after `setup`.

    Reads `simulate_fault`, `simulated_fault_type` ("random", "rank_killed", "rank_hung", or a kind of
    `holdfast.testing`), `simulated_fault_rank` (None: one of them) and `simulated_fault_base_delay` (seconds; up to a
    fifth more). Raises ValueError for what is no fault.
    """
    if not _runs or not getattr(config, "simulate_fault", False):
        return
    base = float(getattr(config, "simulated_fault_base_delay", 0) or 0)
    params = SimulatedFaultParams(
        getattr(config, "simulated_fault_type", "random"),
        base_delay=base,
        rand_delay=0.2 * base,
        rank_to_fail=getattr(config, "simulated_fault_rank", None),
    )
    run = next(iter(_runs.values()))  # a process has one client
    run.faults.append(simulate(params))


def _load_state_if_exists(global_state: Any) -> None:
    """Take the limits that an earlier job has learned. Collective: all ranks get what rank 0 reads."""
    client, state = _supervised(global_state)
    if client is not None and _runs[client].kept.load_into(client):
        _runs[client].log.info("timeouts loaded from %s: %s", state.ft_state_path, client.section_timeouts)


def _update_timeouts(selected_sections: list[str], calc_out_of_section: bool, global_state: Any) -> None:
    """Learn these limits and keep them. Collective."""
    client, _ = _supervised(global_state)
    if client is None:
        return
    run, agreed = _runs[client], Selection(tuple(selected_sections), calc_out_of_section)
    if kept_timeouts.learn_sections(client, run.side, agreed, run.log):
        run.kept.write(client)


def _maybe_update_timeouts(global_state: Any, is_closing_ft: bool = False) -> None:
    """Learn what may be learned at this moment, if all ranks may. Collective with `calc_ft_timeouts`."""
    client, state = _supervised(global_state)
    if client is None or not state.is_calculating_timeouts:
        return
    run = _runs[client]
    own = _selection(state, evaluation_to_come=run.evaluation_to_come, closing=is_closing_ft)
    for note in own.notes:
        run.once(logging.INFO, note)
    patience = kept_timeouts.patience(client)
    agreed = kept_timeouts.sections_wanted_by_all(run.side, own, run.log, patience=patience)
    if agreed:
        _update_timeouts(list(agreed.sections), agreed.out_of_section, global_state)


def _evaluates(config: Any) -> bool:
    """Whether the training has evaluations, as far as its configuration says that."""
    parts = (getattr(config, "train", None), getattr(config, "validation", None))
    return any(getattr(part, "eval_iters", 0) and getattr(part, "eval_interval", 0) for part in parts)


def _selection(state: Any, *, evaluation_to_come: bool, closing: bool) -> Selection:
    """Which limits this run may learn now, by the rules that the Lightning callback has, too."""
    rules = SectionRules(
        asynchronous=bool(state.is_async_chkpt_enabled),
        iterations_for_step=_MIN_ITERS_FOR_STEP_TIMEOUT_UPDATE,
        iterations=state.seen_tr_iters_cnt,
        loaded=state.is_persistent_chkpt_loaded and not state.is_setup_section_open,
        evaluation_to_come=evaluation_to_come,
        checkpoints=state.seen_checkpoints_cnt,
    )
    return rules.selection(final=closing)


def _begun(global_state: Any) -> Any:
    """The fields as at a run's start, on the state's own object if it has one that fits."""
    there = getattr(global_state, "fault_tolerance_state", None)
    fresh = FaultToleranceState()
    names = [field.name for field in dataclasses.fields(fresh)]
    if there is None or not all(hasattr(there, name) for name in names):
        global_state.fault_tolerance_state = fresh
        return fresh
    for name in names:
        setattr(there, name, getattr(fresh, name))
    return there


def _supervised(global_state: Any) -> tuple[RankMonitorClient | None, Any]:
    """The client, None where supervision has not begun or has ended; and what the run has seen."""
    client = getattr(global_state, "rank_monitor_client", None)
    return (client if client in _runs else None), getattr(global_state, "fault_tolerance_state", None)


def _is_off(global_state: Any) -> bool:
    """Whether Megatron's own configuration says that there is no fault tolerance."""
    return getattr(getattr(global_state, "cfg", None), "ft", True) is None


def _end_setup(client: RankMonitorClient, state: Any) -> None:
    if state.is_setup_section_open:
        state.is_setup_section_open = False
        _call(client, client.end_section, SETUP)


def _call(client: RankMonitorClient, call: Callable[[str], None], section: str) -> None:
    """What the client refuses is logged, each reason once, and never raised into the training."""
    try:
        call(section)
    except RankMonitorClientError as error:
        text = f"the training continues, but supervision may not see all of it: {error}"
        _runs[client].once(logging.WARNING, text)
