"""Straggler detection of one training, whatever framework runs it: the callback's arguments, its reports, its stop.

What always holds: an argument that is not allowed is a ValueError that names it; a process has one detector, so a
second start is refused in one line; all ranks stop after the same step or none does; a failure of a report is logged
once, and raises nothing; before the job stops, the nodes that it stops for are in its journal, if it has one.
Does not cover: when a training begins, steps and ends, what is measured, and saving: the frameworks' callbacks do that.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any

from holdfast.in_time import UnderWay
from holdfast.prefixed_log import Once
from holdfast.straggler.detector import Detector, running
from holdfast.straggler.log_texts import Failures
from holdfast.visible import escaped

from .arguments import named
from .completion import record_suspects
from .straggler_findings import (
    CONFIRMED,
    SCORES,
    SCORES_SHOWN,
    SECTION,
    TERMINATING,
    Confirmation,
    Fields,
    StragglerSettings,
    findings,
    lines,
    metrics,
    suspects,
    suspects_by_score,
    why_sections,
)

if TYPE_CHECKING:
    from holdfast.straggler.report import Report

CALLBACK = "StragglerDetectionCallback"
LOGGER = "nemo_logger.StragglerDetectionCallback"
PATIENCE = 2.0
"""Seconds for which the last report is waited for at the end."""
STOPS_ON = {
    CONFIRMED: "when a score is below its threshold in three successive reports and a verdict names that rank or its "
    "node, which takes at least 3 ranks (stop_on='confirmed', the default: one low score, as stop_on='scores' takes, "
    "may be noise, and would stop healthy jobs)",
    SCORES: "when a score is below its threshold in one report (stop_on='scores')",
}
"""What `stop_if_detected` acts on, as the log says it when training begins."""


class StragglerArguments:
    """The documented constructor of the callback, the same for every framework."""

    def __init__(
        self,
        report_time_interval: float = 300.0,
        calc_relative_gpu_perf: bool = True,
        calc_individual_gpu_perf: bool = True,
        num_gpu_perf_scores_to_print: int | None = None,
        gpu_relative_perf_threshold: float = 0.7,
        gpu_individual_perf_threshold: float = 0.7,
        stop_if_detected: bool = False,
        enable_ptl_logging: bool | str | None = True,
        profiling_interval: int = 1,
        logger_name: str | None = LOGGER,
        *,
        num_gpu_perf_scores_to_log: int | None = None,
        stop_on: str = CONFIRMED,
    ) -> None:
        """The detector is initialised when a training begins, and shut down when it ends.

        Args:
            report_time_interval: about how many seconds between reports; the first needs 16 steps. 0 is as often as
                possible.
            calc_relative_gpu_perf: score each GPU against the fastest one.
            calc_individual_gpu_perf: score each GPU against its own best report.
            num_gpu_perf_scores_to_print: how many of the worst and of the best scores each report lists in the log;
                0 lists them only when stragglers were found. None is 5.
            gpu_relative_perf_threshold: a relative score below it makes a straggler.
            gpu_individual_perf_threshold: an individual score below it makes a straggler.
            stop_if_detected: when there is a straggler (see `stop_on`), save a last checkpoint and end all ranks with
                exit code 1.
            enable_ptl_logging: give least, median and greatest scores to the trainer's loggers. The older documented
                signature has `logger_name` in this place; a text or None is taken as that.
            profiling_interval: of each GPU section's runs, every n-th is measured.
            logger_name: of the module `logging`; None is the root logger. While the program has set up no logging, the
                lines go to stderr, from INFO on; the root logger stays as it is.
            num_gpu_perf_scores_to_log: the older name of `num_gpu_perf_scores_to_print`.
            stop_on: "confirmed" stops when a score is below its threshold in three successive reports and a verdict
                names that rank or its node; "scores" when one report has a score below its threshold, as the documents
                of the original say.

        Raises:
            ValueError: an argument is not what is allowed, or no score at all is asked for.
        """
        # The older of the two documented signatures has the logger's name in the place of `enable_ptl_logging`.
        if enable_ptl_logging is None or isinstance(enable_ptl_logging, str):
            if logger_name != LOGGER:
                raise _wrong("enable_ptl_logging", "True or False", enable_ptl_logging)
            logger_name, enable_ptl_logging = enable_ptl_logging, True
        if logger_name is not None and not isinstance(logger_name, str):
            raise _wrong("logger_name", "a text, or None for the root logger", logger_name)
        if stop_on not in STOPS_ON:
            raise _wrong("stop_on", " or ".join(map(repr, STOPS_ON)), stop_on)
        self._settings = StragglerSettings(
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
        if not self._settings.scores:
            raise ValueError(
                f"{CALLBACK}: calc_relative_gpu_perf and calc_individual_gpu_perf are both False: one of them is needed"
            )


Give = Callable[[dict[str, float]], object]
Read = tuple[bool, list[Fields], dict[str, float]]
"""Of a report: whether there is a straggler to stop for, the nodes to leave out then, and the metrics."""
REPORT = "a straggler report"


class StragglerDetection:
    """The detector of one training, and what each of its reports leads to. Made on all ranks together.

    A report is exchanged in its step. Where no stop depends on it, rank 0 makes it of that in a thread, and reads it in
    the next step in which it is ready. One that is due while the thread still makes the one before is left out, so that
    no step waits for the thread. With `stop_if_detected` all ranks must know of it in the same step.
    """

    def __init__(self, settings: StragglerSettings, rank: int, entry: str) -> None:
        """Initialise the detector. Raises RuntimeError if it is initialised already.

        Args:
            settings: The callback's arguments.
            rank: This rank; rank 0 logs for all.
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
        self.log = named(settings.logger_name)
        self._settings = settings
        self._confirmation = Confirmation()
        self._failures = Failures()
        self._once = Once(self.log)
        self._left_out = 0
        self._making: tuple[UnderWay[Report | None], Give] | None = None
        if settings.stop_if_detected and rank == 0:
            self.log.info("stop_if_detected: the job ends %s", STOPS_ON[settings.stop_on])

    def after_step(self, give: Give) -> bool:
        """Make a report if one is due. Collective where it is. True: all ranks stop here, which is logged.

        Args:
            give: Gives metrics to the framework's loggers, as those of this step; called on rank 0, in this step or a
                later one, if metrics are asked for.
        """
        if self._making is not None and self._making[0].is_done:
            self.finish()
        if not Detector.initialized:  # the program may have shut it down
            return False
        started, session = perf_counter(), running()
        make = session.begin_step()
        if not session.interval_elapsed:
            return False
        if self._settings.stop_if_detected:
            return self._decided(None if make is None else make(), started, give)
        if make is None:  # every rank but rank 0
            self._log_time(perf_counter() - started)
            return False
        if self._making is None or self._making[0].is_done:
            self.finish()  # the judge must have seen the one before
            self._begin(make, give)
        else:
            self._left_out += 1
        return False

    def _begin(self, make: Callable[[], Report | None], give: Give) -> None:
        try:
            self._making = UnderWay(make), give
        except RuntimeError:  # no thread to be had
            self._failures.guarded(REPORT, lambda: self._take(make(), give), None)

    def close(self) -> None:
        """Read the last report, and shut the detector down."""
        self.finish()
        Detector.shutdown()

    def finish(self, *, to_loggers: bool = True) -> None:
        """Read the report that is being made, if there is one; waits for `PATIENCE` seconds at most.

        `to_loggers`: give its metrics to them.
        """
        if self._making is None:
            return
        (making, give), self._making = self._making, None
        taken = give if to_loggers else None
        self._failures.guarded(REPORT, lambda: self._take(making.answer(PATIENCE), taken), None)
        # Only now: a log handler that blocks may be what the thread waited for.
        if self._left_out:
            text = (
                "%d straggler reports were left out, as the one before was not made yet. This is logged once"
            )
            self._once(logging.WARNING, text, self._left_out)

    def _take(self, report: Report | None, give: Give | None) -> None:
        if report is None:
            return
        started = perf_counter()
        values = self._read(report)[2]
        if give is not None:
            self._give(values, give)
        self._log_time(report.generate_report_elapsed_time / 1e3 + perf_counter() - started)

    def _decided(self, report: Report | None, started: float, give: Give) -> bool:
        """Whether the job stops, as rank 0 found and all ranks know."""
        found: Read = False, [], {}
        if report is not None:  # on rank 0
            found = self._failures.guarded(REPORT, lambda: self._read(report), found)
        is_straggling, blamed, values = found
        # First of all: the others wait for it, and what takes the metrics may take its time.
        stops = running().agreed(is_straggling)
        self._give(values, give)
        self._log_time(perf_counter() - started)
        if stops:
            record_suspects(blamed)
            self.log.error(TERMINATING)
        return stops

    def _give(self, values: dict[str, float], give: Give) -> None:
        if values and self._settings.metrics:
            self._failures.guarded("giving metrics", lambda: give(values), None)

    def _log_time(self, seconds: float) -> None:
        """The documented line that ends the texts of each report."""
        self.log.info("Straggler report processing time: %.3f sec.", seconds)

    def _read(self, report: Report) -> Read:
        """Log it."""
        found = findings(report, self._settings)
        confirmed = self._confirmation.of(found, report)
        if found.by_section:
            self._once(logging.INFO, "%s", why_sections(report))  # the first reason, whatever follows
        for level, text in lines(found, report, self._settings):
            self.log.log(level, text)
        is_straggling = bool(found.stragglers if self._settings.stop_on == SCORES else confirmed)
        if is_straggling and self._settings.stop_if_detected:
            for verdict in confirmed:
                self.log.warning("The job ends for %s", escaped(str(verdict)))
        blamed = suspects_by_score(found, report) if self._settings.stop_on == SCORES else suspects(confirmed)
        return is_straggling, blamed, metrics(found)


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
