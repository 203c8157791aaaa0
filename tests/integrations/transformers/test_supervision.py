"""Heartbeats and sections of a training, the limits that it learns, and the flag that it creates."""

from __future__ import annotations

import copy
import json
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from accelerate.state import GradientState
from torch.utils.data import IterableDataset
from transformers import DefaultFlowCallback, EarlyStoppingCallback, Trainer, TrainerCallback

from holdfast.callbacks.supervision import Supervision
from holdfast.fault_tolerance import WorkloadAction, WorkloadControlRequest
from holdfast.fault_tolerance.board import Board
from holdfast.integrations.transformers import (
    FaultToleranceCallback,
    FaultToleranceSectionsCallback,
    HoldfastCallback,
    PreemptionCallback,
    training,
)

from .conftest import SECTIONS, Ranked
from .small import HAS_RUN_EPOCH, STEPS, VERSION, Line, Numbers, arguments, said, trainer, weights

Both = pytest.mark.parametrize("kind", [FaultToleranceCallback, FaultToleranceSectionsCallback])


@pytest.fixture
def flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FAULT_TOL_FINISHED_FLAG_FILE", str(tmp_path / "finished.flag"))
    return tmp_path / "finished.flag"


def looking_at(board: Board, seen: dict[str, Any]) -> Callable[[str], Callable[[], None]]:
    """Deeds that note what the board says then, by the name of the moment."""
    return lambda name: lambda: seen.update({name: board.snapshot()})


def test_each_step_is_a_heartbeat_with_its_number(tmp_path: Path, ranked: Ranked) -> None:
    board = ranked()
    seen: dict[str, Any] = {}
    at = looking_at(board, seen)
    deeds = {
        "on_step_begin 0": at("before"),
        "on_step_begin 7": at("after 7"),
        "on_evaluate 10": at("evaluated"),
    }
    callback = FaultToleranceCallback(False, False)
    trainer(tmp_path, [callback], deeds, eval_steps=10).train()
    assert [seen["after 7"].step, seen["evaluated"].step] == [7, 10]
    assert (
        seen["before"].heartbeat_count
        < seen["after 7"].heartbeat_count
        < seen["evaluated"].heartbeat_count - 3
    )  # 4 batches
    assert not callback.is_initialized and Supervision._current is None


@pytest.mark.parametrize(
    "moment", ["on_train_begin 5", "on_step_begin 7", "on_step_end 7", "on_evaluate 10", "on_save 10"]
)
@Both
def test_supervision_that_ends_is_logged_once(
    kind: Any, moment: str, tmp_path: Path, ranked: Ranked, caplog: pytest.LogCaptureFixture
) -> None:
    """In whichever hook the program has shut down the client, the training continues to its end."""
    ranked(rank_section_timeouts=SECTIONS)
    steps = {"eval_steps": 10, "save_steps": 5}
    trainer(tmp_path, max_steps=5, **steps).train()  # timeouts are learned by a training that resumes
    callback = kind(False, True)

    def end() -> None:
        callback._run.client.shutdown_workload_monitoring()

    made = trainer(tmp_path, [callback], {moment: end}, **steps)
    made.train(resume_from_checkpoint=True)
    assert made.state.global_step == STEPS and Supervision._current is None
    words = ("supervision has ended before the training", "a section of the training is not supervised")
    told = [
        each.getMessage() for each in caplog.records if each.levelname == "WARNING" and "Fault" in each.name
    ]
    assert len(told) == 1 and any(word in told[0] for word in words), told


def test_sections_name_what_the_trainer_does(tmp_path: Path, ranked: Ranked) -> None:
    board = ranked(rank_section_timeouts=SECTIONS)
    seen: dict[str, Any] = {}
    at = looking_at(board, seen)
    callback = FaultToleranceSectionsCallback(False, False)
    deeds = {"on_train_begin 0": at("begin"), "on_pre_optimizer_step 4": at("step"), "on_save 5": at("saved")}
    made = trainer(tmp_path, [callback], deeds, save_steps=5)
    saving = made._save_optimizer_and_scheduler
    made._save_optimizer_and_scheduler = lambda folder: (at("saving")(), saving(folder))  # type: ignore[method-assign]
    made.train()
    assert {
        name: [section.name for section in seen[name].open_sections]
        for name in ("begin", "step", "saving", "saved")
    } == {"begin": ["setup"], "step": ["step"], "saving": ["checkpointing"], "saved": []}


class Stream(IterableDataset[Any]):
    """Of a length that the trainer does not know: 7 batches."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        numbers = Numbers(14)
        return (numbers[index] for index in range(14))


def test_batches_that_make_no_whole_step_leave_no_section(tmp_path: Path, ranked: Ranked) -> None:
    """The evaluation that follows would be one long step."""
    board = ranked(rank_section_timeouts=SECTIONS)
    seen: dict[str, Any] = {}
    deeds = {"on_evaluate 1": looking_at(board, seen)("evaluated")}
    changes = {"eval_strategy": "epoch", "gradient_accumulation_steps": 4, "max_steps": 2}
    made = trainer(tmp_path, [FaultToleranceSectionsCallback(False, False)], deeds, **changes)
    made.train_dataset = Stream()
    made.train()
    assert seen["evaluated"].open_sections == ()


def test_limits_are_learned_by_the_second_job_and_loaded_by_the_third(
    tmp_path: Path, ranked: Ranked, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As documents 1 and 2 say; both callbacks in one trainer."""
    caplog.set_level("INFO", "nemo_logger.FaultToleranceCallback")
    state = tmp_path / "ft_state" / "_ft_state.json"
    sections = tmp_path / "ft_state" / "_ft_state_.json"

    def job(steps: int) -> None:
        ranked(rank_section_timeouts=SECTIONS)
        callbacks = [FaultToleranceCallback(False, True), FaultToleranceSectionsCallback(False, True)]
        trainer(tmp_path, callbacks, max_steps=steps, save_steps=10).train(resume_from_checkpoint=True)

    job(18)
    assert (
        not state.exists()
        and "setup"
        not in json.loads(sections.read_text())["current_timeouts"]["section"]["calculated_sections"]
    )
    job(40)
    learned = json.loads(state.read_text())["current_timeouts"]["heartbeat"]
    assert learned["were_calculated"] and learned["subsequent"] < 2700
    assert json.loads(sections.read_text())["current_timeouts"]["section"]["calculated_sections"] == [
        "checkpointing",
        "setup",
        "step",
    ]
    assert said(caplog, "Fault tolerance timeouts loaded") == 1  # the sections of the first job
    job(41)
    assert said(caplog, "Fault tolerance timeouts loaded") == 3
    assert said(caplog, "[FaultToleranceCallback@rank0] Updated FT timeouts. New values: ") >= 3


@pytest.mark.parametrize("eval_delay", [0, 1000])
def test_no_limit_that_an_evaluation_could_exceed_is_learned_before_one(
    eval_delay: int, tmp_path: Path, ranked: Ranked
) -> None:
    ranked(rank_section_timeouts=SECTIONS)
    steps = {"eval_steps": 30, "eval_delay": eval_delay, "save_steps": 10}
    trainer(tmp_path, max_steps=10, **steps).train()
    callbacks = [FaultToleranceCallback(False, True), FaultToleranceSectionsCallback(False, True)]
    trainer(tmp_path, callbacks, max_steps=40, **steps).train(resume_from_checkpoint=True)
    seen = not eval_delay
    assert (tmp_path / "ft_state" / "_ft_state.json").exists() == seen
    sections = json.loads((tmp_path / "ft_state" / "_ft_state_.json").read_text())
    learned = sections["current_timeouts"]["section"]["calculated_sections"]
    assert learned == ["checkpointing", "setup", *(["step"] if seen else [])]


@Both
def test_the_flag_is_created_when_the_training_is_complete(
    kind: type[FaultToleranceCallback], tmp_path: Path, ranked: Ranked, flag: Path
) -> None:
    def job(deeds: dict[str, Any] | None = None, more: tuple[Any, ...] = (), **changes: Any) -> bool:
        ranked(rank_section_timeouts=SECTIONS)  # the begin removes the flag of the job before
        made = trainer(tmp_path, [*more, kind(True, False)], deeds, **changes)
        if deeds is None:
            made.train()
        else:
            with pytest.raises((SystemExit, ZeroDivisionError)):
                made.train()
        return flag.exists()

    assert job()
    assert job(max_steps=5)
    assert not job({"on_step_begin 3": lambda: sys.exit(0)})
    assert not job({"on_step_begin 3": lambda: 1 // 0})
    assert not job(more=(Asking(),))  # no few steps are an end: the trainer knows how many there are
    impatient = {"eval_steps": 2, "save_steps": 2, "load_best_model_at_end": True, "learning_rate": 0.0}
    assert job(more=(EarlyStoppingCallback(1),), **impatient)


class Asking(TrainerCallback):
    """Stops each training after its first step, as one that wants another job does."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = True


@pytest.mark.skipif(
    not HAS_RUN_EPOCH, reason=f"transformers {VERSION} has no Trainer._run_epoch, and trains one more step"
)
def test_with_all_steps_done_a_start_trains_none_and_makes_the_flag(
    tmp_path: Path, ranked: Ranked, flag: Path
) -> None:
    """As after an end between the last checkpoint and the flag; transformers itself trains one more step each time."""
    ranked()
    first = trainer(tmp_path, [FaultToleranceCallback(True, False)], max_steps=15, save_steps=15)
    first.train(resume_from_checkpoint=True)
    for _ in range(2):
        flag.unlink()
        ranked()
        again = trainer(tmp_path, [FaultToleranceCallback(True, False)], max_steps=15, save_steps=15)
        again.train(resume_from_checkpoint=True)
        assert again.state.global_step == 15 and weights(again) == weights(first) and flag.exists()
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-15"]
    ranked()
    more = trainer(tmp_path, [FaultToleranceCallback(True, False)], max_steps=17, save_steps=15)
    more.train(resume_from_checkpoint=True)  # the user wants more of them
    assert more.state.global_step == 17


def test_a_failure_is_told_to_the_policy_and_nothing_is_learned(
    tmp_path: Path, ranked: Ranked, flag: Path, caplog: pytest.LogCaptureFixture
) -> None:
    board = ranked(rank_section_timeouts=SECTIONS)
    caplog.set_level("INFO", "nemo_logger.FaultToleranceCallback")
    asked = list[Any]()

    def policy(error: Exception) -> WorkloadControlRequest:
        asked.append(error)
        return WorkloadControlRequest(WorkloadAction.ShutdownWorkload, "bad data")

    callback = FaultToleranceSectionsCallback(False, True, exc_handling_policy=policy)
    made = trainer(tmp_path, [callback], {"on_pre_optimizer_step 3": lambda: 1 // 0})
    with pytest.raises(ZeroDivisionError) as raised:
        made.train()
    assert asked == [raised.value] and flag.exists()
    assert board.snapshot().open_sections == ()
    assert said(caplog, "Rank exits due to a failure, won't update the FT timeouts") == 1
    assert not (tmp_path / "ft_state" / "_ft_state_.json").exists()


def test_a_wrong_start_says_what_to_do(tmp_path: Path, ranked: Ranked) -> None:
    for callback in (FaultToleranceCallback(False, False), FaultToleranceSectionsCallback(False, False)):
        with pytest.raises(
            RuntimeError, match=f"{type(callback).__name__} needs ft_launcher, .* Run `ft_launcher"
        ):
            trainer(tmp_path, [callback]).train()
    ranked(rank_section_timeouts={"setup": 1.0})
    with pytest.raises(ValueError, match=r"should contain {'checkpointing', 'setup', 'step'} entries"):
        trainer(tmp_path, [FaultToleranceSectionsCallback(False, False)]).train()
    with pytest.raises(RuntimeError, match="'FAULT_TOL_FINISHED_FLAG_FILE' env variable is not set"):
        trainer(tmp_path, [FaultToleranceCallback(True, False)]).train()
    with pytest.raises(ValueError, match="autoresume must be True or False, not 'no'"):
        FaultToleranceCallback("no", False)  # type: ignore[arg-type]
    assert Supervision._current is None


def test_a_program_that_only_evaluates_needs_no_launcher(tmp_path: Path) -> None:
    assert "eval_loss" in trainer(tmp_path, [FaultToleranceCallback(False, False)]).evaluate()


def test_a_callback_that_is_added_later_is_like_any_other(tmp_path: Path, ranked: Ranked) -> None:
    board = ranked()
    made = trainer(tmp_path)
    made.add_callback(FaultToleranceCallback(False, False))
    made.train()
    made.train()  # a second training of the same trainer
    assert board.snapshot().step == STEPS
    alone = trainer(tmp_path)
    alone.train()
    alone.train()
    assert weights(made) == weights(alone)


def test_one_that_is_added_later_says_what_it_cannot_do(
    tmp_path: Path, ranked: Ranked, caplog: pytest.LogCaptureFixture
) -> None:
    """Its first training resumes as transformers says, and the exception that ends it is not noticed."""
    board = ranked()
    failing = {"on_step_begin 12": lambda: 1 // 0}
    with pytest.raises(ZeroDivisionError):
        trainer(tmp_path, deeds=failing, save_steps=10).train()
    loaded: list[bool] = []

    def fail_again() -> None:
        parts = made.callback_handler.callbacks
        loaded.extend(each._run.rules.loaded for each in parts if isinstance(each, FaultToleranceCallback))
        raise ZeroDivisionError

    made = trainer(tmp_path, deeds={"on_step_begin 12": fail_again})
    made.add_callback(HoldfastCallback())
    kinds = [type(each) for each in made.callback_handler.callbacks]
    with pytest.raises(ZeroDivisionError):
        made.train(resume_from_checkpoint=True)
    assert said(caplog, "HoldfastCallback came by add_callback, after transformers chose the checkpoint") == 1
    assert loaded == [True] and not board.snapshot().finished
    made.train(resume_from_checkpoint=True)
    assert board.snapshot().finished and board.snapshot().step == STEPS
    assert [type(each) for each in made.callback_handler.callbacks] == kinds
    assert said(caplog, "came by add_callback") == 1
    alone = trainer(tmp_path / "alone")
    alone.train()
    assert weights(made) == weights(alone)


def test_a_copy_trains_itself(tmp_path: Path, ranked: Ranked) -> None:
    board = ranked()
    made = trainer(tmp_path, [FaultToleranceCallback(False, False)], max_steps=3)
    other, before = copy.copy(made), weights(made)
    other.model = other.model_wrapped = Line()
    other.train()
    assert weights(made) == before and board.snapshot().step == 3 and board.snapshot().finished


def test_a_trainer_keeps_its_class_and_can_be_pickled(tmp_path: Path) -> None:
    """The process that unpickles it has made no trainer with a callback."""
    GradientState._reset_state()  # what other trainers have left there cannot be pickled
    callback = PreemptionCallback()
    made = trainer(tmp_path, [callback], max_steps=3)
    made.callback_handler.callbacks = [DefaultFlowCallback(), callback]
    assert type(made) is Trainer
    program = (
        "import logging, pickle, sys; from accelerate import Accelerator; logging.basicConfig(); "
        "Accelerator(cpu=True); made = pickle.load(sys.stdin.buffer); made.train(); "
        "print([type(each).__name__ for each in made.callback_handler.callbacks], made.state.global_step)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        input=pickle.dumps(made),
        capture_output=True,
        timeout=600,
        check=False,
    )
    assert ended.stdout.decode().strip() == "['DefaultFlowCallback', 'PreemptionCallback'] 3", ended.stderr
    assert b"came by add_callback" not in ended.stderr


def test_a_class_that_asks_for_a_keyword_and_for_its_own_class(tmp_path: Path, ranked: Ranked) -> None:
    class Named(Trainer):
        def __init_subclass__(cls, *, name: str) -> None:
            cls.name = name

    class Own(Named, name="own"):
        def train(self, *args: Any, **kwargs: Any) -> Any:
            return super(self.__class__, self).train(*args, **kwargs)

    board, callback = ranked(), FaultToleranceCallback(False, False)
    Own(Line(), arguments(tmp_path, max_steps=3), train_dataset=Numbers(), callbacks=[callback]).train()
    assert board.snapshot().finished and board.snapshot().step == 3
    other = Own(Line(), arguments(tmp_path, max_steps=3), train_dataset=Numbers())
    other.train()
    assert other.state.global_step == 3


def test_a_class_with_its_own_train_is_supervised(tmp_path: Path, ranked: Ranked) -> None:
    class Own(Trainer):
        def train(self, *, resume_from_checkpoint: Any = None) -> Any:
            return self._inner_training_loop(self.args.train_batch_size, self.args, resume_from_checkpoint)

    board, before = ranked(), Trainer.train
    made = Own(
        Line(),
        arguments(tmp_path, max_steps=3),
        train_dataset=Numbers(),
        callbacks=[FaultToleranceCallback(False, False)],
    )
    made.train()
    assert board.snapshot().finished and board.snapshot().step == 3
    assert Trainer.train is before


def test_another_transformers_is_refused_in_one_line(
    tmp_path: Path, ranked: Ranked, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranked()
    monkeypatch.setattr(training, "VERSION", "6.1.0")
    made = trainer(tmp_path, [FaultToleranceCallback(False, True)])
    with pytest.raises(RuntimeError, match=r"tested with transformers 4\.46 to 5\.24, and this is 6\.1\.0"):
        made.train()
