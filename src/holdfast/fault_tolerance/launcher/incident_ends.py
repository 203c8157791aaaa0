"""How the ranks of an incident ended, added to the evidence that was taken while they ran.

What a rank that merely obeyed did is marked as asked for. Does not cover: ends on other nodes.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Sequence
from dataclasses import replace

from holdfast.incidents.evidence import Exit, NodeEvidence, Raised, RankEvidence
from holdfast.incidents.gathering.core_dump import core_dump, dumper
from holdfast.incidents.gathering.machine import MachineLook
from holdfast.incidents.gathering.memory import OomWatch

from .ranks.exits import RankExit
from .ranks.failures import Failure
from .ranks.group import RankGroup


def completed(
    evidence: NodeEvidence, group: RankGroup, failures: Sequence[Failure], memory: OomWatch | None
) -> NodeEvidence:
    """The evidence with how the ranks ended and what the kernel says by now; lets go of `memory`."""
    try:
        facts = MachineLook(memory, time.monotonic()).notes() if memory is not None else ()
        return with_ends(replace(evidence, notes=(*evidence.notes, *facts)), group, failures, memory)
    finally:
        if memory is not None:
            memory.close()


def with_ends(
    evidence: NodeEvidence, group: RankGroup, failures: Sequence[Failure], memory: OomWatch | None
) -> NodeEvidence:
    """The evidence with exits, exceptions and last words; ranks of which nothing was taken appear as well."""
    failed = {failure.exit.local_rank: failure for failure in failures}
    known = {rank.local_rank: rank for rank in evidence.ranks}
    ranks = []
    for local_rank in group.local_ranks:
        rank = known.get(local_rank) or RankEvidence(
            group.rank_of(local_rank), local_rank, group.pid_of(local_rank), evidence.node
        )
        end = group.exits.get(local_rank)
        if end is not None:
            by_itself = failed.get(local_rank)
            asked = (by_itself is None and end.status != 0) or bool(by_itself and by_itself.hung)
            rank = replace(rank, exit=_exit(end, evidence.mono, memory, asked=asked))
        if (failure := failed.get(local_rank)) is not None:
            rank = _with_words(rank, failure, evidence.mono)
        ranks.append(rank)
    return replace(evidence, ranks=tuple(ranks))


def _exit(end: RankExit, mono: float, memory: OomWatch | None, *, asked: bool) -> Exit:
    memory_text = core = ""
    if not asked and end.status < 0:
        with contextlib.suppress(Exception):  # a courtesy: the exit itself is told whatever happens
            memory_text = memory.killed(end.pid) if memory and end.status == -signal.SIGKILL else ""
            core = core_dump(dumper(end.pid), -end.status)
    meaning = end.end if asked else end.meaning
    return Exit(end.status, meaning, round(mono - end.at, 4), asked, memory_text, core)


def _with_words(rank: RankEvidence, failure: Failure, mono: float) -> RankEvidence:
    raised = rank.raised
    if failure.error and not failure.hung:
        error = failure.error
        raised = Raised(
            str(error.get("type", "")),
            str(error.get("message", "")),
            str(error.get("traceback", "")),
            round(mono - failure.began, 4),
            failure.lost_connection,
        )
    return replace(rank, raised=raised, last_lines=tuple(failure.last_lines) or rank.last_lines)
