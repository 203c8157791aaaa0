"""Evidence and verdicts as JSON values, and back: the schema of ``incident.json`` and of the nodes' fragments. Pure.

`SCHEMA` counts its versions: fields are added without a new number, and a reader ignores those that it does not have;
a field that goes or changes its meaning makes a new one. Schema 1 is still read (`schema_1`). :func:`packed` makes a
node's evidence small enough for the rendezvous store.
"""

from __future__ import annotations

import base64
import json
import math
import types
import typing
import zlib
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any, TypeVar

from .evidence import Collective, Frame, NodeEvidence, RankEvidence
from .verdict import Judgement, Verdict

SCHEMA = 2
T = TypeVar("T")


def encoded(value: NodeEvidence | Verdict | Judgement) -> dict[str, Any]:
    """As a value for `json.dumps`."""
    found = _encoded(value)
    assert isinstance(found, dict)
    return found


def _encoded(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value) if value and type(value[0]) is int else [_encoded(each) for each in value]
    if not is_dataclass(value):
        return value.value if isinstance(value, Enum) else value
    found = {name: _encoded(getattr(value, name)) for name in _names(typing.cast(Any, type(value)))}
    return {**found, "members": runs(value.members)} if isinstance(value, Collective) else found


@cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple(each.name for each in fields(kind))


def fragment(node: NodeEvidence) -> dict[str, Any]:
    """A node's evidence as it is written, sent and kept: `{"schema": 2, "node": {...}}`."""
    return {"schema": SCHEMA, "node": encoded(node)}


def node_of(value: Mapping[str, Any]) -> NodeEvidence:
    """The reverse of `fragment`; schema 1 is read as well.

    Raises:
        ValueError: It is no fragment, or of a schema that this version does not read.
    """
    node = value.get("node") if isinstance(value, Mapping) else None
    if not isinstance(node, Mapping):
        raise ValueError('a fragment is an object {"schema": ..., "node": {...}}')
    schema = value.get("schema")
    if schema not in (1, SCHEMA):
        raise ValueError(f"schema {schema!r:.40} is not one of 1 and {SCHEMA}")
    if schema == 1:
        from .schema_1 import upgraded

        node = upgraded(node)
    return decoded(NodeEvidence, node)


def decoded(kind: type[T], value: Any) -> T:
    """The dataclass of this kind in a JSON value; raises ValueError where it is none. Unknown fields are left out."""
    try:
        found = _decoder(typing.cast(Any, kind))(value)
    except (TypeError, KeyError, AttributeError, OverflowError) as error:
        raise ValueError(f"no {kind.__name__}: {error}") from error
    assert isinstance(found, kind)
    return found


@cache
def _decoder(hint: Any) -> Callable[[Any], Any]:
    """A function from a JSON value to a value of this type. It raises TypeError or OverflowError where it is none."""
    if isinstance(hint, type) and issubclass(hint, Enum):
        codes, unknown = {each.value: each for each in hint}, next(iter(hint))
        return lambda value: codes.get(value, unknown)  # a code of a newer version
    if is_dataclass(hint) and isinstance(hint, type):
        return _decoder_of_fields(hint)
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        of_part = _decoder(parts[0])

        def items(value: Any) -> tuple[Any, ...]:
            if not isinstance(value, (list, tuple)):
                raise TypeError(f"a list is expected, not {type(value).__name__}")
            return tuple([of_part(part) for part in value])

        return items
    if origin in (types.UnionType, typing.Union):
        of_value = _decoder(parts[0])
        return lambda value: None if value is None else of_value(value)
    return _PLAIN[hint]


def _decoder_of_fields(kind: type) -> Callable[[Any], Any]:
    decoders = {name: _decoder(hint) for name, hint in typing.get_type_hints(kind).items()}
    if kind is Collective:
        decoders["members"] = members_of

    def instance(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise TypeError(f"{kind.__name__} is an object, not {type(value).__name__}")
        return kind(**{name: decoders[name](part) for name, part in value.items() if name in decoders})

    return instance


LARGEST_NUMBER = (1 << 63) - 1


def _checked(fits: Callable[[Any], bool], what: str) -> Callable[[Any], Any]:
    """A function that gives its value back, and raises TypeError where it does not fit."""

    def fitting(value: Any) -> Any:
        if not fits(value):
            raise TypeError(f"{what} is expected, not {value!r:.40}")
        return value

    return fitting


_whole = _checked(lambda value: type(value) is int and abs(value) <= LARGEST_NUMBER, "a number")
_number = _checked(lambda value: type(value) in (int, float) and math.isfinite(value), "a number")
_PLAIN: Mapping[Any, Callable[[Any], Any]] = {
    int: _whole,
    float: lambda value: float(_number(value)),
    str: _checked(lambda value: isinstance(value, str), "a text"),
    bool: _checked(lambda value: isinstance(value, bool), "true or false"),
}


# -- thousands of members, the same ones in each entry of each rank ---------------------------------------------

MOST_MEMBERS = 1 << 20


@lru_cache(maxsize=256)
def runs(numbers: tuple[int, ...]) -> tuple[tuple[int, int, int], ...]:
    """As (first, count, step) of each run."""
    found: list[tuple[int, int, int]] = []
    for number in numbers:
        first, count, step = found[-1] if found else (0, 0, 0)
        if count == 1:
            found[-1] = first, 2, number - first
        elif count and number == first + count * step:
            found[-1] = first, count + 1, step
        else:
            found.append((number, 1, 1))
    return tuple(found)


def members_of(value: Any) -> tuple[int, ...]:
    """The reverse; plain numbers are read as well. Equal groups share one tuple."""
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"a list is expected, not {type(value).__name__}")
    if all(type(each) is int for each in value):
        return _shared(tuple((_whole(each), 1, 1) for each in value))
    return _shared(tuple((_whole(first), _whole(count), _whole(step)) for first, count, step in value))


@lru_cache(maxsize=256)
def _shared(parts: tuple[tuple[int, int, int], ...]) -> tuple[int, ...]:
    found: list[int] = []
    for first, count, step in parts:
        if not 0 < count <= MOST_MEMBERS - len(found):
            raise OverflowError("a group has too many members, or none")
        found += [first + number * step for number in range(count)]
    return tuple(found)


def rhythm(agos: typing.Sequence[float]) -> float:
    """The longest time between two signs of life, of how long ago each was, the oldest first; 0: there are none."""
    return max((early - late for early, late in pairwise(agos)), default=0.0)


# -- through the store -----------------------------------------------------------------------------------------

INNER_FRAMES, OUTER_FRAMES, LINES, CHARACTERS, MOST_CHILDREN = 12, 12, 3, 2000, 8
LARGEST = 1 << 24
"""Bytes that are unpacked at most: what the store holds is not trusted."""


def packed(node: NodeEvidence) -> str:
    """As text for the store: what verdicts are made of. Its full fragment has the rest."""
    text = json.dumps(fragment(replace(node, ranks=tuple(_small(rank) for rank in node.ranks))))
    return base64.b64encode(zlib.compress(text.encode(), 6)).decode()


def unpacked(text: str) -> NodeEvidence:
    """The reverse. Raises ValueError for anything else."""
    try:
        return node_of(json.loads(zlib.decompressobj().decompress(base64.b64decode(text), LARGEST)))
    except (zlib.error, RecursionError, TypeError) as error:
        raise ValueError(f"no packed evidence: {error}") from error


def _small(rank: RankEvidence) -> RankEvidence:
    process = rank.process
    if process:
        odd = [child for child in process.children if child.state in ("T", "t", "D", "Z") or child.frames]
        process = replace(process, threads=process.threads[:1], children=tuple(odd[:MOST_CHILDREN]))
        process = replace(process, network_files=())
    return replace(
        rank,
        board=rank.board and replace(rank.board, events=()),
        process=process,
        stacks=tuple(
            replace(each, frames=both_ends(each.frames, INNER_FRAMES, OUTER_FRAMES)) for each in rank.stacks
        ),
        collectives=decisive(rank.collectives),
        raised=rank.raised and replace(rank.raised, traceback=rank.raised.traceback[-CHARACTERS:]),
        last_lines=rank.last_lines[-LINES:],
    )


def decisive(entries: typing.Sequence[Collective]) -> tuple[Collective, ...]:
    """The entries that decide, of each process group, and of each direction between two ranks in it.

    These are the oldest that is not completed, the newest, and the newest that is completed: it shows that completion
    is recorded.
    """
    kept: dict[int, Collective] = {}
    groups: dict[tuple[object, ...], list[Collective]] = {}
    for entry in entries:
        way = (entry.peer, entry.operation) if entry.p2p else None
        groups.setdefault((entry.group, way), []).append(entry)
    for of_group in groups.values():
        of_group.sort(key=lambda entry: entry.sequence)
        pending = [entry for entry in of_group if entry.state != "completed"]
        completed = [entry for entry in of_group if entry.state == "completed"]
        kept.update((id(entry), entry) for entry in (*pending[:1], *completed[-1:], of_group[-1]))
    return tuple(entry for entry in entries if id(entry) in kept)


def both_ends(frames: tuple[Frame, ...], inner: int = 40, outer: int = 24) -> tuple[Frame, ...]:
    """Of a deep stack the innermost calls, and those of the program that led there."""
    return frames if len(frames) <= inner + outer else (*frames[:inner], *frames[-outer:])
