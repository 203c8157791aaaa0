"""Heartbeats and sections of a training, the limits that it learns, and the flag that it creates."""

from __future__ import annotations

import copy
import json
import pickle
import shutil
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


def looking_at(board: Board) -> tuple[dict[str, Any], Callable[[str], Callable[[], None]]]:
    """What the board said in each moment; and deeds that note it, by the name of the moment."""
    seen: dict[str, Any] = {}
    return seen, lambda name: lambda: seen.update({name: board.snapshot()})


@pytest.fixture(scope="module")
def five_steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a training of five steps, which left a checkpoint: timeouts are learned by one that resumes."""
    folder = tmp_path_factory.mktemp("begun")
    trainer(folder, max_steps=5, eval_steps=10, save_steps=5).train()
    return folder


def test_each_step_is_a_heartbeat_with_its_number(tmp_path: Path, ranked: Ranked) -> None:
    seen, at = looking_at(ranked())
    deeds = {"on_step_begin 0": at("before"), "on_step_begin 7": at("7"), "on_evaluate 10": at("evaluated")}
    callback = FaultToleranceCallback(False, False)
    trainer(tmp_path, [callback], deeds, eval_steps=10).train()
    assert [seen["7"].step, seen["evaluated"].step] == [7, 10]
    beats = [seen[name].heartbeat_count for name in ("before", "7", "evaluated")]
    assert beats[0] < beats[1] < beats[2] - 3  # 4 batches
    assert not callback.is_initialized and Supervision._current is None


@pytest.mark.parametrize(
    "moment", ["on_train_begin 5", "on_step_begin 7", "on_step_end 7", "on_evaluate 10", "on_save 10"]
)
@Both
def test_supervision_that_ends_is_logged_once(
    kind: Any, moment: str, five_steps: Path, tmp_path: Path, ranked: Ranked, caplog: pytest.LogCaptureFixture
) -> None:
    """In whichever hook the program has shut down the client, the training continues to its end."""
    ranked(rank_section_timeouts=SECTIONS)
    shutil.copytree(five_steps, tmp_path, dirs_exist_ok=True)
    callback = kind(False, True)

    def end() -> None:
        callback._run.client.shutdown_workload_monitoring()

    made = trainer(tmp_path, [callback], {moment: end}, eval_steps=10, save_steps=5)
    made.train(resume_from_checkpoint=True)
    assert made.state.global_step == STEPS and Supervision._current is None
    words = ("supervision has ended before the training", "a section of the training is not supervised")
    warnings = [each for each in caplog.records if each.levelname == "WARNING" and "Fault" in each.name]
    (told,) = (each.getMessage() for each in warnings)
    assert any(word in told for word in words), told


def test_sections_name_what_the_trainer_does(tmp_path: Path, ranked: Ranked) -> None:
    seen, at = looking_at(ranked(rank_section_timeouts=SECTIONS))
    callback = FaultToleranceSectionsCallback(False, False)
    deeds = {"on_train_begin 0": at("begin"), "on_pre_optimizer_step 4": at("step"), "on_save 5": at("saved")}
    made = trainer(tmp_path, [callback], deeds, save_steps=5)
    saving = made._save_optimizer_and_scheduler
    made._save_optimizer_and_scheduler = lambda folder: (at("saving")(), saving(folder))  # type: ignore[method-assign]
    made.train()
    found = {name: [section.name for section in each.open_sections] for name, each in seen.items()}
    assert found == {"begin": ["setup"], "step": ["step"], "saving": ["checkpointing"], "saved": []}


class Stream(IterableDataset[Any]):
    """Of a length that the trainer does not know: 7 batches."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        numbers = Numbers(14)
        return (numbers[index] for index in range(14))


def test_batches_that_make_no_whole_step_leave_no_section(tmp_path: Path, ranked: Ranked) -> None:
    """The evaluation that follows would be one long step."""
    seen, at = looking_at(ranked(rank_section_timeouts=SECTIONS))
    deeds = {"on_evaluate 1": at("evaluated")}
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

    def job(steps: int) -> list[str]:
        """Returns the sections that have learned timeouts after it."""
        ranked(rank_section_timeouts=SECTIONS)
        callbacks = [FaultToleranceCallback(False, True), FaultToleranceSectionsCallback(False, True)]
        trainer(tmp_path, callbacks, max_steps=steps, save_steps=10).train(resume_from_checkpoint=True)
        return calculated_sections(tmp_path)

    assert "setup" not in job(18) and not state.exists()
    assert job(40) == ["checkpointing", "setup", "step"]
    learned = json.loads(state.read_text())["current_timeouts"]["heartbeat"]
    assert learned["were_calculated"] and learned["subsequent"] < 2700
    assert said(caplog, "Fault tolerance timeouts loaded") == 1  # the sections of the first job
    job(41)
    assert said(caplog, "Fault tolerance timeouts loaded") == 3
    assert said(caplog, "[FaultToleranceCallback@rank0] Updated FT timeouts. New values: ") >= 3


def calculated_sections(folder: Path) -> list[str]:
    """Those whose timeouts the last job learned."""
    kept = json.loads((folder / "ft_state" / "_ft_state_.json").read_text())
    return kept["current_timeouts"]["section"]["calculated_sections"]


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
    assert calculated_sections(tmp_path) == ["checkpointing", "setup", *(["step"] if seen else [])]


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

    def start(steps: int) -> Trainer:
        ranked()
        made = trainer(tmp_path, [FaultToleranceCallback(True, False)], max_steps=steps, save_steps=15)
        made.train(resume_from_checkpoint=True)
        return made

    first = start(15)
    for _ in range(2):
        flag.unlink()
        again = start(15)
        assert again.state.global_step == 15 and weights(again) == weights(first) and flag.exists()
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-15"]
    assert start(17).state.global_step == 17  # the user wants more of them


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
    for kind in FaultToleranceCallback, FaultToleranceSectionsCallback:
        with pytest.raises(RuntimeError, match=f"{kind.__name__} needs ft_launcher, .* Run `ft_launcher"):
            trainer(tmp_path, [kind(False, False)]).train()
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
    command, pickled = [sys.executable, "-c", program], pickle.dumps(made)
    ended = subprocess.run(command, input=pickled, capture_output=True, timeout=600, check=False)
    assert ended.stdout.decode().strip() == "['DefaultFlowCallback', 'PreemptionCallback'] 3", ended.stderr
    assert b"came by add_callback" not in ended.stderr


class Named(Trainer):
    """Asks its subclasses for a keyword."""

    def __init_subclass__(cls, *, name: str) -> None:
        cls.name = name


class OfItsOwnClass(Named, name="own"):
    def train(self, *args: Any, **kwargs: Any) -> Any:
        return super(self.__class__, self).train(*args, **kwargs)


class OwnTrain(Trainer):
    def train(self, *, resume_from_checkpoint: Any = None) -> Any:
        return self._inner_training_loop(self.args.train_batch_size, self.args, resume_from_checkpoint)


@pytest.mark.parametrize("own", [OfItsOwnClass, OwnTrain])
def test_a_class_of_the_program_is_supervised(own: Any, tmp_path: Path, ranked: Ranked) -> None:
    """Where it has a callback of ours; without one it trains too."""
    board, before = ranked(), Trainer.train
    for callbacks in ([FaultToleranceCallback(False, False)], []):
        made = own(Line(), arguments(tmp_path, max_steps=3), train_dataset=Numbers(), callbacks=callbacks)
        made.train()
        assert made.state.global_step == 3
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
