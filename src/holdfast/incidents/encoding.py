"""Evidence and verdicts as JSON values, and back: the schema of ``incident.json`` and of the nodes' fragments.

`SCHEMA` counts its versions: fields are added without a new number, and a reader ignores those that it does not know;
a field that goes or changes its meaning makes a new one. Pure.
"""

from __future__ import annotations

import types
import typing
from dataclasses import asdict, fields, is_dataclass
from functools import cache
from typing import Any, TypeVar

from .evidence import NodeEvidence
from .verdict import Verdict

SCHEMA = 1
T = TypeVar("T")


def encoded(value: NodeEvidence | Verdict) -> dict[str, Any]:
    """As a value for `json.dumps`."""
    return asdict(value)


def decoded(kind: type[T], value: Any) -> T:
    """The dataclass of this kind in a JSON value; raises ValueError where it is none. Unknown fields are left out."""
    try:
        found = _decoded(kind, value)
    except (TypeError, KeyError, AttributeError, OverflowError) as error:
        raise ValueError(f"no {kind.__name__}: {error}") from error
    assert isinstance(found, kind)
    return found


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _decoded(hint: Any, value: Any) -> Any:
    if is_dataclass(hint) and isinstance(hint, type):
        if not isinstance(value, dict):
            raise TypeError(f"{hint.__name__} is an object, not {type(value).__name__}")
        hints = _hints(hint)
        known = {each.name for each in fields(hint)}
        return hint(**{name: _decoded(hints[name], part) for name, part in value.items() if name in known})
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise TypeError(f"a list is expected, not {type(value).__name__}")
        return tuple(_decoded(parts[0], part) for part in value)
    if origin in (types.UnionType, typing.Union):
        return None if value is None else _decoded(parts[0], value)
    return _plain(hint, value)


def _plain(hint: type, value: Any) -> Any:
    wanted = (int, float) if hint is float else hint
    if not isinstance(value, wanted) or (isinstance(value, bool) and hint is not bool):
        raise TypeError(f"{hint.__name__} is expected, not {value!r}")
    return hint(value)
