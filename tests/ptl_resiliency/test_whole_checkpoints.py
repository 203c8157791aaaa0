"""Checkpoints stay whole as long as any callback asks for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.plugins.io import TorchCheckpointIO

from holdfast.patches import Patches
from holdfast.ptl_resiliency.checkpoints import keep_whole
from tests.ptl_resiliency.small import trainer


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_checkpoints_are_whole_until_the_last_user_ends(tmp_path: Path, order: tuple[int, int]) -> None:
    """Two callbacks of one trainer, whichever of them ends first."""
    places: list[str] = []

    class Seen(TorchCheckpointIO):
        def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
            places.append(Path(path).name)
            super().save_checkpoint(checkpoint, path, storage_options)

    job, users = trainer(tmp_path, plugins=[Seen()]), (Patches(), Patches())
    io = job.strategy.checkpoint_io
    for user in users:
        keep_whole(job, user)
    for number, at in enumerate((None, *order)):
        if at is not None:
            users[at].undo()
        io.save_checkpoint({}, tmp_path / f"{number}.ckpt")
    assert places == [".0.ckpt.partial", ".1.ckpt.partial", "2.ckpt"]
    assert sorted(each.name for each in tmp_path.glob("*.ckpt*")) == ["0.ckpt", "1.ckpt", "2.ckpt"]
    assert "save_checkpoint" not in vars(io)
