"""Limits that cannot do what the user set them for, seen from how the ranks report. The rules are pure.

Each sentence names the setting, what the ranks do instead, and what to change; the launcher says it once.
Does not cover: limits that are merely too long or too short for the job.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from ...board import Snapshot
from ...config_sources import ResolvedConfig

logger = logging.getLogger("holdfast.launcher")
ENOUGH = 10  # heartbeats or sections after which a rank's way of reporting is taken for settled


def contradictions(resolved: ResolvedConfig, boards: Iterable[Snapshot]) -> Iterator[str]:
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
    if (
        (config.rank_section_timeouts or config.rank_out_of_section_timeout)
        and beats >= ENOUGH
        and not sections
    ):
        which = "rank_section_timeouts" if config.rank_section_timeouts else "rank_out_of_section_timeout"
        yield (
            f"{which} is set ({origins[which]}), but the ranks open no sections, they only send heartbeats: it finds "
            "no hang. Set rank_heartbeat_timeout instead"
        )


class Advice:
    """Says each contradiction once in the life of a launcher."""

    def __init__(self, resolved: ResolvedConfig) -> None:
        self._resolved = resolved
        self._said: set[str] = set()

    def on(self, boards: Iterable[Snapshot]) -> None:
        """Look at the ranks' boards; cheap enough for once a second."""
        for sentence in contradictions(self._resolved, boards):
            if sentence not in self._said:
                self._said.add(sentence)
                logger.warning("%s", sentence)
