"""When which limit is learned: a table of what a run has seen."""

from __future__ import annotations

import inspect

import pytest

from holdfast.integrations import megatron
from holdfast.integrations.megatron import FaultToleranceState, _selection

ALL = ["setup", "step", "checkpointing"]


@pytest.mark.parametrize(
    ("seen", "closing", "sections", "out"),
    [
        ({}, True, [], False),
        ({"is_persistent_chkpt_loaded": True}, False, ["setup"], False),
        ({"is_persistent_chkpt_loaded": True, "is_setup_section_open": True}, True, [], False),
        ({"seen_tr_iters_cnt": 15}, True, [], False),
        ({"seen_tr_iters_cnt": 16}, False, ["step"], False),
        ({"seen_checkpoints_cnt": 1}, False, ["checkpointing"], False),
        ({"seen_checkpoints_cnt": 1, "is_async_chkpt_enabled": True}, False, [], False),
        ({"is_persistent_chkpt_loaded": True, "seen_tr_iters_cnt": 16}, True, ["setup", "step"], False),
    ],
)
def test_what_is_selected(seen: dict[str, object], closing: bool, sections: list[str], out: bool) -> None:
    chosen = _selection(FaultToleranceState(**seen), closing=closing)  # type: ignore[arg-type]
    assert (list(chosen.sections), chosen.out_of_section) == (sections, out)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_out_of_section_at_the_end_of_a_complete_run_only(asynchronous: bool) -> None:
    state = FaultToleranceState(
        is_persistent_chkpt_loaded=True,
        is_async_chkpt_enabled=asynchronous,
        seen_tr_iters_cnt=16,
        seen_checkpoints_cnt=1,
    )
    sections = ALL[:2] if asynchronous else ALL
    for closing in (False, True):
        chosen = _selection(state, closing=closing)
        assert (list(chosen.sections), chosen.out_of_section) == (sections, closing)


def test_the_documented_names_and_signatures() -> None:
    assert (megatron._NUM_WARMUP_ITERS, megatron._MIN_ITERS_FOR_STEP_TIMEOUT_UPDATE) == (1, 16)
    expected = {
        "setup": ["config", "global_state"],
        "on_checkpointing_end": ["is_async_finalization", "global_state"],
        "on_checkpoint_loaded": ["is_local_chkpt", "global_state"],
        "maybe_setup_simulated_fault": ["config"],
        "_update_timeouts": ["selected_sections", "calc_out_of_section", "global_state"],
        "_maybe_update_timeouts": ["global_state", "is_closing_ft"],
    }
    steps = [f"on_{kind}_step_{edge}" for kind in ("training", "eval") for edge in ("start", "end")]
    for name in (*steps, "on_checkpointing_start", "shutdown", "abort", "_load_state_if_exists"):
        expected[name] = ["global_state"]
    for name, parameters in expected.items():
        assert list(inspect.signature(getattr(megatron, name)).parameters) == parameters, name
    assert inspect.signature(megatron._maybe_update_timeouts).parameters["is_closing_ft"].default is False
