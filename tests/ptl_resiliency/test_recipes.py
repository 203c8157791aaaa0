"""The recipe functions return the callbacks themselves."""

from __future__ import annotations

import inspect
import signal
import subprocess
import sys

from holdfast.callbacks.straggler_findings import StragglerSettings
from holdfast.callbacks.stragglers import LOGGER
from holdfast.ptl_resiliency import (
    FaultToleranceCallback,
    PreemptionCallback,
    StragglerDetectionCallback,
    recipes,
)
from holdfast.ptl_resiliency.recipes import straggler_det_callback


def test_the_straggler_recipe() -> None:
    callback = straggler_det_callback()
    assert type(callback) is StragglerDetectionCallback
    assert callback._settings == StragglerSettings(300.0, True, True, 5, 0.7, 0.7, True, True, 1, LOGGER)
    other = straggler_det_callback(60, False, 0.5, 0.6)._settings
    assert (other.report_time_interval, other.stop_if_detected) == (60.0, False)
    assert (other.relative_threshold, other.individual_threshold) == (0.5, 0.6)


def test_the_others_have_the_documented_defaults() -> None:
    """Their callbacks are tested on their own."""
    fault_tolerance = inspect.signature(recipes.fault_tolerance_callback).parameters
    assert fault_tolerance["autoresume"].default is None
    assert fault_tolerance["calculate_timeouts"].default is True
    assert inspect.signature(recipes.preemption_callback).parameters["sig"].default == signal.SIGTERM


def test_the_others_return_their_callbacks() -> None:
    assert type(recipes.fault_tolerance_callback()) is FaultToleranceCallback
    assert type(recipes.preemption_callback()) is PreemptionCallback


def test_the_documented_module_has_the_same_callback() -> None:
    code = (
        "import holdfast.ptl_resiliency.recipes as recipes, sys; assert 'lightning' not in sys.modules;"
        "made = recipes.straggler_det_callback(); import holdfast.ptl_resiliency.straggler_det_callback as module;"
        "print(type(made) is module.StragglerDetectionCallback)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "True\n"
