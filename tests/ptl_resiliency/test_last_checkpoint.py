"""The last checkpoint of a job that ends early: found by `ckpt_path="last"`, complete, and the newest."""

from __future__ import annotations

import inspect
import threading
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.plugins.io import AsyncCheckpointIO, CheckpointIO, TorchCheckpointIO
from lightning.pytorch.plugins.io.wrapper import _WrappingCheckpointIO

from holdfast.patches import Patches
from holdfast.ptl_resiliency.checkpoints import keep_whole, save_last
from tests.ptl_resiliency.small import AGAIN, At, Small, keeper, trainer

pytestmark = pytest.mark.filterwarnings("ignore")


def save_at(step: int, saved: list[str | None]) -> At:
    """Save, and end the job as by `sys.exit`."""

    def deed(trainer: pl.Trainer) -> None:
        saved.append(save_last(trainer))
        raise SystemExit(1)

    return At(step, deed)


def interrupted(
    tmp_path: Path, step: int, *keepers: Any, plugins: Any = None, **kwargs: Any
) -> tuple[str | None, pl.Trainer, Small]:
    """A job that saves after `step` steps and ends."""
    saved: list[str | None] = []
    model = Small()
    job = trainer(tmp_path, save_at(step, saved), *keepers, plugins=plugins, **kwargs)
    with pytest.raises(SystemExit):
        job.fit(model, ckpt_path="last" if keepers else None)
    return saved[0], job, model


def resumed(tmp_path: Path, *keepers: Any, **kwargs: Any) -> tuple[Small, pl.Trainer]:
    model = Small()
    job = trainer(tmp_path, *keepers, **kwargs)
    job.fit(model, ckpt_path="last")
    return model, job


@pytest.mark.parametrize("save_last", [None, True, "link"])
def test_the_next_job_goes_on_where_it_was_saved(tmp_path: Path, save_last: Any) -> None:
    folder = tmp_path / "kept"
    settings = {"save_last": save_last, "every_n_train_steps": 3}
    path, job, first = interrupted(tmp_path, 7, keeper(folder, **settings))
    assert path == str(folder / "last.ckpt") and not Path(path).is_symlink()
    assert job.checkpoint_callback is not None and job.checkpoint_callback.last_model_path == path
    saved = torch.load(path, weights_only=False)
    assert saved["global_step"] == 7 and saved["optimizer_states"]
    (folder / ".last.ckpt.partial").write_bytes(b"half a checkpoint")
    second, _ = resumed(tmp_path, keeper(folder, **settings))
    assert (first.seen, second.seen) == (list(range(7)), list(range(7 - AGAIN, 20)))
    undisturbed = Small()
    trainer(tmp_path).fit(undisturbed)
    assert AGAIN or torch.equal(second.layer.weight, undisturbed.layer.weight)


def test_that_of_another_job_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    interrupted(tmp_path, 4, keeper(folder))
    saved: list[str | None] = []
    with pytest.raises(SystemExit):
        trainer(tmp_path, save_at(6, saved), keeper(folder)).fit(Small())
    assert saved == [str(folder / "last-v1.ckpt")]
    assert torch.load(folder / "last.ckpt", weights_only=False)["global_step"] == 4
    assert resumed(tmp_path, keeper(folder))[0].seen == list(range(6 - AGAIN, 20))


def test_without_a_keeper_nothing_is_saved(tmp_path: Path) -> None:
    assert interrupted(tmp_path, 3)[0] is None
    assert list(tmp_path.iterdir()) == []


def test_of_several_keepers_the_one_that_keeps_a_last_has_it(tmp_path: Path) -> None:
    has_it = (
        "save_on_exception" in inspect.signature(pl.callbacks.ModelCheckpoint).parameters
    )  # not in 2.4 and 2.5.0
    on_exception = {"save_on_exception": True} if has_it else {}
    keepers = [
        keeper(tmp_path / "best", every_n_train_steps=2, save_weights_only=True),
        keeper(tmp_path / "recent", every_n_train_steps=5, save_last=True, **on_exception),
    ]
    path, _, _ = interrupted(tmp_path, 7, *keepers)
    assert path == str(tmp_path / "recent" / "last.ckpt")
    assert not any("step=7" in each.name for each in (tmp_path / "recent").iterdir())  # not saved twice


def test_folders_that_lightning_chooses(tmp_path: Path) -> None:
    path, _, _ = interrupted(tmp_path, 3, pl.callbacks.ModelCheckpoint())
    assert path == str(tmp_path / "checkpoints" / "last.ckpt")
    assert resumed(tmp_path, pl.callbacks.ModelCheckpoint())[0].seen == list(range(3 - AGAIN, 20))


class Slow(TorchCheckpointIO):
    """Writes half of it, and the rest when it may."""

    def __init__(self, may_go_on: threading.Event) -> None:
        self._may_go_on = may_go_on

    def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
        Path(path).write_bytes(b"half")
        assert self._may_go_on.wait(60)
        super().save_checkpoint(checkpoint, path, storage_options)


def test_an_asynchronous_save_is_complete_when_it_returns(tmp_path: Path) -> None:
    folder, may_go_on, meanwhile = tmp_path / "kept", threading.Event(), []
    folder.mkdir()

    def look() -> None:
        unfinished = [each for each in folder.iterdir() if each.read_bytes() == b"half"]
        if unfinished:
            meanwhile.extend(each.name for each in unfinished)
            may_go_on.set()
        else:
            timer = threading.Timer(0.01, look)
            timer.start()

    look()
    path, _, first = interrupted(tmp_path, 5, keeper(folder), plugins=[AsyncCheckpointIO(Slow(may_go_on))])
    assert meanwhile == [".last.ckpt.partial"]
    assert torch.load(str(path), weights_only=False)["global_step"] == 5
    second, job = resumed(tmp_path, keeper(folder, save_last=True), plugins=[AsyncCheckpointIO()])
    assert (first.seen, second.seen) == (list(range(5)), list(range(5 - AGAIN, 20)))
    job.strategy.checkpoint_io.teardown()


def test_save_last_twice_with_async_io_saves_both(tmp_path: Path) -> None:
    """The executor of Lightning 2.4 cannot be used again after `teardown`."""
    saved = list[int]()

    def deed(trainer: pl.Trainer) -> None:
        saved.append(torch.load(str(save_last(trainer)), weights_only=False)["global_step"])

    trainer(tmp_path, At(5, deed), At(9, deed), keeper(tmp_path / "kept"), plugins=[AsyncCheckpointIO()]).fit(
        Small()
    )
    assert saved == [5, 9]


class Full(TorchCheckpointIO):
    """A disk that is full."""

    def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
        Path(path).write_bytes(b"half")
        raise OSError("No space left on device")


def test_a_save_that_fails_leaves_the_old_one(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    interrupted(tmp_path, 4, keeper(folder, every_n_epochs=99))
    for io in (Full(), AsyncCheckpointIO(Full())):
        problems: list[str] = []

        def deed(trainer: pl.Trainer, problems: list[str] = problems) -> None:
            with pytest.raises(OSError, match="No space left on device"):
                save_last(trainer)
            problems.append(str(trainer.checkpoint_callback.last_model_path))  # type: ignore[union-attr]
            trainer.strategy.checkpoint_io = TorchCheckpointIO()

        trainer(tmp_path, At(9, deed), keeper(folder, every_n_epochs=99), plugins=[io]).fit(
            Small(), ckpt_path="last"
        )
        assert problems == [str(folder / "last.ckpt")]
        assert resumed(tmp_path, keeper(folder, every_n_epochs=99))[0].seen == list(range(4 - AGAIN, 20))


class Folders(TorchCheckpointIO):
    """Writes folders, as sharded strategies do."""

    def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
        Path(path).mkdir()
        super().save_checkpoint(checkpoint, Path(path) / "all", storage_options)

    def load_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> Any:
        return super().load_checkpoint(Path(path) / "all", *args, **kwargs)


def test_folders_take_the_place_of_folders(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    interrupted(tmp_path, 4, keeper(folder), plugins=[Folders()])
    stale = folder / ".last.ckpt.partial"
    stale.mkdir()
    (stale / "shard of an earlier try").touch()
    path, _, second = interrupted(tmp_path, 9, keeper(folder), plugins=[Folders()])
    assert second.seen == list(range(4 - AGAIN, 9 - AGAIN))
    assert [each.name for each in folder.iterdir()] == ["last.ckpt"]
    assert [each.name for each in Path(str(path)).iterdir()] == ["all"]
    assert resumed(tmp_path, keeper(folder), plugins=[Folders()])[0].seen == list(range(9 - 2 * AGAIN, 20))


def test_file_does_not_replace_a_folder_of_checkpoints(tmp_path: Path) -> None:
    job, user = trainer(tmp_path), Patches()
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    (folder / "0.ckpt").touch()
    keep_whole(job, user)
    with pytest.raises(IsADirectoryError):
        job.strategy.checkpoint_io.save_checkpoint({}, folder)
    user.undo()
    assert [each.name for each in folder.iterdir()] == ["0.ckpt"]
    assert not list(tmp_path.glob(".*.partial"))


class OwnNames(CheckpointIO):
    """Is called on all ranks, and writes a folder, as the I/O of Megatron's strategies does."""

    def __init__(self) -> None:
        self.places: list[str] = []

    def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
        self.places.append(Path(path).name)

    def load_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> Any: ...

    def remove_checkpoint(self, path: Any) -> None: ...


class Later(_WrappingCheckpointIO):
    """Has written when it is finalised, and not before."""

    def maybe_finalize_save_checkpoint(self, blocking: bool = False) -> None: ...


def test_other_checkpoint_io_writes_as_it_does(tmp_path: Path) -> None:
    class Noting(TorchCheckpointIO):
        save_checkpoint = OwnNames.save_checkpoint

    for io in (OwnNames(), Later(Noting())):
        writer = io.checkpoint_io if isinstance(io, Later) else io
        writer.places = []
        job, user = trainer(tmp_path, plugins=[io]), Patches()
        keep_whole(job, user)
        job.strategy.checkpoint_io.save_checkpoint({}, tmp_path / "0.ckpt")
        user.undo()
        assert writer.places == ["0.ckpt"]


# -- checkpoints stay whole as long as any callback asks for it


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
