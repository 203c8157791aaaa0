"""The comparison with torchrun and NVRx: what its page says of what was measured, and that its faults can be done."""

from __future__ import annotations

import sys

import pytest

from benchmarks.compare import FAULTS, Contender, Outcome, ended, tried
from benchmarks.table import filled, percentile

NAMES = {"torchrun": "torchrun", "nvrx": "NVRx 0.4.1", "holdfast": "Holdfast"}
MARKS = "<!-- measured -->", "<!-- end -->"
HOLDFAST = Contender("holdfast", "Holdfast", sys.executable, "holdfast.fault_tolerance.launcher")


def test_what_was_measured_takes_the_place_of_what_was() -> None:
    begin, end = MARKS
    once = filled(f"Title\n\n{begin}\n{end}\nMore\n", "first", *MARKS)
    assert filled(once, "second", *MARKS) == f"Title\n\n{begin}\nsecond\n{end}\nMore\n"
    with pytest.raises(ValueError, match="no place for it"):
        filled("Title\n", "first", *MARKS)


def test_what_was_tried_has_a_column_for_each() -> None:
    faults = {"killed": {"torchrun": Outcome("lives on", False), "holdfast": Outcome("ended", True)}}
    assert "| killed | ✗ lives on | – | ✓ ended |" in tried(NAMES, faults)
    assert "could not be installed here" in tried({"holdfast": "Holdfast"}, faults)


def test_the_99th_percentile_of_few_values_is_the_largest() -> None:
    values = [float(number) for number in range(1, 101)]
    assert percentile(values, 99) == 99.0 and percentile(values, 50) == 50.0
    assert percentile(values[:50], 99) == max(values[:50])


def test_a_launcher_that_does_not_end_has_no_exit_code() -> None:
    assert ended(3) == "exit code 3"
    assert ended(None) == "still runs after 90 s"


QUICK = (
    "both ranks exit with 3",
    "the launcher is killed with -9",
    "SIGTERM to every process at once (preemption)",
    "a misspelt key in the YAML",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "what", [what if what in QUICK else pytest.param(what, marks=pytest.mark.variant) for what in FAULTS]
)
def test_a_fault_is_done_and_judged(what: str) -> None:
    assert FAULTS[what](HOLDFAST).good is True
