"""The values of the node controller as JSON for the journal, and back. Pure.

A dataclass is an object: "$" has its type, and a field that is empty by default is left out while it is empty. A tuple
is a list. Other types that JSON does not have are `{"$": type, "value": ...}`. A value of more than 8,000 characters is
compressed, because the journal cuts texts.

What always holds: `encode` never fails, and only the types of :data:`TYPES` are ever made from a journal. A field that
this version does not have is ignored, and one that is missing has its default.
Does not cover: values inside another type of the same fields. Those are read as what the journal names.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from typing import Any

from ...journal.event import LONGEST_TEXT
from ..errors import HoldfastError
from ..stop.rules import RankView, Word
from .control import agreed_stop, liveness, messages, node, records

MODULES = (agreed_stop, liveness, messages, node, records)
TYPES: dict[str, type] = {
    name: value
    for module in MODULES
    for name, value in vars(module).items()
    if isinstance(value, type) and value.__module__ == module.__name__
} | {"Word": Word, "RankView": RankView}
"""What may stand in a journal, by name."""


def _empty(field: Field[Any]) -> Any:
    """The value for which a field is left out: its default, if that is empty; else `MISSING`."""
    default = field.default if field.default_factory is MISSING else field.default_factory()
    is_empty = not default and type(default) in (
        type(None),
        bool,
        int,
        float,
        str,
        tuple,
        frozenset,
        dict,
        set,
    )
    return default if is_empty else MISSING


FIELDS: dict[Any, dict[str, Any]] = {
    cls: {each.name: _empty(each) for each in fields(cls)} for cls in TYPES.values() if is_dataclass(cls)
}
"""The dataclasses with their fields, each with the value for which it is left out."""
COLLECTIONS: dict[str, Callable[[Any], Any]] = {"list": list, "set": set, "frozenset": frozenset}


class Unreadable(HoldfastError):
    """A value that this version cannot read; the message names what is wrong with it."""


def encode(value: Any) -> Any:
    """The value as JSON."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum) and type(value) is TYPES.get(type(value).__name__):
        return {"$": type(value).__name__, "value": value.value}
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$": "float", "value": repr(value)}
    if (names := FIELDS.get(type(value))) is not None:
        found = {name: each for name, empty in names.items() if (each := getattr(value, name)) != empty}
        return {"$": type(value).__name__, **{name: encode(each) for name, each in found.items()}}
    if isinstance(value, Mapping):
        return _encode_mapping(value)
    if isinstance(value, tuple):
        return [encode(each) for each in value]
    if type(value).__name__ in COLLECTIONS:
        ordered = value if isinstance(value, list) else sorted(value, key=repr)
        return {"$": type(value).__name__, "value": [encode(each) for each in ordered]}
    return {"$": "repr", "value": repr(value)}


def _encode_mapping(value: Mapping[Any, Any]) -> Any:
    if type(value) is records.View:
        return {"$": "View", "value": dict(value)}
    if all(type(name) is str and name != "$" for name in value):
        return {name: encode(each) for name, each in value.items()}
    return {"$": "dict", "value": [[encode(name), encode(each)] for name, each in value.items()]}


def pack(value: Any) -> Any:
    """The value as JSON that the journal keeps as it is: compressed where it is long."""
    encoded = encode(value)
    text = json.dumps(encoded, separators=(",", ":"))
    if len(text) <= LONGEST_TEXT:
        return encoded
    data = base64.b64encode(zlib.compress(text.encode())).decode()
    pieces = [data[at : at + LONGEST_TEXT] for at in range(0, len(data), LONGEST_TEXT)]
    return {"$": "zlib", "value": pieces}


def decode(found: Any) -> Any:
    """The reverse of :func:`encode` and :func:`pack`. Raises `Unreadable`."""
    try:
        return _decode(found)
    except (TypeError, ValueError, KeyError, AttributeError, zlib.error) as error:
        raise Unreadable(f"a value of another version: {type(error).__name__}: {error}") from None


def _decode(found: Any) -> Any:
    if isinstance(found, list):
        return tuple(_decode(each) for each in found)
    if not isinstance(found, dict):
        return found
    if "$" not in found:
        return {name: _decode(each) for name, each in found.items()}
    name, value = found["$"], found.get("value", ())
    if name in COLLECTIONS:
        return COLLECTIONS[name](_decode(each) for each in value)
    match name:
        case "float":
            return float(str(value))
        case "dict":
            return {_decode(key): _decode(each) for key, each in value}
        case "repr":
            return str(value)
        case "zlib":
            return _decode(json.loads(zlib.decompress(base64.b64decode("".join(value)))))
    cls = TYPES.get(name)
    if cls is None:
        raise Unreadable(f"a value of another version: the type {name} does not exist in this one")
    if cls not in FIELDS:
        return cls(value)
    return cls(**{each: _decode(found[each]) for each in FIELDS[cls] if each in found})
