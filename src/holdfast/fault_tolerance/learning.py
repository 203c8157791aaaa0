"""The limits in force for one rank: from the configuration, from a loaded state, or learned from observation.

What always holds: after the same calls with the same agreed observations, every rank has the same limits, so the
state may be saved by any of them. Pure but for the log. Does not cover: agreeing over ranks (`agreement`) and putting
the limits on the board (`client`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from . import learned_state
from . import limits as rules
from .board import Limits
from .errors import NotReady, RankMonitorClientError
from .intervals import INITIAL, OUT_OF_SECTION, SUBSEQUENT
from .limits import Floors, HeartbeatTimeouts, SectionTimeouts
from .rank_log import log as _log


class LimitsInForce:
    """`heartbeat` and `section` are None until `configure`; a state may be loaded before or after it.

    `loaded_heartbeat` and `loaded_section` are what the last state had of each, unchanged; None without one.
    """

    def __init__(self, floors: Floors) -> None:
        self.heartbeat: HeartbeatTimeouts | None = None
        self.section: SectionTimeouts | None = None
        self._floors = floors
        self.loaded_heartbeat: HeartbeatTimeouts | None = None
        self.loaded_section: SectionTimeouts | None = None
        self._pending_heartbeat: HeartbeatTimeouts | None = None
        self._pending_section: SectionTimeouts | None = None
        self._initial_set_by_user = False

    def configure(self, limits: Limits) -> None:
        """Start from the configured limits, with what was loaded laid over them. A second call changes nothing."""
        if self.heartbeat is not None:
            return
        self._initial_set_by_user = limits.initial_set_by_user
        self.heartbeat = HeartbeatTimeouts(limits.initial, limits.subsequent)
        self.section = SectionTimeouts(dict(limits.sections), limits.out_of_section)
        self._lay_loaded_over()

    def load(self, state: Mapping[str, Any]) -> None:
        """Take the learned limits of a state. Raises RankMonitorClientError if it is no mapping."""
        if not isinstance(state, Mapping):
            raise RankMonitorClientError(
                f"load_state_dict() needs what state_dict() returned, a mapping; got {type(state).__name__}"
            )
        heartbeat, section, problems = learned_state.from_state(state)
        for problem in problems:
            _log.warning("a state of learned limits is left out where it is damaged: %s", problem)
        if heartbeat is not None:
            self.loaded_heartbeat = self._pending_heartbeat = heartbeat
        if section is not None:
            self.loaded_section = self._pending_section = section
        if self.heartbeat is not None:
            self._lay_loaded_over()

    def state(self) -> dict[str, Any]:
        """The documented state: what was learned, or loaded and not used yet."""
        return learned_state.to_state(
            self.heartbeat or self._pending_heartbeat, self.section or self._pending_section
        )

    def on_the_board(self) -> Limits:
        """The limits as the board carries them. Only after `configure`."""
        assert self.heartbeat is not None and self.section is not None
        return Limits(
            self.heartbeat.initial,
            self.heartbeat.subsequent,
            self.section.section,
            self.section.out_of_section,
            self._initial_set_by_user,
        )

    def learn_heartbeats(self, longest: Mapping[str, float], factor: float, *, tell: bool) -> None:
        """Learn from what `Intervals.heartbeats` gave, agreed over all ranks; `tell` says in the log what came out.

        Raises NotReady if no rank has sent two heartbeats.
        """
        assert self.heartbeat is not None
        initial, subsequent = longest[INITIAL], longest[SUBSEQUENT]
        if initial <= 0 or subsequent <= 0:
            raise NotReady(["no rank has sent two heartbeats"])
        self.heartbeat = rules.learn_heartbeats(self.heartbeat, initial, subsequent, factor, self._floors)
        if tell:
            self._tell(self.heartbeat, rules.at_floor(self.heartbeat, None, self._floors))

    def learn_sections(
        self,
        longest: Mapping[str, float],
        selected: Collection[str] | None,
        factor: float,
        *,
        out_of_section: bool,
        tell: bool,
    ) -> None:
        """Learn from what `Intervals.sections` gave, agreed over all ranks. None selects all sections there.

        Raises NotReady if one of the selected sections was never closed, or no time out of section was seen.
        """
        assert self.section is not None
        if selected is None:
            selected = sorted(set(longest) - {OUT_OF_SECTION})
        out = longest[OUT_OF_SECTION] if out_of_section else None
        if missing := rules.unobserved(longest, selected, out):
            raise NotReady(missing)
        chosen = {name: longest[name] for name in selected}
        self.section = rules.learn_sections(self.section, chosen, out, factor, self._floors)
        if tell:
            self._tell(self.section, rules.at_floor(None, self.section, self._floors))

    def _lay_loaded_over(self) -> None:
        assert self.heartbeat is not None and self.section is not None
        heartbeat = self._pending_heartbeat or self.heartbeat
        section = self.section
        if self._pending_section is not None:
            section = learned_state.over(section, self._pending_section)
        raised = rules.raised_to_floor(heartbeat, section, self._floors)
        if raised != (heartbeat, section):
            _log.info(
                "loaded limits below their floor are raised: %s",
                ", ".join(rules.at_floor(*raised, self._floors)),
            )
        self.heartbeat, self.section = raised
        self._pending_heartbeat = self._pending_section = None

    def _tell(self, limits: HeartbeatTimeouts | SectionTimeouts, at_floor: list[str]) -> None:
        _log.info("%s", limits)
        if at_floor:
            _log.info(
                "learned limits were raised to their floor: %s (HOLDFAST_LEARNED_FLOOR and "
                "HOLDFAST_LEARNED_INITIAL_FLOOR set it)",
                ", ".join(at_floor),
            )
