"""The limits that a job begins with: for the boards, and in words."""

from __future__ import annotations

from ..board import Limits
from ..config_sources import ResolvedConfig


def limits_of(resolved: ResolvedConfig) -> Limits:
    """What the ranks' boards begin with; ranks may set others later."""
    cfg = resolved.config
    return Limits(
        initial=cfg.initial_rank_heartbeat_timeout,
        subsequent=cfg.rank_heartbeat_timeout,
        sections=cfg.rank_section_timeouts,
        out_of_section=cfg.rank_out_of_section_timeout,
        initial_set_by_user=resolved.is_set("initial_rank_heartbeat_timeout"),
    )


def describe(limits: Limits) -> str:
    """Which limits are in force, and for whom, in one line."""

    def seconds(value: float | None) -> str:
        return "none" if value is None else f"{value:g} s"

    sections = ", ".join(f"{name} {seconds(limit)}" for name, limit in limits.sections.items())
    first = f"first heartbeat {seconds(limits.initial)}"
    rest = (
        f"heartbeat {seconds(limits.subsequent)}, sections {sections or 'none'}, "
        f"out of section {seconds(limits.out_of_section)}"
    )
    if limits.initial_set_by_user and limits.initial is not None:
        return f"for every rank: {first} after its start; for ranks that connect: {rest}"
    return f"for ranks that connect: {first}, {rest}"
