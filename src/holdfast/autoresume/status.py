"""`holdfast autoresume --status`: the ledger as a table for people, or as JSON; and how its last chain stands now.

Does not cover: a chain that a Slurm job keeps; its standing is for the caller to find out (`integrations.slurm`).
"""

from __future__ import annotations

import io
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from ..visible import escaped
from . import policy
from .ledger import Attempt, Chain, Ledger
from .run_dir import is_kept


@dataclass(frozen=True, slots=True)
class Now:
    """How a chain and an attempt stand whose ends are not in the ledger."""

    state: str
    why: str = ""
    attempt: str = "-"
    """Its open attempt: `runs`, `over`, …"""


GONE = Now("")
"""The keeper is gone, and the next one carries the chain on."""


def now_here(ledger: Ledger) -> Now:
    """The state of the last chain, as far as it can be determined on this machine."""
    if is_kept(ledger) is False or ledger.chain is None:
        return GONE
    who = f" ({keeper(ledger.chain)})" if ledger.chain.pid else ""
    return Now(f"continues{who}", attempt="runs")


def ledger_table(ledger: Ledger, now: Now, *, terminal: bool) -> str:
    """A table and what came of each chain; cut to the terminal's width, or whole for a file or another program.

    `now`: of the last chain, where it has no end.
    """
    if not ledger.chains:
        return "no attempts\n"
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for title in ("attempt", "began", "ran", "ended"):
        table.add_column(title, no_wrap=True, justify="right" if title in ("attempt", "ran") else "left")
    table.add_column("why", no_wrap=True, overflow="ellipsis", ratio=1 if terminal else None)
    for attempt in ledger.attempts:
        ended = now.attempt if attempt is ledger.open_attempt else "-"
        table.add_row(*(Text(escaped(cell)) for cell in _row(attempt, ended)))
    # rich itself would answer a closed pipe with exit code 1, so it only fills a string
    out = (
        Console(highlight=False) if terminal else Console(highlight=False, width=100_000, file=io.StringIO())
    )
    with out.capture() as text:
        if ledger.attempts:
            out.print(table)
    return text.get() + "".join(f"{line}\n" for line in _chains(ledger, now))


def as_json(ledger: Ledger, now: Now) -> list[dict[str, Any]]:
    """The chains, each with its attempts; times are unix seconds."""
    chains = []
    for chain in ledger.chains:
        attempts = [
            {**asdict(attempt), "kind": attempt.kind and attempt.kind.value, "seconds": attempt.seconds}
            for attempt in chain.attempts
        ]
        state, why = _standing(chain, ledger, now)
        chains.append({**asdict(chain), "attempts": attempts, "state": state, "why": why})
    return chains


def _row(attempt: Attempt, ended: str) -> tuple[str, ...]:
    return (
        str(attempt.number),
        _moment(attempt.began),
        "-" if attempt.seconds is None else policy.duration(attempt.seconds),
        ended if attempt.kind is None else str(attempt.kind),
        policy.cause(attempt) if attempt.kind is not None else _where(attempt),
    )


def _where(attempt: Attempt) -> str:
    return f"pid {attempt.pid} on {attempt.host}" if attempt.pid else attempt.job or attempt.host


def _chains(ledger: Ledger, now: Now) -> list[str]:
    lines = []
    for chain in ledger.chains:
        which = f"chain {chain.number}: " if len(ledger.chains) > 1 else ""
        state, why = _standing(chain, ledger, now)
        # Why it is over mostly begins with the state, in the words of the sentence.
        text = why if why.startswith(state) else f"{state}: {why}" if why else state
        lines.append(escaped(which + text))
    return lines


def _standing(chain: Chain, ledger: Ledger, now: Now) -> tuple[str, str]:
    """The state of a chain, and why."""
    if chain.ended:
        return chain.state, chain.why
    if chain is ledger.chain and now.state:
        return now.state, now.why
    who = f" ({keeper(chain)})" if chain.pid else ""
    return f"its keeper{who} is gone: the next holdfast autoresume carries it on", ""


def keeper(chain: Chain) -> str:
    """Who keeps it, or kept it last; the process of a job lived for a moment only."""
    return chain.host if chain.job else f"pid {chain.pid} on {chain.host}"


def _moment(t: float) -> str:
    return datetime.fromtimestamp(t).strftime("%Y-%m-%d %H:%M:%S")
