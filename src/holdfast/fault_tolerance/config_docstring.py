"""The items of `FaultToleranceConfig`'s docstring, made from the metadata of its fields. Pure."""

from __future__ import annotations

import dataclasses
import logging
import signal
from collections.abc import Mapping
from typing import Any

from holdfast import docstring

UNITS = {
    "SECONDS": "In seconds",
    "NAME:SECONDS,...": "In seconds for each section",
    "FACTOR": "A number without unit",
    "SIGNAL": "A signal's name or number",
    "LEVEL": "A level of `logging`",
    "BOOL": "True or False",
    "FILE": "A path",
    "PATH": "A path",
    "PATH,...": "Paths, separated by commas",
    "DIR": "A path",
    "NODES": "A number of nodes",
    "CYCLES": "A number of cycles",
    "ITERATIONS": "A number of iterations",
    "MEGABYTES": "In megabytes",
}
"""What a value of a field is, by the field's metavar."""


def attributes(fields: Mapping[str, dataclasses.Field[Any]]) -> str:
    """The section ``Attributes:``; every field with its type, meaning, unit and default."""
    items = [(f"{name} ({each.type})", _described(name, each)) for name, each in fields.items()]
    return docstring.section("Attributes", items)


def _described(name: str, field: dataclasses.Field[Any]) -> str:
    metavar = field.metadata["metavar"]
    unit = UNITS.get(metavar, f"Unit: {metavar}")
    if "None" in str(field.type):
        unit += "; None is no limit" if "SECONDS" in metavar else ", or None"
    return f"{field.metadata['help']}. {unit}. Default: {_default(name, field)}."


def _default(name: str, field: dataclasses.Field[Any]) -> str:
    value: Any = field.default
    if field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    if isinstance(value, signal.Signals):
        return value.name
    if name == "log_level":
        return str(logging.getLevelName(value))
    return f"{value:g}" if isinstance(value, float) else repr(value)
