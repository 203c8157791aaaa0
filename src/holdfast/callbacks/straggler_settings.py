"""The arguments of `StragglerDetectionCallback`, in all their documented spellings, checked. Pure.

What always holds: a wrong one is a ValueError that names it, its value, and what is allowed.
Does not cover: whether the trainer can do what is asked, which is known when training begins.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

CALLBACK = "StragglerDetectionCallback"
LOGGER = "nemo_logger.StragglerDetectionCallback"
SCORES_SHOWN = 5
CONFIRMED, SCORES = "confirmed", "scores"
STOPS_ON = {
    CONFIRMED: "when a score is below its threshold in three successive reports and a verdict names that rank or its "
    "node, which takes at least 3 ranks (stop_on='confirmed')",
    SCORES: "when a score is below its threshold in one report (stop_on='scores')",
}
"""What `stop_if_detected` acts on, as the log says it when training begins."""


@dataclass(frozen=True)
class StragglerSettings:
    """What the callback was asked for. `shown` is how many of the best and worst scores are listed; seconds."""

    report_time_interval: float
    relative: bool
    individual: bool
    shown: int
    relative_threshold: float
    individual_threshold: float
    stop_if_detected: bool
    metrics: bool
    profiling_interval: int
    logger_name: str | None
    stop_on: str = CONFIRMED

    @property
    def scores(self) -> list[str]:
        """What the detector is asked to compute."""
        asked = {"relative_perf_scores": self.relative, "individual_perf_scores": self.individual}
        return [name for name, wanted in asked.items() if wanted]


def checked(
    report_time_interval: object,
    calc_relative_gpu_perf: object,
    calc_individual_gpu_perf: object,
    num_gpu_perf_scores_to_print: object,
    gpu_relative_perf_threshold: object,
    gpu_individual_perf_threshold: object,
    stop_if_detected: object,
    enable_ptl_logging: object,
    profiling_interval: object,
    logger_name: object,
    num_gpu_perf_scores_to_log: object,
    stop_on: object,
) -> StragglerSettings:
    """The settings. Raises ValueError."""
    # The older of the two documented signatures has the logger's name in the place of `enable_ptl_logging`.
    if enable_ptl_logging is None or isinstance(enable_ptl_logging, str):
        if logger_name != LOGGER:
            raise _wrong("enable_ptl_logging", "True or False", enable_ptl_logging)
        enable_ptl_logging, logger_name = True, enable_ptl_logging
    if logger_name is not None and not isinstance(logger_name, str):
        raise _wrong("logger_name", "a text, or None for the root logger", logger_name)
    if stop_on not in STOPS_ON:
        raise _wrong("stop_on", " or ".join(map(repr, STOPS_ON)), stop_on)
    settings = StragglerSettings(
        _number("report_time_interval", report_time_interval, "seconds from 0 on"),
        _flag("calc_relative_gpu_perf", calc_relative_gpu_perf),
        _flag("calc_individual_gpu_perf", calc_individual_gpu_perf),
        _shown(num_gpu_perf_scores_to_print, num_gpu_perf_scores_to_log),
        _number("gpu_relative_perf_threshold", gpu_relative_perf_threshold, "a number from 0 on"),
        _number("gpu_individual_perf_threshold", gpu_individual_perf_threshold, "a number from 0 on"),
        _flag("stop_if_detected", stop_if_detected),
        _flag("enable_ptl_logging", enable_ptl_logging),
        _count("profiling_interval", profiling_interval, least=1),
        logger_name,
        str(stop_on),
    )
    if not settings.scores:
        raise ValueError(
            f"{CALLBACK}: calc_relative_gpu_perf and calc_individual_gpu_perf are both False: one of them is needed"
        )
    return settings


def _shown(printed: object, logged: object) -> int:
    """The one number that has two documented names."""
    given = {
        name: _count(name, value, least=0)
        for name, value in (
            ("num_gpu_perf_scores_to_print", printed),
            ("num_gpu_perf_scores_to_log", logged),
        )
        if value is not None
    }
    if len(set(given.values())) > 1:
        told = " and ".join(f"{name}={value}" for name, value in given.items())
        raise ValueError(f"{CALLBACK}: {told}: they are two names of one number, give one of them")
    return next(iter(given.values()), SCORES_SHOWN)


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise _wrong(name, "True or False", value)
    return value


def _count(name: str, value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise _wrong(name, f"a whole number from {least} on", value)
    return value


def _number(name: str, value: object, allowed: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise _wrong(name, allowed, value)
    if value < 0:
        raise _wrong(name, allowed, value)
    return float(value)


def _wrong(name: str, allowed: str, value: object) -> ValueError:
    return ValueError(f"{CALLBACK}: {name} must be {allowed}, not {value!r}")
