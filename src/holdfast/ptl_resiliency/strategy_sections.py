"""Sections around what a trainer's strategy does: "step" around steps, "checkpointing" around checkpoints.

What always holds: a call that raises closes its section; a call within one of its kind opens nothing; nothing here
raises by itself, so a section that the program opened under the same name costs a warning and no more. Calls from
other threads pass through (but for steps), as two threads in one section could not tell whose end closes it.

Does not cover: what is not called through the strategy, like a checkpoint that the program writes by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.fault_tolerance.errors import RankMonitorClientError
from holdfast.fault_tolerance.timeouts.learning_conditions import CHECKPOINTING, STEP
from holdfast.patches import Around, Make, Patch, Patches
from holdfast.prefixed_log import Prefixed

from .saved_checkpoints import FINALIZE
from .step_call import StepCall

if TYPE_CHECKING:
    from holdfast.fault_tolerance.board import BoardWriter

    from .each_step import EachStep


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

    def wrap_steps(self, strategy: Any, each: EachStep, writer: BoardWriter, patches: Patches) -> None:
        """Training steps for as long as `each` is there, validation steps until `patches` are undone."""
        each.section(writer, self._refused, lambda: self.open(STEP))
        patches.replace(strategy, "validation_step", self._step(each.call))

    def wrap_checkpoints(self, strategy: Any, patches: Patches, saved: Callable[[], None]) -> None:
        """Until `patches` are undone. `saved` is called after each save that did not raise."""
        checkpointing = self._around(CHECKPOINTING)

        def save(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            done = checkpointing(original, args, kwargs)
            saved()
            return done

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

    def _refused(self, closing: bool) -> None:
        """The section of a training step could not be opened or closed: again, for the words."""
        if closing:
            self.close(STEP)
        else:
            self.open(STEP)

    def _step(self, training: StepCall) -> Make:
        """As `_around`, for validation steps: without a call more than needed, and nothing in a `training` step."""
        start, end, tell = self._client.start_section, self._client.end_section, self._tell

        def make(original: Callable[..., Any], patch: Patch) -> Callable[..., Any]:
            def step(*args: Any, **kwargs: Any) -> Any:
                if training.within or not patch.active:
                    return original(*args, **kwargs)
                try:
                    start(STEP)
                except RankMonitorClientError as error:
                    tell(error)
                    return original(*args, **kwargs)
                training.within = True
                try:
                    return original(*args, **kwargs)
                finally:
                    training.within = False
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
