"""`holdfast nodes [RUN_DIR …]`: which machines have failed over many jobs, were suspected, and stood idle for that.

Machines are named by their host: a launcher's name is its host and a process id.
Does not cover: failures of the program, which count for no machine; machines that are named otherwise in each job.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

from ..fault_tolerance.errors import HoldfastError
from ..journal.event import CycleSorter, Event
from ..visible import escaped

STARTS, ENDS = "cycle_start", "run_end"
KINDS = frozenset(("run_start", "incident", "node_lost", "node_suspected", "node_replaced", STARTS, ENDS))


@dataclass(slots=True)
class Machine:
    """The facts of the journals about one host."""

    host: str
    runs: int = 0
    """In which one of its launchers took part."""
    failures: int = 0
    """Failures that accuse it for sure, and losses of it."""
    suspected: int = 0
    idle_seconds: float = 0.0
    """From the loss of its place until it trained again, or the job ended."""
    last: str = ""
    """The newest of these, in words."""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """The command's part of the command line."""
    parser = commands.add_parser(
        "nodes",
        help="list the machines of many jobs: how often each failed, was suspected, and stood idle for that",
        description="List the machines that took part in these jobs, those with most failures first: verdicts of high "
        "confidence on a rank of the machine that are not the program's own exceptions, losses of the machine, how "
        "often it was suspected, and for how long it stood idle for that.",
    )
    parser.add_argument(
        "run_dirs",
        metavar="RUN_DIR",
        nargs="*",
        help="run directories (ft_launcher --ft-run-dir) or folders of such; default: where jobs without one are kept",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON list instead of a table")
    return parser


def run(arguments: argparse.Namespace) -> str:
    """What the command prints. Raises HoldfastError where there is nothing to read."""
    from ..journal.reader import default_runs, holds_journal, runs_in, stream_run

    paths = [path for path in arguments.run_dirs if holds_journal(path)]
    folders = [path for path in arguments.run_dirs if path not in paths]
    for folder in folders:
        if not (found := [each.path for each in runs_in([folder]) if not each.problem]):
            raise HoldfastError(f"{folder}: no run with a journal. Name run directories, or folders of such.")
        paths += found
    if not arguments.run_dirs:
        paths = [each.path for each in default_runs() if not each.problem]
    machines: dict[str, Machine] = {}
    for path in dict.fromkeys(paths):
        count(machines, stream_run(path, KINDS))
    rows = sorted(machines.values(), key=lambda each: (-each.failures, -each.suspected, each.host))
    return json.dumps([asdict(row) for row in rows], indent=2) + "\n" if arguments.json else _table(rows)


def count(machines: dict[str, Machine], events: Iterable[Event]) -> None:
    """Add the events of one run directory, in their order."""
    idle: dict[str, float] = {}  # since when, by launcher
    seen: set[str] = set()
    verdicts: dict[tuple[int, int], Event] = {}  # by run and cycle: a later report replaces an earlier one
    sorter, last = CycleSorter(), 0.0
    for event in events:
        last, place = event.t, sorter.cycle_of(event)
        if event.kind in (STARTS, "run_start"):
            machine = _machine(machines, event.node)
            machine.runs += machine.host not in seen
            seen.add(machine.host)
        name = str(event.get("suspect"))
        if event.kind in (STARTS, ENDS) and event.node in idle:
            _machine(machines, event.node).idle_seconds += event.t - idle.pop(event.node)
        elif event.kind == "node_suspected" and event.get("suspect"):
            machine = _machine(machines, name)
            machine.suspected += 1
            machine.last = str(event.get("facts"))
        elif event.kind == "node_replaced":
            idle[name] = event.t
        elif event.kind == "node_lost":
            machine = _machine(machines, str(event.get("lost") or event.node))
            machine.failures += 1
            machine.last = "no sign of it any more"
        elif event.kind == "incident" and not event.get("job_goes_on"):
            verdicts[place] = event
    for event in verdicts.values():
        accused = event.get("accuses")
        if isinstance(accused, list) and len(accused) == 1 and event.get("cause") != "node_lost":
            machine = _machine(machines, str(accused[0]))
            machine.failures += 1
            machine.last = machine.last or str(event.get("sentence"))
    for name, since in idle.items():
        _machine(machines, name).idle_seconds += max(0.0, last - since)


def _machine(machines: dict[str, Machine], launcher: str) -> Machine:
    host = launcher.partition(":")[0]
    return machines.setdefault(host, Machine(host))


def _table(rows: list[Machine]) -> str:
    from ..autoresume.policy import duration

    if not rows:
        return "no machines\n"
    width = max(4, *(len(escaped(row.host)) for row in rows))
    lines = [f"{'node':<{width}}   {'jobs':>5}   {'failures':>8}   {'suspected':>9}   {'idle':>11}   last"]
    for row in rows:
        idle = duration(row.idle_seconds) if row.idle_seconds else "-"
        numbers = f"{row.runs:>5}   {row.failures:>8}   {row.suspected:>9}   {idle:>11}"
        lines.append(f"{escaped(row.host):<{width}}   {numbers}   {escaped(row.last)}".rstrip())
    return "\n".join([*lines, ""])
