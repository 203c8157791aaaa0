"""The arguments of `StragglerDetectionCallback`: both documented signatures, and what is refused."""

from __future__ import annotations

import inspect
import io
import logging
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from typing import Any

import pytest

from holdfast.callbacks.arguments import INSTEAD_OF_ROOT, named
from holdfast.callbacks.straggler_findings import StragglerSettings
from holdfast.callbacks.stragglers import LOGGER
from holdfast.integrations import transformers
from holdfast.ptl_resiliency import (
    FaultToleranceCallback,
    FaultToleranceSectionsCallback,
    StragglerDetectionCallback,
)
from holdfast.ptl_resiliency.recipes import straggler_det_callback

DOCUMENTED = {
    "report_time_interval": 300.0,
    "calc_relative_gpu_perf": True,
    "calc_individual_gpu_perf": True,
    "num_gpu_perf_scores_to_log": 3,
    "gpu_relative_perf_threshold": 0.7,
    "gpu_individual_perf_threshold": 0.7,
    "stop_if_detected": False,
    "logger_name": "test_logger",
}
EXPECTED = StragglerSettings(300.0, True, True, 3, 0.7, 0.7, False, True, 1, "test_logger")


def settings(*args: Any, **kwargs: Any) -> StragglerSettings:
    return StragglerDetectionCallback(*args, **kwargs)._settings


def test_the_documented_signatures() -> None:
    """By keyword and by position: document 1, and the later one that has `enable_ptl_logging`."""
    newer = {name: value for name, value in DOCUMENTED.items() if name != "num_gpu_perf_scores_to_log"}
    newer |= {"num_gpu_perf_scores_to_print": 3, "enable_ptl_logging": True, "profiling_interval": 1}
    assert settings(**DOCUMENTED) == settings(**newer) == EXPECTED
    assert settings(300.0, True, True, 3, 0.7, 0.7, False, "test_logger") == EXPECTED
    assert settings(300.0, True, True, 3, 0.7, 0.7, False, True, 1, "test_logger") == EXPECTED
    assert settings(300.0, True, True, 3, 0.7, 0.7, False, None).logger_name is None


def test_what_is_not_given() -> None:
    assert settings() == StragglerSettings(
        300.0, True, True, 5, 0.7, 0.7, False, True, 1, "nemo_logger.StragglerDetectionCallback"
    )


def test_both_names_of_the_number() -> None:
    assert settings(num_gpu_perf_scores_to_log=0).shown == 0
    assert settings(num_gpu_perf_scores_to_print=0).shown == 0
    assert settings(num_gpu_perf_scores_to_print=4, num_gpu_perf_scores_to_log=4).shown == 4


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (
            {"num_gpu_perf_scores_to_print": 5, "num_gpu_perf_scores_to_log": 3},
            "num_gpu_perf_scores_to_print=5 and num_gpu_perf_scores_to_log=3: they are two names of one number",
        ),
        (
            {"calc_relative_gpu_perf": False, "calc_individual_gpu_perf": False},
            "calc_relative_gpu_perf and calc_individual_gpu_perf are both False: one of them is needed",
        ),
        ({"num_gpu_perf_scores_to_log": -1}, "num_gpu_perf_scores_to_log must be a whole number from 0 on"),
        (
            {"num_gpu_perf_scores_to_print": True},
            "num_gpu_perf_scores_to_print must be a whole number from 0 on, not True",
        ),
        ({"report_time_interval": -1}, "report_time_interval must be seconds from 0 on, not -1"),
        ({"report_time_interval": float("inf")}, "report_time_interval must be seconds from 0 on, not inf"),
        ({"report_time_interval": "300"}, "report_time_interval must be seconds from 0 on, not '300'"),
        ({"gpu_relative_perf_threshold": -0.1}, "gpu_relative_perf_threshold must be a number from 0 on"),
        ({"gpu_individual_perf_threshold": None}, "gpu_individual_perf_threshold must be a number from 0 on"),
        ({"stop_if_detected": "yes"}, "stop_if_detected must be True or False, not 'yes'"),
        ({"stop_on": "score"}, "stop_on must be 'confirmed' or 'scores', not 'score'"),
        ({"calc_relative_gpu_perf": 1}, "calc_relative_gpu_perf must be True or False, not 1"),
        ({"enable_ptl_logging": 1}, "enable_ptl_logging must be True or False, not 1"),
        (
            {"enable_ptl_logging": "mine", "logger_name": "other"},
            "enable_ptl_logging must be True or False, not 'mine'",
        ),
        ({"profiling_interval": 0}, "profiling_interval must be a whole number from 1 on, not 0"),
        ({"logger_name": 3}, "logger_name must be a text, or None for the root logger, not 3"),
    ],
)
def test_what_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=r"^StragglerDetectionCallback: ") as refused:
        StragglerDetectionCallback(**wrong)
    assert said in str(refused.value)


# -- the recipe function returns the callback itself


def test_the_straggler_recipe() -> None:
    callback = straggler_det_callback()
    assert type(callback) is StragglerDetectionCallback
    assert callback._settings == StragglerSettings(300.0, True, True, 5, 0.7, 0.7, True, True, 1, LOGGER)
    other = straggler_det_callback(60, False, 0.5, 0.6)._settings
    assert (other.report_time_interval, other.stop_if_detected) == (60.0, False)
    assert (other.relative_threshold, other.individual_threshold) == (0.5, 0.6)


# -- the constructors' docstrings describe every parameter, with unit and default, as documents 1 and 2 promise


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


# -- where a callback's lines go in a program that has set up no logging, and in one that has


NAMES = [None, "root", "holdfast_test.callback"]


@contextmanager
def bare() -> Iterator[Callable[[], str]]:
    """No logging is set up, as outside of pytest, which has its handlers at the root in each phase of a test. Gives
    what is on stderr."""
    loggers = [logging.getLogger(name) for name in (None, INSTEAD_OF_ROOT, "holdfast_test.callback")]
    before = [(each.handlers, each.level) for each in loggers]
    shown = io.StringIO()
    try:
        for each in loggers:
            each.handlers = []
            each.setLevel(logging.NOTSET)
        loggers[0].setLevel(logging.WARNING)
        with redirect_stderr(shown):
            yield shown.getvalue
    finally:
        for each, (handlers, level) in zip(loggers, before, strict=True):
            each.handlers = handlers
            each.setLevel(level)


@pytest.mark.parametrize("name", NAMES)
def test_lines_are_shown_where_no_logging_is_set_up(name: str | None) -> None:
    with bare() as shown:
        for _ in range(2):  # callbacks ask at each start
            log = named(name)
        log.info("for your information")
        log.debug("in detail")
        assert shown() == "for your information\n"


@pytest.mark.parametrize("name", NAMES)
def test_the_root_logger_stays_the_programs(name: str | None) -> None:
    with bare() as shown:
        root = logging.getLogger()
        log = named(name)
        assert root.handlers == [] and root.level == logging.WARNING
        logging.getLogger("another.package").info("not shown")
        logging.basicConfig(level=logging.INFO, format="program: %(message)s", stream=sys.stderr)
        log.info("for your information")
        named(name).info("again")
        assert shown() == "program: for your information\nprogram: again\n"


@pytest.mark.parametrize("name", NAMES)
def test_a_program_with_handlers_decides(name: str | None) -> None:
    with bare() as shown:
        logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
        named(name).info("not wanted")
        named(name).warning("wanted")
        assert shown() == "wanted\n"
