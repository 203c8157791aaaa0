"""The straggler callback as recipes make it, with their defaults: `trainer.callbacks.append(straggler_det_callback())`.

Does not cover: NeMo-Run's `run.Config` of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .callbacks import StragglerDetectionCallback

__all__ = ["straggler_det_callback"]


def straggler_det_callback(
    straggler_report_time_interval: float = 300,
    stop_if_detected_straggler: bool = True,
    gpu_relative_perf_threshold: float = 0.7,
    gpu_individual_perf_threshold: float = 0.7,
    stop_on: str = "confirmed",
) -> StragglerDetectionCallback:
    """Both scores, the 5 worst and best of each in the log, metrics in the trainer's loggers.

    Args:
        straggler_report_time_interval: seconds between reports; 0 is as often as possible.
        stop_if_detected_straggler: save a last checkpoint and end the training when there is a straggler.
        gpu_relative_perf_threshold: a score against the fastest rank below it makes a straggler.
        gpu_individual_perf_threshold: a score against the rank's own best below it makes a straggler.
        stop_on: "confirmed" or "scores": what ends the training, see `StragglerDetectionCallback`.

    Raises:
        ValueError: an argument is not what is allowed.
    """
    from .callbacks import StragglerDetectionCallback

    return StragglerDetectionCallback(
        report_time_interval=straggler_report_time_interval,
        calc_relative_gpu_perf=True,
        calc_individual_gpu_perf=True,
        num_gpu_perf_scores_to_print=5,
        gpu_relative_perf_threshold=gpu_relative_perf_threshold,
        gpu_individual_perf_threshold=gpu_individual_perf_threshold,
        stop_if_detected=stop_if_detected_straggler,
        enable_ptl_logging=True,
        stop_on=stop_on,
    )
