"""Sections around what a trainer's strategy does: "step" around steps, "checkpointing" around checkpoints.

What always holds: a call that raises closes its section; a call within one of its kind opens nothing; nothing here
raises by itself, so a section that the program opened under the same name costs a warning and no more. Calls from
other threads pass through (but for steps), as two threads in one section could not tell whose end closes it.

Does not cover: what is not called through the strategy, like a checkpoint that the program writes by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import Any, Protocol

from holdfast.fault_tolerance.errors import RankMonitorClientError
from holdfast.learned_limits.learning_rules import CHECKPOINTING, STEP
from holdfast.prefixed_log import Prefixed

from .patches import Around, Make, Patch, Patches
from .saved_checkpoints import FINALIZE


class SectionKeeper(Protocol):
    """What opens and closes sections: a `RankMonitorClient`."""

    def start_section(self, name: str = "") -> None: ...
    def end_section(self, name: str = "") -> None: ...


class StrategySections:
    """The wrapped methods of one fit."""

    def __init__(self, client: SectionKeeper, log: Prefixed) -> None:
        self._client = client
        self._log = log
        self._told = False

    def wrap(self, trainer: Any, patches: Patches, saved: Callable[[], None]) -> None:
        """From now until `patches` are undone. `saved` is called after each save that did not raise."""
        strategy = trainer.strategy
        checkpointing, step = self._around(CHECKPOINTING), self._step()

        def save(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            done = checkpointing(original, args, kwargs)
            saved()
            return done

        patches.replace(strategy, "training_step", step)
        patches.replace(strategy, "validation_step", step)
        patches.wrap(strategy, "save_checkpoint", save)
        patches.wrap(strategy, "remove_checkpoint", checkpointing)
        if hasattr(strategy.checkpoint_io, FINALIZE):
            patches.wrap(strategy.checkpoint_io, FINALIZE, checkpointing)

    def open(self, name: str) -> bool:
        """Whether it is open now by this call."""
        try:
            self._client.start_section(name)
        except RankMonitorClientError as error:
            self._tell(error)
            return False
        return True

    def close(self, name: str) -> None:
        """What is not open is left alone."""
        try:
            self._client.end_section(name)
        except RankMonitorClientError as error:
            self._tell(error)

    def _step(self) -> Make:
        """As `_around`, for the hot path: without a call more than needed."""
        start, end, tell = self._client.start_section, self._client.end_section, self._tell
        within = False

        def make(original: Callable[..., Any], patch: Patch) -> Callable[..., Any]:
            def step(*args: Any, **kwargs: Any) -> Any:
                nonlocal within
                if within or not patch.active:
                    return original(*args, **kwargs)
                try:
                    start(STEP)
                except RankMonitorClientError as error:
                    tell(error)
                    return original(*args, **kwargs)
                within = True
                try:
                    return original(*args, **kwargs)
                finally:
                    within = False
                    try:
                        end(STEP)
                    except RankMonitorClientError as error:
                        tell(error)

            return step

        return make

    def _around(self, name: str) -> Around:
        thread = get_ident()
        start, end, tell = self._client.start_section, self._client.end_section, self._tell
        within = False

        def around(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            nonlocal within
            if within or get_ident() != thread:
                return original(*args, **kwargs)
            try:
                start(name)
            except RankMonitorClientError as error:
                tell(error)
                return original(*args, **kwargs)
            within = True
            try:
                return original(*args, **kwargs)
            finally:
                within = False
                try:
                    end(name)
                except RankMonitorClientError as error:
                    tell(error)

        return around

    def _tell(self, error: RankMonitorClientError) -> None:
        if not self._told:
            self._told = True
            self._log.warning("a section of the training is not supervised: %s", error)
