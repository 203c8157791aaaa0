"""Learning for the Megatron-style hooks: which limits, with the agreement of all ranks, and where they are kept.

What always holds: nothing is learned unless all ranks have come and may; nothing here raises for what goes wrong with
it, but for a folder that cannot be had at the start. Does not cover: when it is called (`megatron`).
"""

from __future__ import annotations

from typing import Any

from holdfast.fault_tolerance.timeouts import kept_timeouts
from holdfast.fault_tolerance.timeouts.learning_conditions import Selection

from . import megatron_state
from .megatron_state import supervised

_MIN_ITERS_FOR_STEP_TIMEOUT_UPDATE: int = 16
"""The limit of "step" is learned after at least so many training steps."""


def _load_state_if_exists(global_state: Any) -> None:
    """Take the limits that an earlier job has learned. Collective: all ranks get what rank 0 reads."""
    client, state = supervised(global_state)
    if client is None:
        return
    beside = megatron_state.companion(client)
    if beside.load(state.ft_state_path, client):
        beside.log.info("timeouts loaded from %s: %s", state.ft_state_path, client.section_timeouts)


def _update_timeouts(selected_sections: list[str], calc_out_of_section: bool, global_state: Any) -> None:
    """Learn these limits and keep them. Collective."""
    client, state = supervised(global_state)
    if client is None:
        return
    beside = megatron_state.companion(client)
    agreed = Selection(tuple(selected_sections), calc_out_of_section)
    if kept_timeouts.learn_sections(client, beside.side, agreed, beside.log):
        beside.write(state.ft_state_path, client)


def _maybe_update_timeouts(global_state: Any, is_closing_ft: bool = False) -> None:
    """Learn what may be learned at this moment, if all ranks may. Collective with `calc_ft_timeouts`."""
    client, state = supervised(global_state)
    if client is None or not state.is_calculating_timeouts:
        return
    beside = megatron_state.companion(client)
    own = megatron_state.selection(
        state, iterations_for_step=_MIN_ITERS_FOR_STEP_TIMEOUT_UPDATE, closing=is_closing_ft
    )
    for note in own.notes:
        beside.once(note)
    agreed = kept_timeouts.sections_wanted_by_all(
        beside.side, own, beside.log, patience=kept_timeouts.patience(client)
    )
    if agreed:
        _update_timeouts(list(agreed.sections), agreed.out_of_section, global_state)
