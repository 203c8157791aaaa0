"""`holdfast replay RUN_DIR [--node NAME] [--cycle N]`: run a job's recorded decisions through today's controller.

Does not cover: how decisions are recorded and replayed; that is `fault_tolerance.launcher.recorder` and `.replayer`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING

from ..fault_tolerance.errors import HoldfastError
from .options import one_run, whole_number

if TYPE_CHECKING:
    from ..fault_tolerance.launcher.replayer import Line
    from ..journal.event import Event


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """The command's part of the command line."""
    parser = commands.add_parser(
        "replay",
        help="run the recorded decisions of a job's launchers through this version, and compare",
        description="Run the inputs that the launchers of a job recorded in the journal through the controller of this "
        "version. Print each input with the resulting actions, and where this version decides differently.",
        epilog="exit codes: 0 every decision is the same; 1 a decision differs or cannot be replayed; 2 there is "
        "nothing to replay: one line has the reason.",
    )
    parser.add_argument(
        "run_dir", metavar="RUN_DIR", help="the job's run directory (ft_launcher --ft-run-dir)"
    )
    parser.add_argument("--node", metavar="NAME", help="replay this node only; default: all nodes")
    parser.add_argument(
        "--cycle", metavar="N", type=whole_number(0), help="show this cycle only, from 0; default: all cycles"
    )
    return parser


def run(arguments: argparse.Namespace) -> tuple[str, int]:
    """What the command prints, and its exit code. Raises HoldfastError where there is nothing to replay."""
    from ..fault_tolerance.launcher.replayer import replay
    from ..visible import escaped

    printed: list[str] = []
    is_same = True
    for node, recorded in _recorded(arguments.run_dir, arguments.node).items():
        lines = [line for line in replay(recorded) if arguments.cycle in (None, line.cycle)]
        if lines:
            differing = sum(bool(line.differences) for line in lines)
            is_same = is_same and not differing
            printed += [
                f"node {escaped(node)}",
                *(row for line in lines for row in _rows(line)),
                _summary(lines),
            ]
    if not printed:
        raise HoldfastError(f"{arguments.run_dir}: no decision of cycle {arguments.cycle} is recorded.")
    return "\n".join([*printed, ""]), 0 if is_same else 1


def _recorded(run_dir: str, node: str | None) -> dict[str, list[Event]]:
    """The records to replay, by node."""
    from ..fault_tolerance.launcher.replayer import KINDS
    from ..journal.reader import stream_run

    found: dict[str, list[Event]] = {}
    for event in stream_run(one_run(run_dir), frozenset(KINDS)):
        found.setdefault(event.source, []).append(event)
    if not found:
        raise HoldfastError(f"{run_dir}: no decisions are recorded in its journal.")
    if node is None:
        return dict(sorted(found.items()))
    if node not in found:
        raise HoldfastError(
            f"{run_dir}: no decisions of node {node!r}; there are: {', '.join(sorted(found))}."
        )
    return {node: found[node]}


def _rows(line: Line) -> Iterator[str]:
    moment = datetime.fromtimestamp(line.t).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    yield f"{moment}  cycle {line.cycle}  {line.text}"
    if line.differences:
        yield "  DIFFERS"
        yield from (f"    {each}" for each in line.differences)


def _summary(lines: list[Line]) -> str:
    count = sum(line.is_decision for line in lines)
    differing = sum(bool(line.differences) for line in lines)
    verdict = f"{differing} differ" if differing else "all the same"
    return f"{count} decision{'' if count == 1 else 's'}: {verdict}"
