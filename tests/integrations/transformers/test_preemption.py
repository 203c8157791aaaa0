"""A training that is asked to stop: what it leaves, how it ends, and that the next start makes it whole."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from transformers import Trainer

from holdfast.integrations.transformers import PreemptionCallback
from holdfast.integrations.transformers.checkpoints import MARK
from holdfast.integrations.transformers.training import EVALUATION_TO_COME

from .small import IS_4_46, said, trainer, weights


def term() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def preempted(folder: Path, moment: str, **changes: Any) -> Trainer:
    """A training that gets SIGTERM at this moment, and stops."""
    stopped = trainer(folder, [PreemptionCallback()], {moment: term}, **changes)
    with pytest.raises(SystemExit) as leaving:
        stopped.train(resume_from_checkpoint=True)
    assert leaving.value.code == 0
    return stopped


def resumed(folder: Path, **changes: Any) -> Trainer:
    """The next start."""
    again = trainer(folder, [PreemptionCallback()], **changes)
    again.train(resume_from_checkpoint=True)
    return again


def undisturbed(folder: Path, **changes: Any) -> list[float]:
    """The final weights of a training without us."""
    alone = trainer(folder, **changes)
    alone.train()
    return weights(alone)


def checkpoints(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("checkpoint-*"))


def metrics(made: Trainer) -> list[tuple[int, float]]:
    return [
        (entry["step"], round(entry["eval_loss"], 12))
        for entry in made.state.log_history
        if "eval_loss" in entry
    ]


def test_it_saves_the_step_and_the_next_start_ends_with_the_same_weights(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In mid-epoch, at the end of an epoch, and in accumulated gradients."""
    accumulated = 2 if IS_4_46 else 3  # 4.46 accumulates across the end of an epoch, but not after a resume
    for name, moment, left, changes in (
        ("middle", "on_step_begin 6", "checkpoint-7", {}),
        ("epoch", "on_step_begin 19", "checkpoint-20", {}),
        ("substep", "on_substep_end 3", "checkpoint-4", {"gradient_accumulation_steps": accumulated}),
    ):
        changes = {"num_train_epochs": 2, **changes}
        before = signal.getsignal(signal.SIGTERM)
        preempted(tmp_path / name, moment, **changes)
        assert checkpoints(tmp_path / name) == [left]
        assert not (tmp_path / name / left / MARK).exists()
        signal.signal(signal.SIGTERM, before)  # as in a new process
        assert weights(resumed(tmp_path / name, **changes)) == undisturbed(tmp_path / "alone", **changes)
        assert signal.getsignal(signal.SIGTERM) == before
    assert said(caplog, "Received signal 15, initiating graceful stop") == 3
    assert said(caplog, "Preemption detected, saving checkpoint and exiting") == 3
    assert said(caplog, "Preemption: the checkpoint of step 7 is complete after") == 1


def test_an_evaluation_that_was_due_or_cut_short_is_done_in_the_next_start(tmp_path: Path) -> None:
    """The weights, the metrics and the best step are those of an undisturbed run; in 4.46 without the best step."""
    steps = {"eval_steps": 5, "save_steps": 10, "load_best_model_at_end": not IS_4_46, "num_train_epochs": 2}
    epochs = {"eval_strategy": "epoch", "save_strategy": "epoch", "num_train_epochs": 2}
    for name, moment, step, changes in (
        ("due", "on_step_begin 9", 10, steps),
        ("cut", "on_prediction_step 15", 15, steps),
        ("epoch", "on_step_begin 19", 20, epochs),
    ):
        alone = trainer(tmp_path / f"{name}-alone", **changes)
        alone.train()
        preempted(tmp_path / name, moment, **changes)
        assert f"checkpoint-{step}" in checkpoints(tmp_path / name)
        assert (tmp_path / name / f"checkpoint-{step}" / EVALUATION_TO_COME).exists()
        again = resumed(tmp_path / name, **changes)
        assert weights(again) == weights(alone)
        assert metrics(again) == metrics(alone)
        if not IS_4_46:
            assert again.state.best_global_step == alone.state.best_global_step


def test_workers_of_the_loaders_get_the_signal_too_and_stay(tmp_path: Path) -> None:
    """In the first start, and where batches are skipped after a resume. The rank itself gets it later."""

    def workers() -> None:
        found = multiprocessing.active_children()
        assert found
        for worker in found:
            os.kill(worker.pid or 0, signal.SIGTERM)

    def start(step: int) -> int | str | None:
        deeds = {f"on_step_begin {step}": workers, f"on_step_begin {step + 6}": term}
        stopped = trainer(tmp_path, [PreemptionCallback()], deeds, dataloader_num_workers=1)
        try:
            stopped.train(resume_from_checkpoint=True)
        except SystemExit as leaving:
            return leaving.code
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        return "trained to the end"

    assert [start(1), start(10)] == [0, 0]
    gc.collect()  # the loaders' iterators end their workers when they go
    assert checkpoints(tmp_path) == ["checkpoint-17", "checkpoint-8"]


def test_a_step_that_saves_anyway_is_saved_once(tmp_path: Path) -> None:
    stopped = preempted(tmp_path, "on_step_begin 4", save_steps=5)
    doing = next(each for each in stopped.callback_handler.callbacks if hasattr(each, "seen"))
    assert doing.seen.count("on_save 5") == 1 and doing.seen[-1] == "on_save 5"


def test_before_the_first_step_there_is_nothing_to_save(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    preempted(tmp_path, "on_train_begin 0")
    assert checkpoints(tmp_path) == []
    assert said(caplog, "nothing was trained in this start") == 1


def test_a_save_that_fails_does_not_end_with_code_0(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Here by a file in the place of the folder."""
    (tmp_path / "checkpoint-3").touch()
    stopped = trainer(tmp_path, [PreemptionCallback()], {"on_step_begin 2": term})
    with pytest.raises(FileExistsError):
        stopped.train()
    assert said(caplog, "the checkpoint of step 3 could not be saved") == 1
    assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL  # the process that ends is not ended sooner


def test_without_a_signal_nothing_is_different(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    callback = PreemptionCallback("SIGUSR1")
    trained = trainer(tmp_path / "ours", [callback])
    trained.train()
    assert weights(trained) == undisturbed(tmp_path / "alone")
    assert signal.getsignal(signal.SIGTERM) == before
    assert not [name for name in vars(trained) if hasattr(vars(trained)[name], "holdfast_patch")]


def test_a_signal_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="sig='SIGFOO': no signal"):
        PreemptionCallback("SIGFOO")
