"""`holdfast top [RUN_DIR|PID]`: a running job, live in the terminal.

It ends with Ctrl-C and restores the terminal. Does not cover: what is read and shown; see `views.live_reading` and
`views.live_frame`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import time
from typing import TYPE_CHECKING

from ..fault_tolerance.errors import HoldfastError
from .options import one_run

if TYPE_CHECKING:
    from ..views.live_reading import LiveJob

PERIOD = 1.0
"""Seconds between two frames."""
LONGEST_WAIT = 600.0
"""Seconds for the one frame of `--once`."""
WIDTH = 120
"""Columns where there is no terminal."""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """The command's part of the command line."""
    parser = commands.add_parser(
        "top",
        help="watch a running job: its ranks, open sections and timeouts, incidents and goodput",
        description="Watch a running job: the ranks of this node with step, step rate and how close they are to their "
        "timeouts, other nodes by their last report, the last incidents, and the goodput so far. Ctrl-C ends it; the "
        "job is only read.",
    )
    parser.add_argument(
        "job",
        metavar="RUN_DIR|PID",
        nargs="?",
        help="the job's run directory (ft_launcher --ft-run-dir), or a process of a job that runs here (./123 for a "
        "directory that is named like a number); default: the newest run for which no directory was chosen",
    )
    parser.add_argument(
        "--once", action="store_true", help="print one frame; so does an output that is no terminal"
    )
    return parser


def run(arguments: argparse.Namespace) -> str | int:
    """What the command prints, or the exit code of the live view. Raises HoldfastError where there is no job."""
    from ..views.live_frame import frame
    from ..views.live_reading import LiveJob

    asked: str = one_run(None) if arguments.job is None else arguments.job.strip()
    if not asked or (asked.startswith("-") and asked[1:].isdecimal()):
        raise HoldfastError(f"{arguments.job!r} is no job. Name a run directory, or a process by its number")
    if asked.isdecimal() and not os.path.exists(f"/proc/{asked}"):
        raise HoldfastError(
            f"there is no process {asked[:20]} on this node. Name a launcher, a rank or a run directory"
        )
    if not asked.isdecimal() and os.path.exists(asked) and not os.path.isdir(asked):
        raise HoldfastError(f"{asked} is no directory. Name the run directory of a job, or a process")
    live, terminal = (
        LiveJob(asked if asked.isdecimal() else one_run(asked)),
        sys.stdout is not None and sys.stdout.isatty(),
    )
    is_live = terminal and not arguments.once
    if is_live and not asked.isdecimal():
        return _watch(live)  # it waits for a job that is not there yet
    view = live.view(LONGEST_WAIT)
    if not view.ranks and view.journal.ledger is None:
        raise HoldfastError(view.notes[0] if view.notes else f"{asked}: no event in its journal. Try again")
    if is_live:
        return _watch(live)
    width = shutil.get_terminal_size().columns if terminal else WIDTH
    lines = ["".join(text for text, _ in line).rstrip() for line in frame(view, width)]
    return "\n".join([*lines, ""])


def _watch(live: LiveJob) -> int:
    """One frame after the other on the terminal's second screen, until a signal ends it."""
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    from ..views.live_frame import frame

    # So that the terminal is restored.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    console = Console(highlight=False)
    with Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as screen:
        while True:
            view = live.view(PERIOD / 4)
            size = console.size
            lines = (
                Text.assemble(*line, no_wrap=True, overflow="crop")
                for line in frame(view, size.width, size.height)
            )
            screen.update(Group(*lines), refresh=True)
            time.sleep(PERIOD)
