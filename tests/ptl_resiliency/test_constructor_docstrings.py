"""The constructors' docstrings describe every parameter, with unit and default, as documents 1 and 2 promise."""

from __future__ import annotations

import inspect
import pydoc
import re
from typing import Any

import pytest

from holdfast.integrations import transformers
from holdfast.ptl_resiliency import FaultToleranceCallback, FaultToleranceSectionsCallback

CALLBACKS = [
    FaultToleranceCallback,
    FaultToleranceSectionsCallback,
    transformers.FaultToleranceCallback,
    transformers.FaultToleranceSectionsCallback,
]
UNITS = {
    "autoresume": "True, False, or None",
    "calculate_timeouts": "True or False",
    "simulated_fault_params": "in seconds",
    "exp_dir": "A path, or None",
    "logger_name": "A text, or None",
    "exc_handling_policy": "A function, or None",
}


def items(callback: Any) -> dict[str, str]:
    """Each item of the docstring's arguments on one line."""
    doc = inspect.getdoc(callback.__init__) or ""
    section = doc.partition("\nArgs:\n")[2].partition("\n\n")[0]
    parts = re.split(r"^    (\w+): ", re.sub(r"\n {8}", " ", section), flags=re.MULTILINE)
    return dict(zip(parts[1::2], (text.strip() for text in parts[2::2]), strict=True))


@pytest.mark.parametrize("callback", CALLBACKS, ids=lambda one: f"{one.__module__}")
def test_docstring_has_unit_and_default_of_every_parameter(callback: Any) -> None:
    parameters = list(inspect.signature(callback).parameters.values())
    found = items(callback)
    assert list(found) == [one.name for one in parameters]
    for one in parameters:
        assert UNITS[one.name] in found[one.name], one.name
        default = "Required." if one.default is one.empty else f"Default: {one.default!r}."
        assert found[one.name].endswith(f" {default}"), one.name


@pytest.mark.parametrize("callback", CALLBACKS[:2], ids=lambda one: one.__name__)
def test_help_shows_the_parameters(callback: Any) -> None:
    text = pydoc.render_doc(callback, renderer=pydoc.plaintext)  # type: ignore[attr-defined]
    for name in inspect.signature(callback).parameters:
        assert re.search(rf"^ \|          {name}: ", text, re.MULTILINE), name
    assert "FAULT_TOL_FINISHED_FLAG_FILE" in text and "trainer.log_dir" in text


def test_signature_is_as_documented() -> None:
    """The docstring is added to the function; it is not wrapped."""
    assert not hasattr(FaultToleranceCallback.__init__, "__wrapped__")
    assert FaultToleranceCallback(True, False, exp_dir="exp").exp_dir == "exp"
