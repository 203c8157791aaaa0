"""What each kind of fault does, inside of a rank. Everything here harms.

A deed has the name of its kind and a place in the program:

- `plain`: the program's own code; called with the `Point`. `anywhere`: it can be done by another thread as well.
- `data`, `storage`: where a file is read or written; called with the `Point` and the file, may return another one.
- `hook`: a hook of the backward pass.
- `collective`: instead of one rank's collective; called with the `Point` and the tensor.
- `joint`: all ranks, beside a collective; called with the `Point`, the tensor and a group of all ranks.

The functions have no names of their own: a name on a stack would say what the rules have to find out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

_FILES = ("ends", "stands", "threads", "children", "machines", "files", "groups", "starts", "harmless")


@dataclass(frozen=True)
class Deed:
    """Where and how it is done."""

    place: str
    do: Callable[..., Any]
    anywhere: bool = False


_DEEDS: dict[str, Deed] = {}


def deed(*names: str, place: str = "plain", anywhere: bool = False) -> Callable[[Callable[..., Any]], Any]:
    """Registers a function for these kinds."""

    def register(do: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            if name in _DEEDS:
                raise ValueError(f"two deeds for {name}")
            _DEEDS[name] = Deed(place, do, anywhere)
        return do

    return register


def named(kind: str) -> Deed:
    """The deed for this kind; KeyError where there is none."""
    return every()[kind]


def every() -> dict[str, Deed]:
    """All of them."""
    for file in _FILES:
        import_module(f"{__name__}.{file}")
    return _DEEDS
