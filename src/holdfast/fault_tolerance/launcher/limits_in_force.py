"""The limits that a job begins with: for the boards, and in words."""

from __future__ import annotations

from ..board import Limits
from ..config_sources import ResolvedConfig


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
