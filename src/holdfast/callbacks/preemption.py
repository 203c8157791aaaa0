"""Preemption of one training, whatever framework runs it: signals, where all ranks stop, the time left, the log lines.

All ranks stop at the same place, in one of three ways: under ft_launcher the launchers agree on it (`Agreed`); a
process that trains alone stops at its next boundary (`Way`); several ranks under another launcher ask each other
(`Together`).

What always holds: until all ranks have come to `listen` a signal does what it would do without the callback; no rank
asks anybody in a signal handler; no process exits with 0 after `stop` unless `complete` or `nothing_saved` is called;
`close` puts the handlers back, unless this process exits for a preemption: a second signal must not end it sooner.

Does not cover: a rank that never comes to another boundary (it hangs: `ft_launcher` ends it); places between
boundaries, so the running step is waited for; ranks that train different numbers of batches; several ranks without a
process group and without ft_launcher; several ranks whose launchers cannot agree (a node is lost): they train on until
they are ended; clusters that tell no time (Kubernetes' grace period is known to the launcher only if its --term-timeout
says it); a signal after the last boundary of a training, which ends normally, where the program trains on afterwards.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NoReturn

from holdfast.fault_tolerance.stop import StopPoint, position
from holdfast.prefixed_log import Once
from holdfast.side_group import CollectiveFailed, SideGroup

from .arguments import named
from .signals import STOPS, Notices, parse_signal

LOGGER = "nemo_logger.PreemptionCallback"
PATIENCE = 1800.0
"""Seconds that the ranks wait for one another here: as long as in the training's own groups."""
ASK_EVERY = 0.1
"""Seconds between two questions of ranks that ask each other (or two batches, if that is longer)."""
MOST_BATCHES = 10_000
"""Between two questions."""
_NEVER = 1 << 62

log = logging.getLogger("holdfast.preemption")


class PreemptionArguments:
    """The constructor of `PreemptionCallback`, the same for every framework."""

    def __init__(self, sig: Any = signal.SIGTERM) -> None:
        """Nothing is done before a training begins.

        Args:
            sig: the signal that asks for a stop: a number, a `signal.Signals` or a name. SIGTERM and SIGHUP always do
                as well.

        Raises:
            ValueError: `sig` is no signal, or none that a program can listen for.
        """
        self.sig = parse_signal(sig)


class Preemption:
    """One training that stops for a preemption. Takes the number of the signal that asks for it, and this rank."""

    def __init__(self, sig: int, rank: int) -> None:
        self.signals = {sig, *STOPS}
        """The numbers of all that do."""
        self.log = named(LOGGER)
        self.notices = Notices(self.signals)
        self.batches = 0
        """Training batches, or optimizer steps, that are done in this start."""
        self.stops = False
        """All ranks stop here."""
        self._rank = rank
        self._way = Way(self.notices)
        self._once = Once(self.log)
        self._began = 0.0

    def listen(self, take_over: Callable[[], None]) -> bool:
        """From now on, on all ranks, a signal asks for a stop. Collective.

        Args:
            take_over: Is called when the handlers are installed, before all ranks have theirs.

        Returns:
            False: the ranks cannot ask each other (one ended meanwhile), and this object cannot be used: close it.

        Raises:
            SystemExit: with 0, where all ranks know already that they stop.
        """
        try:
            self._way = find_way(self.notices)
            if not self.notices.install():
                self.log.warning(
                    "PreemptionCallback: this training does not run in the main thread, where Python allows no signal "
                    "handlers: it stops when ft_launcher or another rank requests it, not for a signal to this process"
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
        self._log_signal()
        return stops

    def _log_signal(self) -> None:
        if self.notices.number:
            self._once(logging.WARNING, "Received signal %d, initiating graceful stop", self.notices.number)

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


class Way:
    """How this rank learns that all stop here; by itself: of the only process of its training, at the next boundary.

    `batches` are the training batches done in this start.
    """

    def __init__(self, notices: Notices) -> None:
        self._notices = notices

    @property
    def deadline(self) -> float | None:
        """When the job is killed, in seconds of `time.monotonic`, if the launcher says."""
        return None

    def listening(self) -> bool:
        """This rank now has its signal handlers, and on return all ranks have theirs; collective.

        True: all ranks stop here, before anything is trained. Raises CollectiveFailed when a rank ended before it
        listened.
        """
        return False

    def begin(self) -> bool:
        """Training begins; True: it need not."""
        return self._notices.number != 0

    def after_batch(self, batches: int) -> bool:
        """After each training batch."""
        return self._notices.number != 0

    def in_validation(self, batches: int, place: int) -> bool:
        """In a validation, at this place of it."""
        return self._notices.number != 0

    def close(self) -> None:
        """Training is over. May be called twice."""


def find_way(notices: Notices) -> Way:
    """The way of this rank, and of all others. Collective: called by all ranks of the default process group.

    Ranks may come to it long after one another. A rank that waits here must still end by the signals' default action,
    as the rank that it waits for does: so the handlers are installed afterwards. Raises CollectiveFailed when a rank
    ended.
    """
    group = SideGroup(PATIENCE)
    point = StopPoint.find()
    everyone_has_one = False
    try:
        everyone_has_one = group.maximum([point is None]) == [False]
    except BaseException:
        group.close()
        raise
    finally:
        if point is not None and not everyone_has_one:
            point.end()
    if point is not None and everyone_has_one:
        return Agreed(point, notices, group)
    return Together(group, notices) if group.process_group is not None else Way(notices)


class Agreed(Way):
    """The launchers agree on a place. Where they cannot, a process alone stops by itself, and several train on."""

    def __init__(self, point: StopPoint, notices: Notices, group: SideGroup) -> None:
        super().__init__(notices)
        self._point, self._group = point, group
        self._passes = point.passes
        self._alone = group.process_group is None
        self._says = group.rank == 0
        self._last: float | None = None

    @property
    def deadline(self) -> float | None:
        return self._last or self._point.deadline

    def listening(self) -> bool:
        point = self._point
        self._notices.tell = point.notice
        if self._notices.number:
            point.notice(self._notices.number)
        point.begin()
        try:
            # Only if all know: what only some know is agreed on by the launchers, now that all ranks take part.
            return self._group.maximum([not point.wanted]) == [False] and not self._alone
        finally:
            self._group.close()

    def begin(self) -> bool:
        return self._point.given_up and self._go_on_alone()

    def after_batch(self, batches: int) -> bool:
        return self._passes(position(batches)) or (self._point.given_up and self._go_on_alone())

    def in_validation(self, batches: int, place: int) -> bool:
        return self._passes(position(batches, place)) or (self._point.given_up and self._go_on_alone())

    def close(self) -> None:
        self._last = self._point.deadline
        self._notices.tell = None
        self._point.end()
        self._group.close()

    def _go_on_alone(self) -> bool:
        """There will be no place. True: stop here."""
        if self._says and not self._alone:
            self._says = False
            log.warning(
                "Preemption: the launchers could not agree on a place where all ranks stop: the ranks train on until "
                "the launcher ends them (at the latest by its --term-timeout), and no checkpoint is saved for the "
                "preemption: the last regular one counts"
            )
        return self._alone


class Together(Way):
    """Several ranks without launchers that agree: they ask each other about ten times a second.

    By an all-reduce in a group of their own, on the CPU, begun after one training batch and read after the next, so
    that no rank waits for it. Every rank asks after the same batches, as each answer carries the longest step of all
    ranks. In validations they do not ask: ranks may have different numbers of batches there. When asking fails, the
    ranks continue to train and log that once.
    """

    def __init__(self, group: SideGroup, notices: Notices) -> None:
        super().__init__(notices)
        self._group = group
        self._work: Any = None
        self._tensor: Any = None
        self._next = 1
        self._since, self._batches = time.monotonic(), 0

    def listening(self) -> bool:
        return self._group.maximum([self._notices.number != 0]) != [False]

    def begin(self) -> bool:
        try:
            return self.listening()
        except CollectiveFailed as error:
            self._fail(error)
            return False

    def after_batch(self, batches: int) -> bool:
        if batches < self._next:
            return False
        if self._work is None:
            self._ask(batches)
            self._next = batches + 1
            return False
        return self._read(batches)

    def in_validation(self, batches: int, place: int) -> bool:
        return False

    def close(self) -> None:
        self._next = _NEVER
        self._work = None
        self._group.close()

    def _ask(self, batches: int) -> None:
        import torch
        import torch.distributed as dist

        now = time.monotonic()
        step = (now - self._since) / max(1, batches - self._batches)
        self._since, self._batches = now, batches
        self._tensor = torch.tensor([float(self._notices.number != 0), step], dtype=torch.float64)
        try:
            self._work = dist.all_reduce(
                self._tensor, op=dist.ReduceOp.MAX, group=self._group.process_group, async_op=True
            )
        except RuntimeError as error:
            self._fail(error)

    def _read(self, batches: int) -> bool:
        work, self._work = self._work, None
        try:
            work.wait()
        except RuntimeError as error:
            self._fail(error)
            return False
        asked, step = self._tensor.tolist()
        self._next = batches + batches_between(step)
        return bool(asked)

    def _fail(self, error: Exception) -> None:
        """Without the others there is no stopping; the training's own collectives will say what is wrong with them."""
        self._next = _NEVER
        log.warning(
            "the ranks can no longer agree to stop when preempted, and train on: %s",
            str(error).split("\n")[0],
        )


def batches_between(step: float) -> int:
    """How many batches of `step` seconds from one question to the next."""
    if step <= 0:
        return MOST_BATCHES
    return max(1, min(MOST_BATCHES, int(ASK_EVERY / step)))
