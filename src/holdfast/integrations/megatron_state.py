"""What the Megatron-style hooks keep between two calls: the documented fields, and what belongs to them beside.

The fields are on `global_state.fault_tolerance_state`, where Megatron-Bridge has a class of its own with the same ones;
the rest (the ranks' side group, the state file, the log) belongs to the client and goes with it.
Does not cover: what the hooks do with them (`megatron`).
"""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from holdfast.fault_tolerance import RankMonitorClient, RankMonitorClientError
from holdfast.fault_tolerance.timeouts.kept_timeouts import KeptTimeouts
from holdfast.fault_tolerance.timeouts.learned_timeouts import SECTION
from holdfast.fault_tolerance.timeouts.learning_conditions import SectionRules, Selection
from holdfast.prefixed_log import Prefixed
from holdfast.side_group import SideGroup

log = logging.getLogger("holdfast.integrations.megatron")


@dataclass
class FaultToleranceState:
    """What a run has seen so far."""

    ft_state_path: str | None = None
    is_persistent_chkpt_loaded: bool = False
    is_async_chkpt_enabled: bool = False
    is_calculating_timeouts: bool = False
    is_setup_section_open: bool = False
    seen_checkpoints_cnt: int = 0
    seen_tr_iters_cnt: int = 0
    curr_eval_iter_idx: int = 0


def begin(global_state: Any) -> Any:
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


def selection(state: Any, *, iterations_for_step: int, closing: bool) -> Selection:
    """Which limits this run may learn now, by the rules that the Lightning callback has, too."""
    rules = SectionRules(
        asynchronous=bool(state.is_async_chkpt_enabled),
        iterations_for_step=iterations_for_step,
        iterations=state.seen_tr_iters_cnt,
        loaded=state.is_persistent_chkpt_loaded and not state.is_setup_section_open,
        checkpoints=state.seen_checkpoints_cnt,
    )
    return rules.selection(final=closing)


def supervised(global_state: Any) -> tuple[RankMonitorClient | None, Any]:
    """The client, None where supervision has not begun or has ended; and what the run has seen."""
    client = getattr(global_state, "rank_monitor_client", None)
    return client, getattr(global_state, "fault_tolerance_state", None)


class Companion:
    """What belongs to a client. Collective to make, where there are several ranks."""

    def __init__(self) -> None:
        self.side = SideGroup()
        self.log = Prefixed(log, self.side.rank, "fault tolerance")
        self.kept: KeptTimeouts | None = None
        self.said: set[str] = set()

    def load(self, path: str, client: RankMonitorClient) -> bool:
        """Whether the file had limits. Collective. Raises ValueError on all ranks if its folder cannot be made."""
        self.kept = KeptTimeouts(Path(path).absolute(), SECTION, self.side, self.log)
        return self.kept.load_into(client)

    def write(self, path: str, client: RankMonitorClient) -> None:
        """Keep what was learned; rank 0 does."""
        if self.kept is None:
            self.load(path, client)
        if self.kept is not None:
            self.kept.write(client)

    def once(self, text: str) -> None:
        """Say it, if it was not said before."""
        if text not in self.said:
            self.said.add(text)
            self.log.info(text)


_companions: WeakKeyDictionary[RankMonitorClient, Companion] = WeakKeyDictionary()


def companion(client: RankMonitorClient) -> Companion:
    """The one of this client; made when it is first asked for."""
    if client not in _companions:
        _companions[client] = Companion()
    return _companions[client]


def forget(client: RankMonitorClient) -> None:
    """Nothing more belongs to it. Not collective."""
    gone = _companions.pop(client, None)
    if gone is not None:
        gone.side.close()


def trouble(client: RankMonitorClient, error: RankMonitorClientError) -> None:
    """A call of a hook that the client refuses: said once, as the training matters more."""
    beside, text = _companions.get(client), str(error)
    if beside is not None:
        if text in beside.said:
            return
        beside.said.add(text)
    log.warning("the training continues, but supervision may not see all of it: %s", text)
