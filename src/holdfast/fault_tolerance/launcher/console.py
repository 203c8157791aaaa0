"""What the launcher says on stderr: one prefix, whole lines, texts that name who, what, how we know and what next.

The texts are part of the product and tested. Nothing here decides anything.
"""

from __future__ import annotations

import logging
import signal
from typing import Any

from ..monitor.explain import STATES
from .console_writer import Writer

logger = logging.getLogger("holdfast.launcher")
LAST_WORDS = 1.0  # seconds


def set_up(level: int) -> None:
    """Send the launcher's lines to stderr with the prefix `[holdfast]`."""
    root = logging.getLogger("holdfast")
    root.handlers[:] = [Writer()]
    root.propagate = False
    root.setLevel(level)


def flush(seconds: float = LAST_WORDS) -> None:
    """Wait until all lines are written, at most this long: nobody may be reading them."""
    for handler in logging.getLogger("holdfast").handlers:
        if isinstance(handler, Writer):
            handler.drain(seconds)


def place(report: dict[str, Any]) -> str:
    """Where a rank is: `in data_loading > read, state D (disk wait), for 31.0 s, step 4181`."""
    parts = [f"in {report['where']}" if report["where"] else "in no section"]
    if report["finished"]:
        return "finished"
    if not report["connected"]:
        parts = ["between optimizer steps" if report["heartbeats"] else "not connected yet"]
    state = report["state"]
    parts.append(f"state {state} ({STATES[state]})" if state in STATES else f"state {state}")
    if report.get("wait_channel"):
        parts.append(f"waits in kernel function {report['wait_channel']}")
    parts.append(f"for {report['for']:.1f} s")
    if report["step"] is not None:
        parts.append(f"step {report['step']}")
    return ", ".join(parts)


def hang(node: str, verdict: dict[str, Any]) -> list[str]:
    """The block that explains a hang."""
    lines = [
        f"HANG: rank {verdict['rank']} (node {node}, pid {verdict['pid']}, cycle {verdict['cycle']}): "
        f"{verdict['text']}{_limit(verdict)}",
        f"  rank {verdict['rank']} is {place(verdict)}",
    ]
    for (text, count), ranks in _grouped(verdict.get("others", [])).items():
        who = f"rank {ranks[0]} is" if count == 1 else f"{count} ranks ({_some(ranks)}) are"
        lines.append(f"  {who} {text}")
    if verdict.get("sentence"):
        lines.append(f"  verdict: {verdict['sentence']} (confidence {verdict['confidence']})")
    if verdict.get("signal"):
        lines.append(f"  {verdict['signal']} sent to rank {verdict['rank']}")
    return lines


def _limit(verdict: dict[str, Any]) -> str:
    if verdict.get("reason") == "early":
        return " No limit was passed yet (--ft-early-detection)."
    return f" Limit {verdict['limit']:.1f} s."


def _grouped(others: list[dict[str, Any]]) -> dict[tuple[str, int], list[int]]:
    """Ranks that are in the same place are one entry."""
    same: dict[tuple[str, Any], list[dict[str, Any]]] = {}
    for other in others:
        same.setdefault((other["where"], other["step"]), []).append(other)
    grouped = {}
    for members in same.values():
        ranks = sorted(member["rank"] for member in members)
        longest = max(members, key=lambda member: float(member["for"]))
        grouped[(place(longest), len(ranks))] = ranks
    return grouped


def _some(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:4]))
    return shown + (", …" if len(ranks) > 4 else "")


def went_on(node: str, told: dict[str, Any]) -> str:
    """The line on a rank that had passed a limit and went on while it was looked at."""
    return (
        f"rank {told['rank']} (node {node}, pid {told['pid']}, cycle {told['cycle']}) had passed a limit and went on "
        f"while it was looked at: {told['text']} It is left alone. Either the limit is too short, or being asked for "
        f"its stack has ended what it waited in"
    )


def received(number: signal.Signals) -> None:
    """The documented line on a signal that ends the job."""
    logger.warning("Received Signals.%s death signal, shutting down workers", number.name)


def say(lines: list[str], level: int = logging.WARNING) -> None:
    """Several lines in one write, so that they stay together among the ranks' own output."""
    logger.log(level, "%s", lines[0], extra={"lines": lines})
