"""The page of an incident: one HTML file with everything that a person wants to see, and nothing from elsewhere. Pure.

What always holds: it opens from a disk without a network, runs no script (its content security policy forbids it, and
there is none), and whatever came from ranks, users and hosts is escaped twice: for terminals, and for HTML.

Does not cover: the raw evidence, thread by thread; that is incident.json.
"""

from __future__ import annotations

from html import escape

from ..evidence import Case
from ..verdict import KINDS, Verdict
from . import page_parts as parts
from .grid import grid, legend
from .heading import culprit_of, headline, others_in_words, where_it_is, which, word
from .lanes import MOST, chosen
from .page_style import STYLE
from .sections import of
from .states import states
from .timeline import timeline
from .wording import seconds, state, visible

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def page(case: Case, verdict: Verdict, *, number: int = 0) -> str:
    """The whole page."""
    title = f"incident {number:04d}: " if number else ""
    whom = (
        f"rank {verdict.rank}" if verdict.rank is not None else visible(verdict.node, 60) or "no single rank"
    )
    lines = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
        '<meta name="referrer" content="no-referrer">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(f'{title}{word(case, verdict)}: {whom}')}</title>",
        f"<style>{STYLE}</style></head><body><main>",
        _head(case, verdict, number),
        _how_we_know(case, verdict),
        _ranks(case, verdict),
        _times(case, verdict),
        parts.stacks(case, verdict),
        parts.ends(case, verdict),
        parts.collectives(case),
        parts.nodes(case),
        _remaining(case, verdict),
        "</main></body></html>",
    ]
    return "\n".join(line for line in lines if line) + "\n"


def _head(case: Case, verdict: Verdict, number: int) -> str:
    culprit = culprit_of(case, verdict)
    where = [*where_it_is(culprit)] if culprit else []
    lines = "\n".join([*where, *others_in_words(case, verdict, 6)])
    facts = [
        *which(case, number),
        f"evidence taken in {seconds(max((node.took for node in case.nodes), default=0.0))}",
    ]
    return (
        f"<header><h1>{escape(headline(case, verdict))}</h1>"
        f'<p class="verdict">{escape(visible(verdict.sentence, 1000))}</p>'
        f'<p><span class="tag">confidence {verdict.confidence}</span> '
        f'<span class="tag">{escape(verdict.kind.replace("_", " "))}</span> '
        f'<span class="dim">{escape(KINDS[verdict.kind])}</span></p>'
        + (parts.pre(escape(lines), "where the ranks are") if lines else "")
        + f'<p class="dim">{escape(" · ".join(fact for fact in facts if fact))}</p></header>'
    )


def _how_we_know(case: Case, verdict: Verdict) -> str:
    found = [section for section in of(case, verdict) if section.title.startswith("how we know")]
    items = "".join(f"<li>{escape(line)}</li>" for section in found for line in section.lines)
    return parts.section(f"How we know, of rank {verdict.rank}", f"<ul>{items}</ul>") if items else ""


def _ranks(case: Case, verdict: Verdict) -> str:
    found = states(case, verdict)
    words = {
        rank.rank: f"node {visible(rank.node, 60)}, pid {rank.pid}, {state(rank)}" for rank in case.ranks
    }
    return parts.section(f"All {len(found)} ranks", grid(found, words) + legend(found)) if found else ""


def _times(case: Case, verdict: Verdict) -> str:
    lanes = chosen(case, verdict)
    picture = timeline(lanes, verdict.rank)
    if not picture:
        return ""
    told = sum(1 for rank in case.ranks if rank.board and rank.board.events)
    which = (
        f" {len(lanes)} of {told} ranks: the culprit's and its neighbours'."
        if told > len(lanes) == MOST
        else ""
    )
    note = (
        f'<p class="dim">What ranks reported of themselves, up to the moment when we looked.{which} '
        "Point at a bar for its name and how long it took.</p>"
    )
    return parts.section("The last minute", f"{note}{parts.box(picture, 'The last minute of the ranks')}")


def _remaining(case: Case, verdict: Verdict) -> str:
    """What could not be had, and why."""
    found = [section for section in of(case, verdict) if section.title == "what could not be had"]
    items = "".join(f"<li>{escape(line)}</li>" for section in found for line in section.lines)
    return parts.section("What could not be had", f"<ul>{items}</ul>") if items else ""
