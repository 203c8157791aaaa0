"""Checkpoints that a job left half written: no job resumes from them, and the older ones are there until then."""

from __future__ import annotations

import errno
import json
import os
import runpy
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoints import last_complete, why_incomplete
from holdfast.integrations.transformers import PreemptionCallback
from holdfast.integrations.transformers.checkpoints import MARK, choose
from tests.processes import Spawner

from .conftest import Ranked
from .small import said, trainer, weights

TOGETHER = Path(__file__).parent / "programs" / "saving_together.py"


class Ended(BaseException):
    """Stands for the end of the process in the middle of a save."""


def killed_in_a_save(folder: Path, **changes: Any) -> None:
    """A training that writes the weights of checkpoint-15, and no more."""
    made = trainer(folder, [PreemptionCallback()], save_steps=5, **changes)
    saving = made._save_optimizer_and_scheduler

    def save(folder: str) -> None:
        if made.state.global_step == 15:
            raise Ended
        saving(folder)

    made._save_optimizer_and_scheduler = save  # type: ignore[method-assign]
    with pytest.raises(Ended):
        made.train(resume_from_checkpoint=True)


def test_a_half_written_checkpoint_is_not_gone_on_from(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Though only one is kept, the older one is there until the next is complete; the marked one is written again."""
    caplog.set_level("INFO", "holdfast.integrations.transformers")
    only_one = {"save_steps": 5, "save_total_limit": 1}
    killed_in_a_save(tmp_path, save_total_limit=1)
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == ["checkpoint-10", "checkpoint-15"]
    assert (tmp_path / "checkpoint-15" / MARK).exists()
    assert last_complete(tmp_path) == tmp_path / "checkpoint-10"

    again = trainer(tmp_path, [PreemptionCallback()], **only_one)
    again.train(resume_from_checkpoint=True)
    assert said(caplog, f"skipped: {tmp_path}/checkpoint-15 was being written when its job") == 1
    assert said(caplog, f"the training resumes from {tmp_path}/checkpoint-10") == 1
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-20"]
    alone = trainer(tmp_path / "alone", **only_one)
    alone.train()
    assert weights(again) == weights(alone)


@pytest.mark.parametrize(
    ("limit", "complete", "incomplete"),
    [(1, {12}, set()), (3, {5, 10, 12}, set()), (None, {5, 10, 12}, {15})],
)
def test_rotation_removes_incomplete_checkpoints_first(
    tmp_path: Path, limit: int | None, complete: set[int], incomplete: set[int]
) -> None:
    """A resume removes nothing. The next save has a lower step, and must not be removed in place of a higher one."""
    killed_in_a_save(tmp_path)
    twelve_steps(tmp_path, limit)
    found = {path.name: why_incomplete(path) for path in tmp_path.glob("checkpoint-*")}
    assert {name for name, why in found.items() if not why} == {f"checkpoint-{step}" for step in complete}
    assert {name for name, why in found.items() if why} == {f"checkpoint-{step}" for step in incomplete}
    assert choose(tmp_path) == tmp_path / "checkpoint-12"


def twelve_steps(folder: Path, limit: int | None) -> None:
    """The next start, whose one checkpoint is of a lower step than those that are there."""
    again = trainer(folder, [PreemptionCallback()], save_steps=12, max_steps=12, save_total_limit=limit)
    again.train(resume_from_checkpoint=True)


def test_rotation_removes_a_cut_off_checkpoint_first(tmp_path: Path) -> None:
    trainer(tmp_path, [PreemptionCallback()], save_steps=5, max_steps=15).train()
    state = tmp_path / "checkpoint-15" / "optimizer.pt"
    os.truncate(state, state.stat().st_size // 2)
    twelve_steps(tmp_path, 1)
    assert choose(tmp_path) == tmp_path / "checkpoint-12"


def test_rotation_does_not_remove_first_what_cannot_be_read(tmp_path: Path) -> None:
    """It may be complete: here a link that the kernel refuses to follow stands for a disk that is gone for a moment."""
    trainer(tmp_path, [PreemptionCallback()], save_steps=5, max_steps=10).train()
    (tmp_path / "checkpoint-10" / "more.pt").symlink_to("more.pt")
    again = trainer(tmp_path, [PreemptionCallback()], save_steps=5, max_steps=15, save_total_limit=2)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-10"))
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == ["checkpoint-10", "checkpoint-15"]


def test_incomplete_checkpoint_saved_again_loses_old_files(tmp_path: Path) -> None:
    """A killed job of more ranks has left a file that the smaller job does not write."""
    killed_in_a_save(tmp_path)
    again = tmp_path / "checkpoint-15"
    (again / "shards").mkdir()
    left = [again / "rng_state_7.pth", again / "shards" / "rank_7.pt"]
    for path in left:
        path.write_bytes(b"half")
    trainer(tmp_path, [PreemptionCallback()], save_steps=5).train(resume_from_checkpoint=True)
    assert why_incomplete(again) == "" and not any(path.exists() for path in left)


def test_rotation_after_a_failed_flush_is_not_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    deeds = {"on_step_begin 14": lambda: monkeypatch.setattr(os, "fsync", fail)}
    made = trainer(tmp_path, [PreemptionCallback()], deeds, save_steps=5, save_total_limit=1)
    with pytest.raises(OSError, match="Input/output error"):
        made.train()
    assert choose(tmp_path) == tmp_path / "checkpoint-10"


def test_save_with_metrics_keeps_the_best_checkpoint(tmp_path: Path) -> None:
    """transformers 4.46 passes the metrics of the evaluation to the save."""
    best = {"eval_steps": 5, "save_steps": 5, "load_best_model_at_end": True, "save_total_limit": 1}
    names = list[str]()
    for callbacks in ([], [PreemptionCallback()]):
        made = trainer(tmp_path / f"{len(names)}", callbacks, **best)
        made.train()
        names.append(Path(str(made.state.best_model_checkpoint)).name)
    assert names[0] == names[1] and choose(tmp_path / "1")


def test_one_that_is_cut_off_and_says_nothing_is_skipped_and_stays(tmp_path: Path) -> None:
    """Of a job without the callbacks, or of a disk that lost something."""
    trainer(tmp_path, save_steps=10).train()
    whole = (tmp_path / "checkpoint-20" / "optimizer.pt").read_bytes()
    assert choose(tmp_path) == tmp_path / "checkpoint-20"
    (tmp_path / "checkpoint-20" / "optimizer.pt").write_bytes(whole[: len(whole) // 2])
    assert choose(tmp_path) == tmp_path / "checkpoint-10"
    (tmp_path / "checkpoint-10" / "trainer_state.json").unlink()
    assert choose(tmp_path) is None
    assert (tmp_path / "checkpoint-20").is_dir() and (tmp_path / "checkpoint-10").is_dir()


def test_where_there_is_none_the_training_begins_and_where_nobody_can_look_it_does_not(
    tmp_path: Path,
) -> None:
    made = trainer(tmp_path / "new", [PreemptionCallback()])
    made.train(resume_from_checkpoint=True)
    assert made.state.global_step == 20
    (tmp_path / "file").touch()
    assert choose(tmp_path / "missing") is None
    with pytest.raises(NotADirectoryError):
        choose(tmp_path / "file")


def test_without_a_callback_of_ours_the_trainer_saves_and_resumes_as_before(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="No valid checkpoint found"):
        trainer(tmp_path).train(resume_from_checkpoint=True)
    plain = trainer(tmp_path, save_steps=10)
    plain.train()
    assert not [name for name in vars(plain) if name in ("train", "_save_checkpoint")]


def test_on_several_ranks_it_is_complete_when_all_have_written(spawn: Spawner, tmp_path: Path) -> None:
    """A rank that cannot write makes the save fail on the others too; where they cannot be asked it does not
    count, and has no mark either: the next start would skip it and all that came after it."""
    env = {"OMP_NUM_THREADS": "1"}
    ranks = [spawn.python(TOGETHER, str(rank), str(tmp_path), env=env) for rank in range(2)]
    assert [rank.wait(120) for rank in ranks] == [0, 0], "\n".join(rank.output() for rank in ranks)
    first, second = (json.loads(rank.out().splitlines()[-1]) for rank in ranks)
    assert first["said"] == [
        "complete",
        f"the checkpoint {tmp_path}/checkpoint-2 is not complete: another rank has not written its part",
        "not known to be complete",
    ]
    assert second["said"] == ["complete", "no space left", "not known to be complete"]
    assert first["files"] == ["rank-0", "rank-1"] and first["marks"] == [False, True, False]
    assert first["due"] and second["due"]  # an evaluation is begun by all ranks or by none
    assert choose(tmp_path) is None  # of these, none has weights in it


# -- the example's loop in this process; its jobs are in `test_examples`


EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "transformers" / "accelerate_loop.py"


def test_it_gets_past_a_damaged_checkpoint_that_it_has_skipped(tmp_path: Path, ranked: Ranked) -> None:
    """It writes another one of the same name."""
    ranked()
    damaged = tmp_path / "step-2"
    damaged.mkdir()
    (damaged / "model.safetensors").write_bytes(b"half")
    runpy.run_path(str(EXAMPLE))["train"](tmp_path, 2, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-1", "step-2"]
    assert (damaged / "model.safetensors").stat().st_size > 4
