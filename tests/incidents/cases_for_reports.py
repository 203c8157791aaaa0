"""Incidents for the tests and the documented examples of reports: evidence from fixtures/, judged by the rules."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

from holdfast.incidents import judge
from holdfast.incidents.evidence import ELSEWHERE, Case, NodeEvidence, RankEvidence, RingEvent
from holdfast.incidents.verdict import Judgement
from holdfast.incidents.wire import node_of

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
    for number in range(0, ranks, 8):
        name = f"gpu-{number // 8:04d}"
        found = tuple(
            replace(stuck if rank == culprit else one, rank=rank, local_rank=rank % 8, node=name)
            for rank in range(number, min(number + 8, ranks))
        )
        node = replace(
            first, node=name, node_rank=number // 8, nodes=ranks // 8, world_size=ranks, ranks=found
        )
        is_there = number <= culprit < number + 8
        nodes.append(node if is_there else replace(node, trigger=ELSEWHERE, accused=None))
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
