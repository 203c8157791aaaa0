"""The docstring of `FaultToleranceConfig`: every item with unit and default, as documents 1 and 2 promise."""

from __future__ import annotations

import dataclasses
import pydoc
import re
import subprocess
import sys

import pytest

from holdfast.fault_tolerance import FaultToleranceConfig
from holdfast.fault_tolerance.config import FIELDS
from holdfast.fault_tolerance.config_docstring import UNITS, attributes

EXPECTED = {
    "rank_heartbeat_timeout": "longest time between two heartbeats. In seconds; None is no limit. Default: 2700.",
    "rank_section_timeouts": "In seconds for each section; None is no limit. Default: {}.",
    "rank_out_of_section_timeout": "In seconds; None is no limit. Default: None.",
    "safety_factor": "learned limit = FACTOR x longest interval observed. A number without unit. Default: 5.",
    "rank_termination_signal": "A signal's name or number. Default: SIGKILL.",
    "log_level": "A level of `logging`. Default: INFO.",
    "enable_nic_monitor": "True or False. Default: False.",
    "pci_topo_file": "A path, or None. Default: None.",
}


def items() -> dict[str, str]:
    """Each item of the docstring on one line."""
    doc = FaultToleranceConfig.__doc__ or ""
    section = doc.partition("\nAttributes:\n")[2].partition("\n\n")[0]
    parts = re.split(r"^    (\w+) \(.*?\): ", re.sub(r"\n {8}", " ", section), flags=re.MULTILINE)
    return dict(zip(parts[1::2], (text.strip() for text in parts[2::2]), strict=True))


def test_docstring_describes_every_field() -> None:
    assert list(items()) == list(FIELDS)


def test_docstring_gives_unit_and_default_of_every_field() -> None:
    for name, text in items().items():
        metavar = FIELDS[name].metadata["metavar"]
        unit = UNITS.get(metavar, f"Unit: {metavar}")
        assert unit in text, name
        assert re.search(r" Default: [^ ]+\.$", text), name


@pytest.mark.parametrize("name", EXPECTED)
def test_docstring_item_reads_as_expected(name: str) -> None:
    assert items()[name].endswith(EXPECTED[name])


def test_help_shows_the_items() -> None:
    text = pydoc.render_doc(FaultToleranceConfig, renderer=pydoc.plaintext)
    assert "Attributes:" in text
    for name in FIELDS:
        assert re.search(rf"^ \|      {name} \(.*\): ", text, re.MULTILINE), name


def test_docstring_follows_a_new_field() -> None:
    """It is made from the metadata: a setting that is added needs no second text."""
    new = dataclasses.field(default=512, metadata={"metavar": "MB", "help": "memory that may stay in use"})
    new.name, new.type = "tolerance", "int"  # type: ignore[misc]
    assert attributes({"tolerance": new}) == (
        "Attributes:\n    tolerance (int): memory that may stay in use. Unit: MB. Default: 512."
    )


def test_config_works_without_docstrings() -> None:
    code = "from holdfast.fault_tolerance import FaultToleranceConfig as C; print(C().safety_factor)"
    done = subprocess.run([sys.executable, "-OO", "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("5.0\n", "")
