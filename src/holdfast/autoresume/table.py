"""The ledger as text for people: its chains, and one line for each attempt.

Does not cover: JSON; `as_json` gives the same facts.
"""

from __future__ import annotations

import io
from dataclasses import asdict
from datetime import datetime
from typing import Any

from ..visible import escaped
from . import wording
from .ledger import Attempt, Chain, Ledger


def ledger_table(ledger: Ledger, *, runs: bool, terminal: bool) -> str:
    """A table and what came of each chain; cut to the terminal's width, or whole for a file or another program.

    `runs`: the keeper of the last chain is alive, as far as anybody can tell.
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
        now = runs and attempt is ledger.open_attempt
        table.add_row(*(Text(escaped(cell)) for cell in _row(attempt, runs=now)))
    # rich itself would answer a closed pipe with exit code 1, so it only fills a string
    out = (
        Console(highlight=False) if terminal else Console(highlight=False, width=100_000, file=io.StringIO())
    )
    with out.capture() as text:
        if ledger.attempts:
            out.print(table)
    return text.get() + "".join(f"{line}\n" for line in _chains(ledger, runs=runs))


def as_json(ledger: Ledger, *, runs: bool) -> list[dict[str, Any]]:
    """The chains, each with its attempts; times are unix seconds."""
    chains = []
    for chain in ledger.chains:
        attempts = [
            {**asdict(attempt), "kind": attempt.kind and attempt.kind.value, "seconds": attempt.seconds}
            for attempt in chain.attempts
        ]
        state = chain.state or _open_state(chain, ledger, runs=runs)
        chains.append({**asdict(chain), "attempts": attempts, "state": state})
    return chains


def _row(attempt: Attempt, *, runs: bool) -> tuple[str, ...]:
    ended = "runs" if runs else "-"
    return (
        str(attempt.number),
        _moment(attempt.began),
        "-" if attempt.seconds is None else wording.duration(attempt.seconds),
        ended if attempt.kind is None else str(attempt.kind),
        wording.cause(attempt) if attempt.kind is not None else _where(attempt),
    )


def _where(attempt: Attempt) -> str:
    return f"pid {attempt.pid} on {attempt.host}" if attempt.pid else attempt.job or attempt.host


def _chains(ledger: Ledger, *, runs: bool) -> list[str]:
    lines = []
    for chain in ledger.chains:
        which = f"chain {chain.number}: " if len(ledger.chains) > 1 else ""
        state = chain.state or _open_state(chain, ledger, runs=runs)
        # Why it is over mostly begins with the state, in the words of the sentence.
        text = chain.why if chain.why.startswith(state) else f"{state}: {chain.why}" if chain.why else state
        lines.append(escaped(which + text))
    return lines


def _open_state(chain: Chain, ledger: Ledger, *, runs: bool) -> str:
    who = f" (pid {chain.pid} on {chain.host})" if chain.pid else ""
    if chain is not ledger.chain or not runs:
        return f"its keeper{who} is gone: the next holdfast autoresume carries it on"
    return f"goes on{who}"


def _moment(t: float) -> str:
    return datetime.fromtimestamp(t).strftime("%Y-%m-%d %H:%M:%S")
