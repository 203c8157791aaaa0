"""The arguments of `StragglerDetectionCallback`: both documented signatures, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.callbacks.straggler_findings import StragglerSettings
from holdfast.ptl_resiliency import StragglerDetectionCallback

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
