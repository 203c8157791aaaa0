"""Learning limits for a callback: all ranks are asked, the client calculates, the next job's file is written.

What always holds: all ranks learn or none does; nothing here raises; the waiting for other ranks is limited. Does not
cover: what a training has seen so far (`timeouts.learning_conditions`), and who calls this when.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import monotonic

from holdfast.fault_tolerance.timeouts import kept_timeouts
from holdfast.fault_tolerance.timeouts.learning_conditions import HeartbeatRules, SectionRules, Selection

from .supervised_training import SupervisedTraining

_WAITING_BEAT = 1.0
"""Seconds between heartbeats while the other ranks are waited for."""


def learn_heartbeats(training: SupervisedTraining, rules: HeartbeatRules, *, stopped: bool) -> None:
    """At the clean end of a training; `stopped` by an exception. Collective."""
    (agreed,) = kept_timeouts.wanted_by_all(
        training.side,
        [rules.may_learn],
        training.log,
        patience=kept_timeouts.PATIENCE_AT_A_STOP if stopped else kept_timeouts.PATIENCE,
        meanwhile=_now_and_then(training.beat),
    )
    if not agreed:
        training.log.info(
            "The FT timeouts are not updated: %s", rules.why_not() or "not every rank has seen enough"
        )
        return
    training.log.info("Updating FT timeouts...")
    calculate = partial(
        training.client.calculate_and_set_hb_timeouts,
        skip_if_not_ready=True,
        process_group=training.side.process_group,
    )
    if kept_timeouts.learn(calculate, training.log):
        rules.learned = True
        training.keep_learned(training.client.hb_timeouts)


class SectionLearning:
    """Section limits of one training."""

    def __init__(self, training: SupervisedTraining, rules: SectionRules) -> None:
        self.rules = rules
        self._training = training
        self._told: set[str] = set()

    def learn(self, *, final: bool, stopped: bool = False) -> None:
        """After a checkpoint, or at the end (`final`). Collective."""
        training = self._training
        own = self.rules.selection(final=final)
        agreed = kept_timeouts.sections_wanted_by_all(
            training.side,
            own,
            training.log,
            patience=kept_timeouts.patience(training.client, stopped=stopped),
        )
        self.note(own)
        if agreed and kept_timeouts.learn_sections(training.client, training.side, agreed, training.log):
            training.keep_learned(training.client.section_timeouts)

    def note(self, selection: Selection) -> None:
        """Tell people, once, why something is not learned."""
        for note in selection.notes:
            if note not in self._told:
                self._told.add(note)
                self._training.log.info(note)


def _now_and_then(beat: Callable[[], None]) -> Callable[[], None]:
    last = monotonic()

    def beat_now_and_then() -> None:
        nonlocal last
        if monotonic() - last > _WAITING_BEAT:
            last = monotonic()
            beat()

    return beat_now_and_then
