"""Preemption of one training, whatever framework runs it: signals, where all ranks stop, the time left, the log lines.

A framework's callback calls this at its boundaries, saves a checkpoint where it is told to stop, and says when it is
complete. What always holds: until all ranks have come to `listen` a signal does what it would do without the callback;
no process exits with 0 after `stop` unless `complete` or `nothing_saved` is called; `close` puts the handlers back,
unless this process exits for a preemption: a second signal must not end it sooner.

Does not cover: a rank that never comes to another boundary (it hangs: `ft_launcher` ends it); places between
boundaries, so the running step is waited for; clusters that tell no time (Kubernetes' grace period is known to the
launcher only if its --term-timeout says it).
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NoReturn

from holdfast.side_group import CollectiveFailed

from .callback_log import named
from .notices import Notices, parse_signal
from .stopping_place import Way, find_way

LOGGER = "nemo_logger.PreemptionCallback"


class PreemptionArguments:
    """The constructor of `PreemptionCallback`, the same for every framework."""

    def __init__(self, sig: Any = signal.SIGTERM) -> None:
        """Nothing is done before a training begins.

        Args:
            sig: the signal that asks for a stop: a number, a `signal.Signals` or a name. SIGTERM always does as well.

        Raises:
            ValueError: `sig` is no signal, or none that a program can listen for.
        """
        self.sig = parse_signal(sig)


class Preemption:
    """One training that stops for a preemption. Takes the number of the signal that asks for it, and this rank."""

    def __init__(self, sig: int, rank: int) -> None:
        self.signals = {sig, int(signal.SIGTERM)}
        """The numbers of all that do."""
        self.log = named(LOGGER)
        self.notices = Notices(self.signals)
        self.batches = 0
        """Training batches, or optimizer steps, that are done in this start."""
        self.stops = False
        """All ranks stop here."""
        self._rank = rank
        self._way = Way(self.notices)
        self._has_logged_signal = False
        self._began = 0.0

    def listen(self, take_over: Callable[[], None]) -> bool:
        """From now on, on all ranks, a signal asks for a stop. Collective.

        Args:
            take_over: Is called when the handlers are installed, before all ranks have theirs.

        Returns:
            False: the ranks cannot ask each other (one ended meanwhile), and this object is of no use: close it.

        Raises:
            SystemExit: with 0, where all ranks know already that they stop.
        """
        try:
            self._way = find_way(self.notices)
            if not self.notices.install():
                self.log.warning(
                    "PreemptionCallback: this training does not run in the main thread, where Python allows no signal "
                    "handlers: it stops when ft_launcher or another rank says so, and not for a signal to this process"
                )
            take_over()
            stops = self._way.listening()
        except CollectiveFailed as error:
            self.log.warning(
                "PreemptionCallback: the ranks could not ask each other in setup (has one ended?), and no signal is a "
                "notice in this training: %s",
                error,
            )
            return False
        if stops:
            self.stop()
        return True

    def begin(self) -> None:
        """The first batch comes. Raises SystemExit(0) if it need not."""
        self.notices.install()
        if self._way.begin():
            self.stop()

    def after_batch(self) -> bool:
        """A training batch more is done. True: all ranks stop here."""
        self.batches += 1
        return self._stops_here(self._way.after_batch(self.batches))

    def in_validation(self, place: int) -> bool:
        """At this place of a validation, see `stop.rules.position`. True: all ranks stop here."""
        return self._stops_here(self._way.in_validation(self.batches, place))

    def stop(self, last_save: float | None = None) -> None:
        """All ranks stop: log it. Raises SystemExit(0) if nothing was trained in this start.

        Args:
            last_save: Seconds that the last checkpoint of this process took to save; None if it has saved none.
        """
        self.stops = True
        self._began = time.monotonic()
        self._log_signal()
        if self.batches == 0:
            self._say(
                "Preemption detected; nothing was trained in this start and there is nothing to save, exiting"
            )
            raise SystemExit(0)
        self._say("Preemption detected, saving checkpoint and exiting")
        if problem := shortage(last_save, self._way.deadline, os.environ, self._began, time.time()):
            self._say(problem)

    def complete(self, step: int, path: str) -> NoReturn:
        """The checkpoint is complete on all ranks. Raises SystemExit(0)."""
        seconds = time.monotonic() - self._began
        self._say(f"Preemption: the checkpoint of step {step} is complete after {seconds:.1f} s: {path}")
        raise SystemExit(0)

    def nothing_saved(self, step: int, why: str) -> NoReturn:
        """The framework has no place for checkpoints. Raises SystemExit(0)."""
        self._say(f"Preemption: no checkpoint of step {step} is saved: {why}")
        raise SystemExit(0)

    def failed(self, step: int, error: BaseException) -> None:
        """The save has failed, on each rank that calls this."""
        self.log.error(
            "Preemption: the checkpoint of step %d could not be saved: %s; what was saved before is still there, and "
            "this process ends with the error",
            step,
            error,
        )

    def end(self) -> None:
        """The training has ended by itself; there is no place to stop at any more. May be called twice."""
        self._way.close()

    def close(self) -> None:
        """The handlers as they were; those of a process that exits for the preemption stay. May be called twice."""
        self.end()
        if self.stops:
            self.notices.leave_in_force()
        else:
            self.notices.restore()

    def _stops_here(self, stops: bool) -> bool:
        # Not in the handler: it may have interrupted a thread of this process that holds the log's lock.
        if self.notices.number:
            self._log_signal()
        return stops

    def _log_signal(self) -> None:
        if self.notices.number and not self._has_logged_signal:
            self._has_logged_signal = True
            self.log.warning("Received signal %d, initiating graceful stop", self.notices.number)

    def _say(self, text: str) -> None:
        if self._rank == 0:
            self.log.warning("%s", text)


def shortage(
    last_save: float | None,
    launcher_deadline: float | None,
    environ: Mapping[str, str],
    monotonic: float,
    wall: float,
) -> str:
    """One line if the time left is less than the last save took; nothing if it is enough, or one is not known.

    Two know when a job is killed: the launcher, which kills what is left after its --term-timeout, and Slurm
    (`SLURM_JOB_END_TIME`, seconds since 1970). The nearest end counts. All times are in seconds.
    """
    known = []
    if launcher_deadline is not None:
        known.append((launcher_deadline - monotonic, "ft_launcher's --term-timeout"))
    with suppress(KeyError, ValueError):
        known.append((float(environ["SLURM_JOB_END_TIME"]) - wall, "Slurm's SLURM_JOB_END_TIME"))
    if last_save is None or not known or min(known)[0] >= last_save:
        return ""
    seconds, source = min(known)
    return (
        f"Preemption: {max(0.0, seconds):.1f} s are left ({source}), and the last checkpoint took {last_save:.1f} s to "
        "save: this one may not be complete in time; it is tried all the same, and until it is complete the one before "
        "it stays"
    )
