"""The first lines of a report: who, where it is, and where everybody else is. Pure.

Does not cover: how we know; that is `sections`.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from types import MappingProxyType

from ..evidence import CRASH, DIAGNOSE, EARLY, Case, RankEvidence
from ..verdict import KINDS, Verdict
from .grouping import counted, grouped
from .states import FAILED, FINISHED, UNTOLD, WAITS, as_seen, state_of
from .wording import ended, passed, raised, state, stays, step, visible, where, who

_ENDED = MappingProxyType(
    {
        "exception": "EXCEPTION",
        "exit": "EXIT",
        "early_exit": "EXIT",
        "signal": "CRASH",
        "out_of_memory": "OUT OF MEMORY",
        "node_lost": "NODE LOST",
    }
)
_VERBS = MappingProxyType({WAITS: ("waits in", "wait in"), FINISHED: ("has finished", "have finished")})


def culprit_of(case: Case, verdict: Verdict) -> RankEvidence | None:
    """What is known of the culprit, if one is named and anything is."""
    if verdict.rank is None:
        return None
    return next((rank for rank in case.ranks if rank.rank == verdict.rank), None)


def word(case: Case, verdict: Verdict) -> str:
    """The report's first word: `HANG`, `CRASH`, `EXCEPTION`, …"""
    triggers = {node.trigger for node in case.nodes}
    if verdict.kind in _ENDED:
        return _ENDED[verdict.kind]
    if triggers == {DIAGNOSE}:
        return "DIAGNOSIS"
    if EARLY in triggers:
        return "HANG BEFORE ITS LIMIT"
    return "FAILED" if CRASH in triggers and verdict.kind == "unknown" else "HANG"


def which(case: Case, number: int) -> Iterator[str]:
    """`incident 0003`, `2026-11-22 03:10:07 UTC`, `job pretrain`, `cycle 2`: what is known of these."""
    if number:
        yield f"incident {number:04d}"
    first = min((node.at for node in case.nodes), default=0.0)
    if first > 0:
        yield datetime.fromtimestamp(first, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    if run := next((node.run_id for node in case.nodes if node.run_id), ""):
        yield f"job {visible(run, 40)}"
    yield f"cycle {max((node.cycle for node in case.nodes), default=0)}"


def headline(case: Case, verdict: Verdict) -> str:
    """`HANG: rank 5 (node gpu-12, pid 4182) — no heartbeat for 31.2 s (limit 30.0 s)`."""
    culprit = culprit_of(case, verdict)
    if culprit:
        whom = who(culprit)
    elif verdict.rank is not None:
        whom = f"rank {verdict.rank}" + (f" (node {visible(verdict.node, 60)})" if verdict.node else "")
    else:
        whom = f"node {visible(verdict.node, 60)}" if verdict.node else "no single rank"
    return f"{word(case, verdict)}: {whom} — {_noticed(case, culprit) or KINDS[verdict.kind]}"


def _noticed(case: Case, culprit: RankEvidence | None) -> str:
    """What made us look: the culprit's own end or limit, else that of the rank that was acted on."""
    if culprit and (found := _of_itself(culprit)):
        return found
    accused = {node.accused for node in case.nodes}
    for rank in case.ranks:
        if rank.rank in accused and (found := _of_itself(rank)):
            return f"noticed at rank {rank.rank}: {found}"
    return next((visible(node.reason, 150) for node in case.nodes if node.reason), "")


def _of_itself(rank: RankEvidence) -> str:
    if rank.raised:
        return raised(rank.raised) + (f" ({ended(rank.exit)})" if rank.exit else "")
    if rank.exit and not rank.exit.asked:
        return ended(rank.exit)
    return passed(rank.passed) if rank.passed else ""


def where_it_is(culprit: RankEvidence) -> Iterator[str]:
    """`rank 5 is in  data_loading > dataset.py:88 read()   state D (disk wait) for 31 s, step 4181`."""
    is_in = "was in" if culprit.exit or culprit.raised else "is in"
    place = where(culprit)
    if not place and not culprit.board:
        return
    inside = place or _no_section(culprit)
    since = " ".join(part for part in (state(culprit), "" if culprit.exit else stays(culprit)) if part)
    rest = ", ".join(part for part in (since, step(culprit)) if part)
    yield f"rank {culprit.rank} {is_in}  {inside}" + (f"   {rest}" if rest else "")


def _no_section(culprit: RankEvidence) -> str:
    if culprit.board and culprit.board.connected:
        return "no section"
    return "its training" if culprit.board and culprit.board.heartbeats else "its start"


def others_in_words(case: Case, verdict: Verdict, most: int) -> list[str]:
    """`63 ranks wait in  backward > all_reduce, step 4182`, a line for each of the largest groups."""
    others = [rank for rank in case.ranks if rank.rank != verdict.rank]
    found = grouped(others, lambda rank: _doing(rank, verdict))
    lines = []
    for (one, several, rest), ranks in found[:most]:
        numbers = [rank.rank for rank in ranks]
        lines.append(f"{counted(numbers)} {one if len(numbers) == 1 else several}{rest}")
    if len(found) > most:
        left = [rank.rank for _, ranks in found[most:] for rank in ranks]
        lines.append(
            f"{counted(left)} {'is' if len(left) == 1 else 'are'} in {len(found) - most} other places"
        )
    return lines


def _doing(rank: RankEvidence, verdict: Verdict) -> tuple[str, str, str] | None:
    """Words for one rank and for several, and the rest of the line; ranks with the same words are one entry."""
    what, rank = state_of(rank, verdict), as_seen(rank)
    if what == UNTOLD:
        return None
    at = f", {text}" if (text := step(rank)) else ""
    if what == FAILED:
        error = rank.raised.type if rank.raised else ended(rank.exit) if rank.exit else ""
        return "failed too", "failed too", f" ({visible(error, 100)}){at}"
    if what == FINISHED:
        return (*_VERBS[FINISHED], at)
    if rank.exit and rank.exit.asked:
        return "was told to end", "were told to end", at
    verbs = _VERBS.get(what, ("is in", "are in"))
    return (*verbs, f"  {where(rank) or 'no section'}{at}")
