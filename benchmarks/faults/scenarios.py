"""The scenarios: each kind in each of its phases, on layouts, ranks and run directories taken by turns. Pure.

What always holds: a scenario depends on its kind, its phase and its variant alone, so that one that is run by itself is
the one of the whole corpus.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .kind import CLIENT, COUNTED, NOBODY, NODE, RANK, Truth
from .kinds import HARMLESS, KINDS

HEALTHY = "healthy"
TOTAL, EVERY = 12, 4
"""Steps of the program, and after how many of them it validates and saves."""

MOMENTS = {
    "import": 0,
    "init": 0,
    "step": 6,
    "collective": 6,
    "validation": 8,
    "checkpoint": 8,
    "shutdown": TOTAL,
}
"""The step at which each phase's fault happens: after the first checkpoint, which is at step 4."""


@dataclass(frozen=True)
class Scenario:
    """One job and what is done to it."""

    kind: str
    phase: str
    variant: str
    nodes: tuple[int, ...]
    """Ranks of each node."""
    rank: int
    """To which it is done."""
    everyone: bool
    truth: Truth | None
    """None: it is healthy."""
    shared: bool
    """Whether its nodes share a run directory."""
    workers: int = 0
    needs: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    later: bool = False

    @property
    def name(self) -> str:
        """Such as `sleep/step` or `sleep/step/counted`."""
        return "/".join((self.kind, self.phase, *([] if self.variant == CLIENT else [self.variant])))

    @property
    def world(self) -> int:
        """All ranks."""
        return sum(self.nodes)

    @property
    def node(self) -> int:
        """The number of the node to whose rank it is done."""
        return next(n for n in range(len(self.nodes)) if self.rank < sum(self.nodes[: n + 1]))

    @property
    def step(self) -> int:
        """At which it happens."""
        return TOTAL if self.kind == "uneven_data" else MOMENTS[self.phase]


def scenarios() -> list[Scenario]:
    """All of them, the healthy ones last."""
    return [*_faults(), *_healthy()]


def chosen(
    only: Sequence[str] = (), phases: Sequence[str] = (), *, one_each: bool = False, later: bool | None = None
) -> list[Scenario]:
    """Those of these names (of a kind, or of a scenario) and phases; with `one_each` the middle phase of every kind.

    Raises ValueError for a name or a phase that does not exist.
    """
    every = scenarios()
    names = {each.kind for each in every} | {each.name for each in every} | {HEALTHY}
    if unknown := sorted({*only} - names):
        raise ValueError(f"there is no fault named {', '.join(unknown)}; --list shows all")
    if unknown := sorted({*phases} - set(MOMENTS)):
        raise ValueError(f"there is no phase named {', '.join(unknown)}; there are {', '.join(MOMENTS)}")
    found = [
        each
        for each in every
        if (not only or {each.kind, each.name, *([] if each.truth else [HEALTHY])} & {*only})
        and (not phases or each.phase in phases)
        and (later is None or (each.truth is not None and each.later == later))
    ]
    return _one_each(found) if one_each else found


def _one_each(found: Sequence[Scenario]) -> list[Scenario]:
    by_kind: dict[str, list[Scenario]] = {}
    for each in found:
        if each.truth is not None:
            by_kind.setdefault(each.kind, []).append(each)
    return [own[len(own) // 2] if own[0].phase != "step" else own[0] for own in by_kind.values()]


def _faults() -> Iterator[Scenario]:
    for number, kind in enumerate(KINDS.values()):
        places = [*((phase, CLIENT) for phase in kind.phases), *kind.variants]
        for turn, (phase, variant) in enumerate(places):
            nodes = _nodes(kind.layouts[(number + turn) % len(kind.layouts)])
            if variant == COUNTED and len(nodes) > 1:
                nodes = (sum(nodes),)
            yield Scenario(
                kind.name,
                phase,
                variant,
                nodes,
                _rank(nodes, number + turn, other=kind.blames == NODE or kind.name == "other_node"),
                kind.blames == NOBODY,
                kind.truth(phase),
                (number + turn) % 2 == 0,
                kind.workers,
                kind.needs,
                kind.options,
                kind.later,
            )


def _healthy() -> Iterator[Scenario]:
    for number, each in enumerate(HARMLESS.values()):
        nodes = _nodes(each.layout)
        yield Scenario(
            each.name,
            each.phase,
            each.variant,
            nodes,
            _rank(nodes, number),
            each.everyone,
            None,
            number % 2 == 0,
            each.workers,
        )


def _nodes(layout: str) -> tuple[int, ...]:
    return tuple(int(ranks) for ranks in layout.split("+"))


def _rank(nodes: tuple[int, ...], turn: int, *, other: bool = False) -> int:
    """By turns; `other`: of the last node, which does not host the rendezvous."""
    first = sum(nodes[:-1]) if other else 0
    return first + turn % (sum(nodes) - first)


__all__ = ["HEALTHY", "MOMENTS", "RANK", "Scenario", "chosen", "scenarios"]
