"""Straggler detection of one training, without a framework: the detector's start, the measured section, each report.

What always holds: a process has one detector, so a second start is refused in one line. Does not cover: when a training
begins, steps and ends, agreeing with the other ranks, and saving: the frameworks' callbacks do that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from holdfast.straggler.detector import Detector
from holdfast.straggler.report import Report
from holdfast.visible import escaped

from . import straggler_findings
from .straggler_findings import SECTION
from .straggler_settings import CALLBACK, SCORES, StragglerSettings


def start_detector(settings: StragglerSettings, entry: str) -> None:
    """Initialise the detector. Raises RuntimeError if it is initialised already.

    Args:
        settings: The callback's arguments.
        entry: The call that begins the training, for the error: `trainer.fit()`.
    """
    if Detector.initialized:
        raise RuntimeError(
            f"{CALLBACK}: holdfast.straggler.Detector is initialised already, by this program or by another such "
            f"callback, and a process has one. Call Detector.shutdown() before {entry}, or leave one out"
        )
    Detector.initialize(
        scores_to_compute=settings.scores,
        gather_on_rank0=True,
        profiling_interval=settings.profiling_interval,
        report_time_interval=settings.report_time_interval,
    )


def measure_from_forward(module: Any, call: Callable[[], Any]) -> Any:
    """Call, as a section that begins where `module` (a `torch.nn.Module`) is called for the first time within."""
    section = Detector.detection_section(SECTION)
    begun = False

    def begin(*_: Any) -> None:
        nonlocal begun
        if not begun:  # the step may call the module again
            begun = True
            section.__enter__()

    hook = module.register_forward_pre_hook(begin)
    try:
        return call()
    finally:
        hook.remove()
        if begun:
            section.__exit__(None, None, None)


class ReportReader:
    """What each report of one training means on rank 0: its lines in the log, a straggler to stop for, metrics."""

    def __init__(self, settings: StragglerSettings, log: logging.Logger) -> None:
        self._settings, self._log = settings, log
        self._confirmation = straggler_findings.Confirmation()
        self._has_logged_sections = False

    def read(self, report: Report) -> tuple[bool, dict[str, float]]:
        """Log it. Returns whether there is a straggler to stop for, and the metrics. Call it with every report."""
        found = straggler_findings.findings(report, self._settings)
        confirmed = self._confirmation.of(found, report)
        is_straggling = bool(found.stragglers if self._settings.stop_on == SCORES else confirmed)
        if found.by_section and not self._has_logged_sections:
            self._has_logged_sections = True
            self._log.info(straggler_findings.why_sections(report))
        for level, text in straggler_findings.lines(found, report, self._settings):
            self._log.log(level, text)
        if is_straggling and self._settings.stop_if_detected:
            for verdict in confirmed:
                self._log.warning("The job ends for %s", escaped(str(verdict)))
        return is_straggling, straggler_findings.metrics(found)
