"""The timeouts that a job begins with, for the boards and in words, and advice on those that cannot work. Pure.

A timeout cannot do what the user set it for where the ranks report in another way. Each sentence of advice names the
setting, what the ranks do instead, and what to change; the launcher logs it once.
Does not cover: limits that are merely too long or too short for the job.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

from ..board import Limits, Snapshot
from ..config_sources import ResolvedConfig

logger = logging.getLogger("holdfast.launcher")
ENOUGH = 10  # heartbeats or sections after which a rank's way of reporting is taken for settled


def limits_of(resolved: ResolvedConfig, *, counts_steps: bool) -> Limits:
    """What the ranks' boards begin with; ranks may set others later."""
    cfg = resolved.config
    return Limits(
        initial=cfg.initial_rank_heartbeat_timeout,
        subsequent=cfg.rank_heartbeat_timeout,
        sections=cfg.rank_section_timeouts,
        out_of_section=cfg.rank_out_of_section_timeout,
        initial_set_by_user=resolved.is_set("initial_rank_heartbeat_timeout"),
        subsequent_set_by_user=counts_steps and resolved.is_set("rank_heartbeat_timeout"),
    )


def describe(limits: Limits) -> str:
    """Which limits are in force, and for whom, in one line."""

    def seconds(value: float | None) -> str:
        return "none" if value is None else f"{value:g} s"

    sections = ", ".join(f"{name} {seconds(limit)}" for name, limit in limits.sections.items())
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
