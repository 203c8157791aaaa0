"""Which bad nodes a job can do without. Pure.

What always holds: the job keeps as many nodes as it needs, of those that there are and of those that work now, and a
node that its submitter asked for by name is never left out: a job that waits for ever is worse than a bad node.

Does not cover: what else a job asks of its nodes (--constraint, --gres); `sinfo` tells of a partition as a whole.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

BROKEN = ("down", "drain", "fail")
"""How the names of states begin in which Slurm gives nodes to nobody. Source: sinfo(1), node state codes."""


def spared(
    bad: Iterable[str],
    nodes: Mapping[str, str],
    *,
    needed: int,
    excluded: Collection[str] = (),
    required: Collection[str] = (),
) -> tuple[str, ...]:
    """Those of the `bad` nodes, in their order, that can be left out beside those that are `excluded` already.

    `nodes` are the states of all nodes on which the job may run.
    """
    left = {name: state for name, state in nodes.items() if name not in excluded}
    out = []
    for node in bad:
        if node in required or node not in left:
            continue
        rest = {name: state for name, state in left.items() if name != node}
        if len(rest) < needed or (works(left[node]) and sum(map(works, rest.values())) < needed):
            continue
        out.append(node)
        left = rest
    return tuple(out)


def works(state: str) -> bool:
    """Whether Slurm may give this node to a job, now or when others have ended."""
    return not state.startswith(BROKEN) and not state.endswith("*")
