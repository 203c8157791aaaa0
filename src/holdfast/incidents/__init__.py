"""Incidents: what went wrong, which rank caused it and how that is known."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .evidence import Case
    from .verdict import Judgement

__all__ = ["judge"]


def judge(fragments: Case | Iterable[Mapping[str, Any] | str | os.PathLike[str]]) -> Judgement:
    """Judge the evidence of an incident.

    Args:
        fragments: One for each node, as documented in docs/incident-reports.md (schema 1 or 2): a fragment's object
            `{"schema": 2, "node": {...}}`, a whole incident.json (`{"nodes": [...]}`), or the path of a file with
            either. Also a `Case`.

    Returns:
        The verdict, one activity for each rank, and the edges of the wait-for graph.

    Raises:
        ValueError: A fragment is no evidence, or of a schema that this version does not read.
        OSError: A file cannot be read.

    Does not cover: causes outside the ranks, of which no rank has evidence.
    """
    from .evidence import Case
    from .rules import judge as judge_case
    from .wire import node_of

    if isinstance(fragments, Case):
        return judge_case(fragments)
    if isinstance(fragments, (Mapping, str, os.PathLike)):
        fragments = [fragments]
    nodes = [node_of(node) for fragment in fragments for node in _nodes(fragment)]
    return judge_case(Case(tuple(nodes)))


def _nodes(fragment: Mapping[str, Any] | str | os.PathLike[str]) -> list[Mapping[str, Any]]:
    if isinstance(fragment, (str, os.PathLike)):
        with open(fragment, encoding="utf-8") as file:
            fragment = json.load(file)
    if not isinstance(fragment, Mapping):
        raise ValueError(f"a fragment is an object, not {type(fragment).__name__}")
    if isinstance(fragment.get("nodes"), list):
        return [{"schema": fragment.get("schema"), "node": node} for node in fragment["nodes"]]
    return [fragment]
