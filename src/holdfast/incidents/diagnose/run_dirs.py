"""From a run directory to the launcher that works in it now, on this node.

What always holds: the answer comes from the launchers that run, not from what is on the disk; the directory is read
only to say why there is none, and a disk that does not answer is not waited for.

Does not cover: a directory that launchers reach by two names which no link connects (two mounts of one filesystem).
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

from ...in_time import TooLate, within
from . import lookup
from .errors import NotDiagnosed
from .launchers import Launcher, all_launchers

ANSWER = 2.0
"""Seconds that the filesystem may take."""


def launcher_in(run_dir: str) -> tuple[Launcher, list[str]]:
    """The launcher at work in this directory, and notes on others that are beside it. Raises `NotDiagnosed`."""
    place = os.path.abspath(run_dir)
    with suppress(TooLate):  # a launcher that runs in it is found by its name all the same
        place = within(ANSWER, lambda: os.path.realpath(run_dir))
    every = all_launchers()
    found = [each for each in every if place in each.run_dirs]
    beside = [each for each in every if any(os.path.dirname(path) == place for path in each.run_dirs)]
    if len(found) == 1:
        return found[0], [f"Another job works beside it: holdfast diagnose {each.pid}." for each in beside]
    if found or beside:
        listed = "; ".join(f"{each.pid} ({lookup.command(each.pid)})" for each in found or beside)
        raise NotDiagnosed(
            f"{run_dir}: {len(found or beside)} launchers are at work there: {listed}. Name one by its number"
        )
    raise NotDiagnosed(f"{run_dir}: {_why_none(place)}")


def _why_none(place: str) -> str:
    try:
        return within(ANSWER, lambda: _told(place))
    except TooLate:
        return f"its filesystem has not answered for {ANSWER:g} s, and no launcher of this node works there"


def _told(place: str) -> str:
    from ...journal.reader import JournalUnreadable, read_run
    from ...journal.run_list import runs_in

    if not os.path.lexists(place):
        return "there is no such directory, and no process of this number"
    if not os.path.isdir(place):
        return "is no directory. Name a process, or the run directory of a job"
    try:
        events = read_run(place)
    except JournalUnreadable:
        inside = [run.path for run in runs_in([place])][:3]
        of_them = f" It holds those of {', '.join(inside)}: name one of them." if inside else ""
        return f"is no job's run directory: there is no journal in it.{of_them}"
    if not events:
        return "nothing is told in its journal yet, and no launcher of this node works there"
    last = events[-1]
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(last.t))
    nodes = sorted({event.node for event in events})
    here = os.uname().nodename
    elsewhere = [node for node in nodes if node.partition(":")[0] != here]
    ended = {event.node for event in events if event.kind == "run_end"}
    if elsewhere and not set(elsewhere) <= ended:
        return (
            f"no launcher of this node ({here}) works there; the job's nodes are {', '.join(nodes[:8])}, "
            f"and it was last heard of on {when}. Run this on one of them"
        )
    how = next(
        (
            f", with exit code {event.get('exit_code')}"
            for event in reversed(events)
            if event.kind == "run_end"
        ),
        "",
    )
    return (
        f"no launcher works there now: the job ended{how}; its last record is of {when}. "
        f"holdfast incidents {place} tells what happened"
    )
