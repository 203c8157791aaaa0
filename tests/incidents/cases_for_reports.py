"""Incidents for the tests and the documented examples of reports: evidence from fixtures/, judged by the rules.

`python -m tests.incidents.cases_for_reports` writes the examples into their pages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

from holdfast.incidents import judge
from holdfast.incidents.diagnose.diagnose import Diagnosis
from holdfast.incidents.evidence import ELSEWHERE, Case, NodeEvidence, RankEvidence, RingEvent
from holdfast.incidents.report.store import read_record
from holdfast.incidents.report.text import rejudged_lines, report_lines
from holdfast.incidents.verdict import Judgement
from holdfast.incidents.wire import node_of
from tests.pages import DOCS

FIXTURES = Path(__file__).with_name("fixtures")
NAMES = sorted(path.stem for path in FIXTURES.glob("*.json"))
SITE = "/opt/venv/lib/python3.11/site-packages"


def evidence(name: str) -> Case:
    """The evidence of this fixture."""
    record = json.loads(FIXTURES.joinpath(f"{name}.json").read_text())
    return Case(tuple(node_of({"schema": record["schema"], "node": node}) for node in record["nodes"]))


def judged(name: str) -> tuple[Case, Judgement]:
    """A fixture and its judgement."""
    case = evidence(name)
    return case, judge(case)


def waiting(rank: int, node: str = "gpu-12", local: int | None = None) -> RankEvidence:
    """A rank that waits for the others in its gradient's all_reduce, with a ring."""
    one = evidence("dead_storage").ranks[0]
    return with_ring(
        replace(one, rank=rank, local_rank=rank if local is None else local, pid=4177 + rank, node=node)
    )


def reading(rank: int = 5, node: str = "gpu-12") -> RankEvidence:
    """A rank that is blocked in a read from a dead file server, with a ring."""
    one = evidence("dead_storage").ranks[5]
    return with_ring(replace(one, rank=rank, local_rank=rank % 8, pid=4177 + rank, node=node))


def hang(ranks: int = 8, culprit: int = 5) -> tuple[Case, Judgement]:
    """The storage of one rank is dead, all others wait for it. One node."""
    first = evidence("dead_storage").nodes[0]
    found = tuple(reading(rank) if rank == culprit else waiting(rank) for rank in range(ranks))
    case = Case((replace(first, world_size=ranks, accused=culprit, ranks=found),))
    return case, judge(case)


@cache
def large(ranks: int = 16_384, culprit: int = 9001) -> tuple[Case, Judgement]:
    """The same in a large job, with 8 ranks on each node."""
    one, stuck = waiting(0), reading(culprit)
    first, nodes = evidence("dead_storage").nodes[0], list[NodeEvidence]()
    for at in range(ranks // 8):
        found = [
            replace(stuck if rank == culprit else one, rank=rank, local_rank=rank % 8, node=f"gpu-{at:04d}")
            for rank in range(8 * at, 8 * at + 8)
        ]
        more = {"node_rank": at, "nodes": ranks // 8, "world_size": ranks, "ranks": tuple(found)}
        node = replace(first, node=f"gpu-{at:04d}", **more)  # type: ignore[arg-type]
        nodes.append(node if culprit // 8 == at else replace(node, trigger=ELSEWHERE, accused=None))
    case = Case(tuple(nodes))
    return case, judge(case)


def with_ring(rank: RankEvidence) -> RankEvidence:
    """With steps of 1.5 s on its board until the section that is open."""
    board = rank.board
    assert board is not None and board.step is not None
    section, events, ago = board.sections[-1], list[RingEvent](), 59.5
    step = board.step - int((ago - section.seconds) / 1.5)
    while ago > section.seconds + 1.5:
        for name, begun, ended in (("data_loading", 0.0, 0.3), ("forward", 0.3, 0.7), ("backward", 0.7, 1.4)):
            events += [RingEvent("start", ago - begun, name), RingEvent("end", ago - ended, name)]
        events += [RingEvent("step", ago - 1.45, value=step), RingEvent("heartbeat", ago - 1.46)]
        events += [RingEvent("checkpoint", ago - 1.47, value=step)] if step % 10 == 0 else []
        ago, step = ago - 1.5, step + 1
    events.append(RingEvent("start", section.seconds, section.name))
    return replace(rank, board=replace(board, events=tuple(events)))


# -- the examples of the documentation, each between `<!-- example: NAME -->` and the end of its code block


PAGES = ("incident-reports.md", "diagnose.md")


def report() -> list[str]:
    """A whole report."""
    lines = report_lines(*judged("data_loader"), number=3, folder="runs/a/incidents/0003")
    return ["$ holdfast incidents runs/a 3", *lines]


def head(name: str) -> list[str]:
    """The first lines of a report, up to its evidence."""
    lines = report_lines(*judged(name))
    return lines[: next(index for index, line in enumerate(lines) if line.startswith("  Evidence"))]


def rejudged() -> list[str]:
    """A report of an older version, judged again."""
    record = read_record(FIXTURES.joinpath("old_rules.json").read_text(), "old_rules.json")
    lines = rejudged_lines(record.judgement, judge(record.case), number=record.number)
    return ["$ holdfast incidents runs/a 2 --rejudge", *lines]


def diagnosed(name: str, asked: str, most: int) -> list[str]:
    """The first lines of a diagnosis."""
    case, judgement = judged(name)
    title = f"ft_launcher, process 28862, cycle 0, {len(case.ranks)} ranks on node gpu-12"
    lines = Diagnosis(title, case, judgement, ()).lines()
    return [f"$ holdfast diagnose {asked}", *lines[:most], *(["  ..."] if len(lines) > most else [])]


EXAMPLES: dict[str, Callable[[], list[str]]] = {
    "report": report,
    "heads": lambda: "\n\n".join(
        "\n".join(head(name)) for name in ("dead_storage", "exception", "segfault", "mismatch")
    ).split("\n"),
    "rejudged": rejudged,
    "diagnosed": lambda: diagnosed("diagnosed", "runs/a", 9),
    "healthy": lambda: diagnosed("healthy", "28862", 9),
}


def with_examples(page: str) -> str:
    """The page with its examples as the rules of today make them."""

    def block(found: re.Match[str]) -> str:
        text = "\n".join(line.rstrip() for line in EXAMPLES[found[1]]())
        return f"<!-- example: {found[1]} -->\n```console\n{text}\n```\n"

    return re.sub(r"<!-- example: (\w+) -->\n```console\n.*?```\n", block, page, flags=re.DOTALL)


if __name__ == "__main__":
    for name in PAGES:
        path = DOCS / name
        path.write_text(with_examples(path.read_text()))
