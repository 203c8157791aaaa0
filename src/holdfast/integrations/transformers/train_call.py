"""One call of `Trainer.train`: what our callbacks share while it lasts.

What always holds: `close` puts back what was wrapped; the checkpoint that a training resumes from is the same on all
ranks, as rank 0 chooses it. Does not cover: what the callbacks do with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.patches import Patches
from holdfast.side_group import CollectiveFailed, SideGroup

from .all_steps_done import train_no_more
from .resuming import choose
from .whole_checkpoints import WholeCheckpoints

_FAILED = "!"


class TrainCall:
    """Made on all ranks together."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer
        self.rank = int(trainer.args.process_index)
        self.patches = Patches()
        self.side = SideGroup()
        self.checkpoints = WholeCheckpoints(trainer, self.side)
        self.resumed: Any = None
        """The checkpoint that the training resumes from; None from the start."""
        self.on_resume: list[Callable[[], None]] = []
        """Called when there is such a checkpoint."""

    @property
    def step(self) -> int:
        """Optimizer steps, of earlier starts as well."""
        return int(self.trainer.state.global_step)

    def begin(self, resume: Any) -> None:
        """`resume` is `train`'s argument: True is the last complete checkpoint, or none. Collective."""
        if resume is True:
            resume = self._last_complete()
        self.resumed = resume or None
        self.checkpoints.watch(self.patches)
        train_no_more(self)
        if self.resumed is not None:
            for each in self.on_resume:
                each()

    def close(self) -> None:
        """May be called twice."""
        self.patches.undo()
        self.side.close()

    def _last_complete(self) -> str:
        folder = self.trainer.args.output_dir
        chosen = ""
        if self.rank == 0:
            try:
                chosen = choose(folder)
            except OSError as error:
                chosen = f"{_FAILED}checkpoints cannot be looked for in {folder}: {error.strerror or error}"
        try:
            told = self.side.broadcast_text(chosen, patience=self.side.setup_timeout)
        except CollectiveFailed as why:
            raise RuntimeError(
                f"no rank knows which checkpoint in {folder} to go on from: rank 0 could not tell the others ({why})"
            ) from why
        if told.startswith(_FAILED):
            raise OSError(told.removeprefix(_FAILED))
        return told
