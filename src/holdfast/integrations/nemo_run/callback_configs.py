"""Lightning callbacks as `run.Config`, and how they come into a task's trainer.

What always holds: a callback that the task has already is not added a second time; one of the same type is taken for
the user's own choice and kept. Does not cover: tasks whose trainer is not at `task.trainer`.
"""

from __future__ import annotations

from typing import Any

import nemo_run

from holdfast.ptl_resiliency.recipes import straggler_det_callback

__all__ = ["add_callbacks", "straggler_det_callback_config"]


def straggler_det_callback_config(
    straggler_report_time_interval: float = 300,
    stop_if_detected_straggler: bool = True,
    gpu_relative_perf_threshold: float = 0.7,
    gpu_individual_perf_threshold: float = 0.7,
    stop_on: str = "confirmed",
) -> Any:
    """`holdfast.ptl_resiliency.recipes.straggler_det_callback` as a `run.Config`, for a recipe's list of callbacks.

    Args:
        straggler_report_time_interval: seconds between reports; 0 is as often as possible.
        stop_if_detected_straggler: save a last checkpoint and end the training when there is a straggler.
        gpu_relative_perf_threshold: a score against the fastest rank below it makes a straggler.
        gpu_individual_perf_threshold: a score against the rank's own best below it makes a straggler.
        stop_on: "confirmed" or "scores": what ends the training, see `StragglerDetectionCallback`.
    """
    return nemo_run.Config(
        straggler_det_callback,
        straggler_report_time_interval=straggler_report_time_interval,
        stop_if_detected_straggler=stop_if_detected_straggler,
        gpu_relative_perf_threshold=gpu_relative_perf_threshold,
        gpu_individual_perf_threshold=gpu_individual_perf_threshold,
        stop_on=stop_on,
    )


def add_callbacks(task: Any, callbacks: list[Any], who: str) -> None:
    """Put these configs into the trainer of a `run.Partial`; a list that is None becomes one.

    Raises ValueError, which names the plugin `who`, for a task without a trainer.
    """
    trainer = getattr(task, "trainer", None)
    if trainer is None:
        raise ValueError(
            f"{who} adds a Lightning callback to the task's `trainer`, and this task has none: {task!r}"
        )
    present = list(getattr(trainer, "callbacks", None) or [])
    types = {kind for each in present if (kind := _type(each)) is not None}
    trainer.callbacks = [*present, *(each for each in callbacks if _type(each) not in types)]


def _type(callback: Any) -> Any:
    return getattr(callback, "__fn_or_cls__", None) or type(callback)
