"""Faults as text, the value of HOLDFAST_FAULT. Pure.

    FAULTS  :=  FAULT { ";" FAULT }
    FAULT   :=  KIND "@" KEY "=" VALUE { "," KEY "=" VALUE }

    hang@step=12,rank=1,cycle=0 ; kill@after=5s,rank=random,seed=3

When (one of them):  step=N [point=NAME]  or  after=DURATION [rand=DURATION]
Where:               rank=N|random|all (random)   seed=N   cycle=N|each (0)
How:                 code=N (exit)   message=TEXT (exception)   for=DURATION (sleep, gil, deadlock, child)
                     how=enter|skip (deadlock)   limit=SIZE (memory)   size=SIZE (half_save)
                     ignore_term=yes|no (child)

DURATION is `5`, `5s`, `500ms`, `2m`, `1h`; SIZE is `268435456`, `256MiB`, `1GiB` (`MB` and `GB` mean the same).
Blanks around every part are ignored. What always holds: `parse(render(f)) == (f,)`, unless f's message
contains "," or ";", which a TEXT cannot.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from holdfast.testing.errors import FaultSpecError
from holdfast.testing.fault import Fault, canonical_kind, nearest

__all__ = ["parse", "render"]


class _Key(NamedTuple):
    field: str
    read: Callable[[str], object]
    write: Callable[[Any], str] = str


def _whole(text: str) -> int:
    if not re.fullmatch(r"\d+", text, re.ASCII):
        raise ValueError("a whole number from 0")
    return int(text)


def _integer(text: str) -> int:
    if not re.fullmatch(r"-?\d+", text, re.ASCII):
        raise ValueError("a whole number")
    return int(text)


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d*)?(?:e[+-]?\d+)?)(ms|s|m|h|)", text, re.ASCII)
    if not found:
        raise ValueError("a duration such as 5s, 500ms or 2m")
    return float(found[1]) * {"ms": 0.001, "m": 60.0, "h": 3600.0}.get(found[2], 1.0)


def _bytes(text: str) -> int:
    found = re.fullmatch(r"(\d+)([kmg]i?b?)?b?", text.lower(), re.ASCII)
    if not found:
        raise ValueError("a size such as 256MiB")
    return int(found[1]) * {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}[(found[2] or "")[:1]]


def _rank(text: str) -> int | str:
    if text in ("random", "all"):
        return text
    if not re.fullmatch(r"\d+", text, re.ASCII):
        raise ValueError("a rank, 'random' or 'all'")
    return int(text)


def _cycle(text: str) -> int | str:
    if text == "each":
        return text
    if not re.fullmatch(r"\d+", text, re.ASCII):
        raise ValueError("a restart cycle or 'each'")
    return int(text)


def _yes_or_no(text: str) -> bool:
    if text.lower() not in ("yes", "no"):
        raise ValueError("'yes' or 'no'")
    return text.lower() == "yes"


def _text(text: str) -> str:
    if not text:
        raise ValueError("some text")
    return text


#: In the order in which `render` writes them.
_KEYS = {
    "step": _Key("step", _whole),
    "point": _Key("point", _text),
    "after": _Key("after", _seconds, lambda seconds: f"{seconds!r}s"),
    "rand": _Key("rand", _seconds, lambda seconds: f"{seconds!r}s"),
    "rank": _Key("rank", _rank),
    "seed": _Key("seed", _integer),
    "cycle": _Key("cycle", _cycle),
    "code": _Key("code", _whole),
    "message": _Key("message", _text),
    "for": _Key("duration", _seconds, lambda seconds: f"{seconds!r}s"),
    "how": _Key("how", _text),
    "limit": _Key("limit", _bytes),
    "size": _Key("size", _bytes),
    "ignore_term": _Key("ignore_term", _yes_or_no, lambda yes: "yes" if yes else "no"),
}


def parse(text: str, source: str = "fault") -> tuple[Fault, ...]:
    """Reads one or more faults.

    source: where the text comes from, for the error ("HOLDFAST_FAULT").
    Raises FaultSpecError: names the source, the fault and the value, and says what is allowed.
    """
    faults = []
    for piece in filter(None, (piece.strip() for piece in text.split(";"))):
        try:
            faults.append(_parse_one(piece))
        except FaultSpecError as error:
            raise FaultSpecError(f"{source}: in {piece!r}: {error}") from None
    if not faults:
        raise FaultSpecError(f"{source}: {text!r} names no fault; an example: kill@step=12,rank=1")
    return tuple(faults)


def render(fault: Fault) -> str:
    """The text that `parse` reads back as the same fault; values that are the default are left out."""
    default = Fault("kill", step=0)
    parts = []
    for key, (field, _, write) in _KEYS.items():
        value = getattr(fault, field)
        if (field == "step" and value is not None) or (field != "step" and value != getattr(default, field)):
            parts.append(f"{key}={write(value)}")
    return f"{fault.kind}@{','.join(parts)}"


def _parse_one(text: str) -> Fault:
    name, _, rest = text.partition("@")
    kind = canonical_kind(name)
    fields: dict[str, Any] = {}
    for key, value in _pairs(rest):
        field, read, _ = _KEYS[key]
        if field in fields:
            raise FaultSpecError(f"{key} is given twice")
        try:
            fields[field] = read(value)
        except ValueError as error:
            raise FaultSpecError(f"{key} is {error}, not {value!r}") from None
    return Fault(kind, **fields)


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for pair in filter(None, (pair.strip() for pair in text.split(","))):
        key, equals, value = pair.partition("=")
        key = key.strip().lower().replace("-", "_")
        if not equals:
            raise FaultSpecError(f"{pair!r} is not KEY=VALUE")
        if key not in _KEYS:
            raise FaultSpecError(f"unknown key {key!r}{nearest(key, _KEYS)}; known: {', '.join(_KEYS)}")
        yield key, value.strip()
