"""The timeouts in force: those that a job begins with, and those that a rank has loaded or learned since.

What always holds: after the same calls with the same agreed observations, every rank has the same timeouts, so the
state may be saved by any of them.

A timeout cannot do what the user set it for where the ranks report in another way. The launcher logs such a
contradiction once: the setting, what the ranks do instead, and what to change.
Does not cover: timeouts that are merely too long or too short for the job.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from holdfast.prefixed_log import Once
from holdfast.prefixed_log import log as _log

from ..board import Limits, Snapshot
from ..errors import NotReady, RankMonitorClientError
from . import learned_timeouts as rules
from .learned_timeouts import Floors, HeartbeatTimeouts, SectionTimeouts

if TYPE_CHECKING:
    from ..config import FaultToleranceConfig
    from ..config_sources import ResolvedConfig

logger = logging.getLogger("holdfast.launcher")
ENOUGH = 10
"""Heartbeats or sections after which a rank's way of reporting is taken for settled."""


def configured_timeouts(
    config: FaultToleranceConfig, *, initial_set_by_user: bool, subsequent_set_by_user: bool = False
) -> Limits:
    """The timeouts that a rank's board begins with; the rank may set others later."""
    return Limits(
        config.initial_rank_heartbeat_timeout,
        config.rank_heartbeat_timeout,
        config.rank_section_timeouts,
        config.rank_out_of_section_timeout,
        initial_set_by_user,
        subsequent_set_by_user,
    )


def describe(limits: Limits) -> str:
    """Which timeouts a job begins with, and for which ranks, in one line."""

    def seconds(value: float | None) -> str:
        return "none" if value is None else f"{value:g} s"

    sections = ", ".join(f"{name} {seconds(timeout)}" for name, timeout in limits.sections.items())
    connected = [
        f"heartbeat {seconds(limits.subsequent)}",
        f"sections {sections or 'none'}",
        f"out of section {seconds(limits.out_of_section)}",
    ]
    every = []
    if limits.initial_set_by_user and limits.initial is not None:
        every.append(f"first heartbeat {seconds(limits.initial)} after its start")
    else:
        connected.insert(0, f"first heartbeat {seconds(limits.initial)}")
    if limits.subsequent_set_by_user and limits.subsequent is not None:
        every.append(f"from one optimizer step to the next {seconds(limits.subsequent)}")
    for_all = f"for every rank: {', '.join(every)}; " if every else ""
    return f"{for_all}for ranks that connect: {', '.join(connected)}"


class Advice:
    """Logs each contradiction once in the life of a launcher."""

    def __init__(self, resolved: ResolvedConfig) -> None:
        self._resolved = resolved
        self._once = Once(logger)

    def on(self, boards: Iterable[Snapshot]) -> None:
        """Check the ranks' boards; cheap enough for once a second."""
        for sentence in _contradictions(self._resolved, boards):
            self._once(logging.WARNING, sentence)


def _contradictions(resolved: ResolvedConfig, boards: Iterable[Snapshot]) -> Iterator[str]:
    """What does not fit, given the boards of the ranks so far."""
    connected = [board for board in boards if board.connected]
    beats = max((board.heartbeat_count for board in connected), default=0)
    sections = max((board.section_count for board in connected), default=0)
    config, origins = resolved.config, resolved.origins
    if resolved.is_set("rank_heartbeat_timeout") and sections >= ENOUGH and not beats:
        yield (
            f"rank_heartbeat_timeout is set ({origins['rank_heartbeat_timeout']}), but the ranks send no heartbeats, "
            "only sections: it finds no hang. Set rank_section_timeouts and rank_out_of_section_timeout instead"
        )
    has_steps = any("step" in board.section_totals for board in connected)
    if (
        config.num_warmup_iterations
        and config.rank_out_of_section_timeout
        and sections >= ENOUGH
        and not has_steps
    ):
        yield (
            f"num_warmup_iterations is set ({origins['num_warmup_iterations']}), but the ranks end no section 'step': "
            "rank_out_of_section_timeout is never less than the initial one. Set num_warmup_iterations to 0"
        )
    in_sections = config.rank_section_timeouts or config.rank_out_of_section_timeout
    if in_sections and beats >= ENOUGH and not sections:
        which = "rank_section_timeouts" if config.rank_section_timeouts else "rank_out_of_section_timeout"
        yield (
            f"{which} is set ({origins[which]}), but the ranks open no sections, they only send heartbeats: it finds "
            "no hang. Set rank_heartbeat_timeout instead"
        )


class EffectiveTimeouts:
    """Of one rank. `heartbeat` and `section` are None until `configure`; a state may be loaded before or after it.

    `loaded_heartbeat` and `loaded_section` are what the last state had of each, unchanged; None without one.
    """

    def __init__(self, floors: Floors) -> None:
        self.heartbeat: HeartbeatTimeouts | None = None
        self.section: SectionTimeouts | None = None
        self.loaded_heartbeat: HeartbeatTimeouts | None = None
        self.loaded_section: SectionTimeouts | None = None
        self._floors = floors
        self._initial_set_by_user = False

    def configure(self, limits: Limits) -> None:
        """Start from the configured timeouts, under those that were loaded. A second call changes nothing."""
        if self.heartbeat is not None:
            return
        self._initial_set_by_user = limits.initial_set_by_user
        self._floors = replace(self._floors, configured=limits)
        self.heartbeat = HeartbeatTimeouts(limits.initial, limits.subsequent)
        self.section = SectionTimeouts(dict(limits.sections), limits.out_of_section)
        self._apply(self.loaded_heartbeat, self.loaded_section)

    def load(self, state: Mapping[str, Any]) -> None:
        """Take the learned timeouts of a state. Raises RankMonitorClientError if it is no mapping."""
        if not isinstance(state, Mapping):
            raise RankMonitorClientError(
                f"load_state_dict() needs what state_dict() returned, a mapping; got {type(state).__name__}"
            )
        heartbeat, section, problems = rules.from_state(state)
        for problem in problems:
            _log.warning("a part of a state of learned timeouts is left out: %s", problem)
        self.loaded_heartbeat = heartbeat or self.loaded_heartbeat
        self.loaded_section = section or self.loaded_section
        if self.heartbeat is not None:
            self._apply(heartbeat, section)

    def state(self) -> dict[str, Any]:
        """The documented state: what was learned, or loaded and not used yet."""
        return rules.to_state(self.heartbeat or self.loaded_heartbeat, self.section or self.loaded_section)

    def on_the_board(self) -> Limits:
        """As the board carries them. Only after `configure`."""
        assert self.heartbeat is not None and self.section is not None
        return Limits(
            self.heartbeat.initial,
            self.heartbeat.subsequent,
            self.section.section,
            self.section.out_of_section,
            self._initial_set_by_user,
        )

    def learn(
        self, part: str, longest: Mapping[str, float], names: Collection[str], factor: float, *, log: bool
    ) -> None:
        """Learn the timeouts of these names from what `Intervals` gave, agreed over all ranks; `log` logs the result.

        Args:
            part: `HEARTBEAT` or `SECTION`.

        Raises NotReady if one of them was not observed by any rank.
        """
        if missing := rules.unobserved(part, longest, names):
            raise NotReady(missing)
        seconds = {name: longest[name] for name in names}
        learned: Any = rules.learn(getattr(self, part), seconds, factor, self._floors)
        setattr(self, part, learned)  # the attributes are named like the parts of a state
        if log:
            _log.info("%s", learned)
            if at_floor := rules.at_floor(learned, self._floors):
                _log.info(
                    "learned timeouts were raised to their floor: %s (HOLDFAST_LEARNED_FLOOR and "
                    "HOLDFAST_LEARNED_INITIAL_FLOOR set it)",
                    ", ".join(at_floor),
                )

    def _apply(self, heartbeat: HeartbeatTimeouts | None, section: SectionTimeouts | None) -> None:
        assert self.heartbeat is not None and self.section is not None
        loaded = heartbeat or self.heartbeat, rules.over(self.section, section) if section else self.section
        self.heartbeat = rules.raised_to_floor(loaded[0], self._floors)
        self.section = rules.raised_to_floor(loaded[1], self._floors)
        if (self.heartbeat, self.section) != loaded:
            at_floor = [
                *rules.at_floor(self.heartbeat, self._floors),
                *rules.at_floor(self.section, self._floors),
            ]
            _log.info("loaded timeouts were raised to their floor: %s", ", ".join(at_floor))
