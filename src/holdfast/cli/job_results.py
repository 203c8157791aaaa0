"""`holdfast job-results FILE`: what NeMo-Run's job script asks of the retry policy. Not listed in the help.

It prints "FAILURES IDLE": how many failures, and how many ends that got nowhere, are in a row at the end of the file of
attempts that `integrations/nemo_run/templates/job.sh.j2` keeps; there is what the lines mean.

Does not cover: hosts without `holdfast`. The job script computes the same in awk there.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..autoresume.ledger import Attempt


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """The command's part of the command line."""
    parser = commands.add_parser("job-results")
    parser.add_argument("file", metavar="FILE")
    return parser


def run(arguments: argparse.Namespace) -> str:
    """One line for the job script. Raises `OSError`."""
    from ..autoresume.policy import failures_in_a_row, idle_in_a_row

    with open(arguments.file, encoding="utf-8", errors="replace") as lines:
        attempts = _attempts(lines)
    return f"{len(failures_in_a_row(attempts))} {len(idle_in_a_row(attempts))}\n"


def _attempts(lines: Iterable[str]) -> list[Attempt]:
    """Those since the training was last finished or cancelled."""
    from ..autoresume.ledger import Attempt
    from ..autoresume.outcome import Kind

    kinds = {"X": Kind.NODE_LOST, "F": Kind.FAILED, "P": Kind.PREEMPTED, "U": Kind.ENDED}
    found: list[Attempt] = []
    for number, line in enumerate(lines, 1):
        _job, _restart, letter, step, idle, seconds = (line.split() + ["-"] * 6)[:6]
        if letter in ("C", "S"):
            found = []
        elif letter in kinds:
            found.append(
                Attempt(
                    number,
                    0.0,
                    ended=float(seconds) if seconds.isdecimal() else None,
                    kind=kinds[letter],
                    witnessed=idle != "1",
                    resumed_step=int(step) if step.isdecimal() else None,
                )
            )
    return found
