"""A kept report whose texts can be shown: names of sections and nodes, and sentences with them, escaped. Pure.

Does not cover: JSON, which escapes them itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from holdfast.visible import escaped

from .kept import KeptReport


def legible(report: KeptReport) -> KeptReport:
    """The same report with legible texts."""
    return replace(
        report,
        kernels=_texts(report.kernels),
        verdicts=tuple(
            replace(
                one,
                node=escaped(one.node),
                kind=escaped(one.kind),
                evidence=escaped(one.evidence),
                section=None if one.section is None else escaped(one.section),
            )
            for one in report.verdicts
        ),
        withheld=_texts(report.withheld),
        columns=_texts(report.columns),
        rows=tuple((rank, escaped(node), scores) for rank, node, scores in report.rows),
        worst_nodes=_texts(report.worst_nodes),
    )


def _texts(value: Any) -> Any:
    """With each text in it escaped."""
    if isinstance(value, str):
        return escaped(value)
    if isinstance(value, Mapping):
        return {name: _texts(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(_texts, value))
    return value
