"""How long a trainer's saves take: from the start to the complete file, also one written beside the training.

What always holds: only a save that was completed here counts. Does not cover: saves by hand, past the strategy.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from holdfast.patches import Patches


class SaveTimes:
    """What the saves of a trainer take. `last`: seconds of the last that was completed here, None before."""

    def __init__(self) -> None:
        self.last: float | None = None
        self._started = 0.0

    def watch(self, trainer: Any, patches: Patches) -> None:
        """From now on, until `patches` are undone."""
        if callable(getattr(trainer.strategy, "save_checkpoint", None)):
            patches.wrap(trainer.strategy, "save_checkpoint", self._whole)
        io: Any = getattr(trainer.strategy, "checkpoint_io", None)
        while getattr(io, "checkpoint_io", None) is not None:
            io = io.checkpoint_io
        if callable(getattr(io, "save_checkpoint", None)):
            patches.wrap(io, "save_checkpoint", self._written)

    def _whole(self, save: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._started = time.monotonic()
        done = save(*args, **kwargs)
        self._take()
        return done

    def _written(self, save: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Also in the thread of an asynchronous save, after the call that began it has come back."""
        done = save(*args, **kwargs)
        self._take()
        return done

    def _take(self) -> None:
        self.last = time.monotonic() - self._started
