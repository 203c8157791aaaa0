"""`StragglerDetectionCallback` in a trainer of one rank: its reports, its end, and the metrics for the loggers."""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.strategies import SingleDeviceStrategy

from holdfast.callbacks.stragglers import StragglerDetection
from holdfast.in_time import UnderWay
from holdfast.ptl_resiliency import StragglerDetectionCallback
from holdfast.straggler import Detector
from holdfast.straggler.session import Session
from tests.processes import wait_until
from tests.ptl_resiliency.preempted import fit
from tests.ptl_resiliency.small import AGAIN, At, Small, Values, keeper, of_csv, of_tensorboard, trainer
from tests.straggler.conftest import _detector_is_shut_down as _detector_is_shut_down

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.INFO, "test_logger"):
        yield caplog


def callback(**kwargs: Any) -> StragglerDetectionCallback:
    """A report in each step from the 17th on."""
    return StragglerDetectionCallback(
        **({"report_time_interval": 1e-6, "logger_name": "test_logger"} | kwargs)
    )


class Made(UnderWay[Any]):
    """A report that is made before the next is due, however busy the machine is."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__(call)
        wait_until(lambda: self.is_done)


@pytest.fixture
def in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.callbacks.stragglers.UnderWay", Made)


@pytest.mark.usefixtures("in_time")
def test_reports_of_a_whole_training(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    ours = callback(report_time_interval=0, profiling_interval=1, num_gpu_perf_scores_to_log=3)
    job = trainer(tmp_path, ours, max_epochs=2)
    model = Small()
    job.fit(model)
    assert job.global_step == 40
    assert "training_step" not in vars(job.strategy) and not Detector.initialized
    said = [text.partition(":")[0] for text in log.messages if "WARNING" not in text]
    assert said[0].startswith("No GPU was measured")
    assert said[1:] == 24 * [
        "\nSection relative performance (training_step)",
        "\nSection individual performance (training_step)",
        "Straggler report processing time",
    ]
    assert {record.levelname for record in log.records} <= {"INFO", "WARNING"}


def test_a_straggler_ends_it_after_a_checkpoint(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    ours, folder = (
        callback(gpu_individual_perf_threshold=2.0, stop_if_detected=True, stop_on="scores"),
        tmp_path / "kept",
    )
    job = trainer(tmp_path, ours, keeper(folder, every_n_epochs=99), max_epochs=3)
    with pytest.raises(SystemExit) as end:
        job.fit(Small())
    assert end.value.code == 1 and job.should_stop
    assert job.global_step == 17  # the first report: no score is above such a threshold
    assert [(record.levelname, record.message) for record in log.records][-3:-1] == [
        ("INFO", log.messages[-3]),
        ("ERROR", "Detected stragglers. Terminating training..."),
    ]
    assert log.messages[-3].startswith("Straggler report processing time: ")
    assert log.messages[-1] == f"Saved {folder / 'last.ckpt'} before terminating"
    assert not Detector.initialized and "training_step" not in vars(job.strategy)
    resumed = trainer(tmp_path, callback(), keeper(folder, every_n_epochs=99), max_epochs=3)
    resumed.fit(model := Small(), ckpt_path="last")
    assert len(model.seen) == 60 - 17 + AGAIN


def test_a_validation_that_is_due_when_a_straggler_ends_it_is_still_to_come(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"max_epochs": 4, "val_check_interval": 17, "check_val_every_n_epoch": None}
    stops = callback(gpu_individual_perf_threshold=2.0, stop_if_detected=True, stop_on="scores")
    first, code = fit(tmp_path, callbacks=[stops], **settings)
    second, _ = fit(tmp_path, **settings)
    assert (code, len(first.trained), first.validations, second.validations) == (1, 17, 0, 1)


@pytest.mark.parametrize("fails", [False, True])
def test_it_ends_where_nothing_can_be_saved_too(
    tmp_path: Path, log: pytest.LogCaptureFixture, fails: bool
) -> None:
    """There is no ModelCheckpoint, or its folder cannot be made."""
    (tmp_path / "file").touch()
    ours = callback(gpu_individual_perf_threshold=2.0, stop_if_detected=True, stop_on="scores")
    keepers = [keeper(tmp_path / "file" / "kept", every_n_epochs=99, save_top_k=0)] if fails else []
    with pytest.raises(SystemExit) as end:
        trainer(tmp_path, ours, *keepers, max_epochs=3).fit(Small())
    assert end.value.code == 1
    failed = "Not saved before terminating: the last checkpoint could not be saved"
    none = "No checkpoint was saved: the trainer has no ModelCheckpoint that keeps any"
    assert log.messages[-1].startswith(failed) if fails else log.messages[-1] == none


def test_rank_0_makes_a_report_while_training_continues(
    log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And reads it in the first step in which it is ready, or at the end."""
    made, original = threading.Semaphore(0), Session._report

    def slowly(self: Session, *args: Any) -> Any:
        assert made.acquire(timeout=60)
        return original(self, *args)

    monkeypatch.setattr(Session, "_report", slowly)
    run = StragglerDetection(callback(profiling_interval=100)._settings, 0, "fit()")
    given: list[int] = []
    for step in range(1, 151):
        with Detector.detection_section("training_step"):
            pass
        run.after_step(lambda metrics, step=step: given.append(step))
        if step == 140:
            assert not log.messages
            made.release()
            wait_until(lambda: run._making is not None and run._making[0].is_done)
    assert given == [100] and "Straggler report processing time" in log.messages[-1]
    for _ in range(50):
        run.after_step(lambda metrics: given.append(200))
    made.release()
    run.close()
    assert given == [100, 200] and not Detector.initialized


def stepped(run: StragglerDetection, steps: int) -> None:
    for _ in range(steps):
        with Detector.detection_section("training_step"):
            pass
        run.after_step(lambda metrics: None)


def test_a_report_that_hangs_makes_no_step_wait_and_the_end_two_seconds(
    log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()
    monkeypatch.setattr(Session, "_report", lambda *_: over.wait(60) and None)
    run = StragglerDetection(callback()._settings, 0, "fit()")
    began = time.monotonic()
    stepped(run, 40)
    assert time.monotonic() - began < 30
    run.close()
    assert 1.9 < time.monotonic() - began < 50 and not Detector.initialized
    failed, left_out = log.messages
    assert "TooLate" in failed and left_out.startswith("23 straggler reports were left out")
    over.set()


def test_without_a_thread_the_step_makes_the_report(
    log: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuses)
    run = StragglerDetection(callback()._settings, 0, "fit()")
    stepped(run, 20)
    run.close()
    assert len([text for text in log.messages if "processing time" in text]) == 4
    assert "a straggler report failed" not in log.text


class Unlucky(Exception):
    pass


@pytest.mark.parametrize("exception", [Unlucky, KeyboardInterrupt, SystemExit])
def test_an_exception_leaves_nothing_and_the_next_fit_works(
    tmp_path: Path, exception: type[BaseException]
) -> None:
    def fail(step: int) -> None:
        if step == 5:
            raise exception

    ours = callback(stop_if_detected=True, gpu_relative_perf_threshold=0, gpu_individual_perf_threshold=0)
    job = trainer(tmp_path, ours)
    # Lightning makes an interruption an exit.
    with pytest.raises(SystemExit if exception is KeyboardInterrupt else exception):
        job.fit(Small(fail))
    assert not Detector.initialized and "training_step" not in vars(job.strategy)
    again = trainer(tmp_path, ours)
    again.fit(Small())
    assert again.global_step == 20 and not Detector.initialized


def test_a_detector_of_the_program_is_not_touched(tmp_path: Path) -> None:
    Detector.initialize()
    with pytest.raises(RuntimeError, match=r"Detector is initialised already.*Call Detector\.shutdown\(\)"):
        trainer(tmp_path, callback()).fit(Small())
    assert Detector.initialized
    Detector.shutdown()
    with pytest.raises(RuntimeError, match="or by another such callback"):
        trainer(tmp_path, callback(), callback()).fit(Small())
    assert not Detector.initialized


def test_a_program_that_shuts_the_detector_down_trains_on(
    tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    job = trainer(tmp_path, At(18, lambda trainer: Detector.shutdown()), callback())
    job.fit(Small())
    assert job.global_step == 20
    assert len([text for text in log.messages if "processing time" in text]) == 1


class Evaluating(Small):
    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.initialized = Detector.initialized

    def val_dataloader(self) -> Any:
        return self.train_dataloader()


def test_only_fits_are_measured(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    job = trainer(tmp_path, callback())
    job.validate(model := Evaluating(), verbose=False)
    assert not model.initialized and log.messages == []
    job.fit(model)
    assert model.initialized


class Sharing(Small):
    """Measures a part of its own with the detector that the callback has initialised."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        with Detector.detection_section("forward"):
            return super().training_step(batch, batch_idx)


def test_the_programs_own_sections_may_be_measured_beside_it(tmp_path: Path) -> None:
    seen: list[set[str]] = []

    def look(trainer: pl.Trainer) -> None:
        report = Detector.generate_report()
        assert report is not None
        seen.append(set(report.section_relative_perf_scores))

    trainer(tmp_path, At(12, look), callback()).fit(Sharing())
    assert seen == [{"training_step", "forward"}]


class Waiting(Small):
    """Has taken the name of the callback's section for one of its own."""

    def on_train_start(self) -> None:
        with Detector.collective_section("training_step"):
            pass


def test_a_name_that_the_program_has_taken_does_not_stop_the_training(tmp_path: Path) -> None:
    job = trainer(tmp_path, callback())
    job.fit(Waiting())
    assert job.global_step == 20


class OwnWay(SingleDeviceStrategy):
    """Does not call the model's `training_step` by its name, as NeMo's."""

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        return Small.training_step(self.lightning_module, *args, **kwargs)  # type: ignore[arg-type]


@pytest.mark.parametrize("strategy", [SingleDeviceStrategy, OwnWay])
def test_the_step_is_measured_and_the_model_stays_a_model(
    tmp_path: Path, strategy: type[SingleDeviceStrategy]
) -> None:
    summaries: list[Any] = []

    def look(trainer: pl.Trainer) -> None:
        assert "training_step" not in vars(trainer.lightning_module)
        report = Detector.generate_report()
        assert report is not None
        summaries.append(
            {str(key): value for key, value in report.local_section_summaries["training_step"].items()}
        )

    slow = Small(None if strategy is OwnWay else lambda step: time.sleep(0.002))
    job = trainer(tmp_path, At(12, look), callback(), strategy=strategy(torch.device("cpu")))
    job.fit(slow)
    assert summaries[0]["NUM"] == 12
    assert strategy is OwnWay or summaries[0]["MIN"] >= 2.0
    assert "training_step" not in vars(job.strategy) and "training_step" not in vars(slow)


def test_a_model_that_has_a_step_of_its_own_keeps_it(tmp_path: Path) -> None:
    """As a compiled one has."""
    model, calls = Small(), []
    original = model.training_step

    def own(batch: Any, batch_idx: int) -> torch.Tensor:
        calls.append(batch_idx)
        return original(batch, batch_idx)

    vars(model)["training_step"] = own  # type: ignore[index]
    trainer(tmp_path, callback()).fit(model)
    assert calls == list(range(20)) and vars(model)["training_step"] is own


def test_a_copy_measures_nothing_yet(tmp_path: Path) -> None:
    """And its end is not the end of the one that does."""
    copies: list[StragglerDetectionCallback] = []
    # A busy machine makes single steps slow: no score is below such a threshold.
    ours = callback(stop_if_detected=True, gpu_individual_perf_threshold=0.0)

    def duplicate(trainer: pl.Trainer) -> None:
        copies.append(copy.deepcopy(ours))
        copies[0].teardown(trainer, trainer.lightning_module, "fit")
        assert Detector.initialized and "training_step" in vars(trainer.strategy)
        assert ours._run is not None and copies[0]._run is None

    trainer(tmp_path, At(12, duplicate), ours).fit(Small())
    trainer(tmp_path, *copies).fit(Small())
    assert len(copies) == 1 and not Detector.initialized


# -- the metrics of straggler reports reach every logger of the trainer, and a logger cannot end the training


NAMES = {
    f"section_{kind}_perf/{part}" for kind in ("relative", "individual") for part in ("min", "median", "max")
}


def train(tmp_path: Path, logger: Any, **kwargs: Any) -> pl.Trainer:
    """A report after 17 steps and then in each, and Lightning logs in none: it would in the fiftieth."""
    callback = StragglerDetectionCallback(report_time_interval=1e-6, logger_name="test_logger", **kwargs)
    job = trainer(tmp_path, callback, logger=logger, max_epochs=2)
    job.fit(Small())
    assert not Detector.initialized
    return job


def straggler(values: Values) -> Values:
    return {name: points for name, points in values.items() if "_perf/" in name}


@pytest.mark.usefixtures("in_time")
def test_csv_and_tensorboard_at_once(tmp_path: Path) -> None:
    train(tmp_path, [CSVLogger(tmp_path / "csv"), TensorBoardLogger(tmp_path / "board")])
    written, events = straggler(of_csv(tmp_path / "csv")), straggler(of_tensorboard(tmp_path / "board"))
    assert written.keys() == events.keys() == NAMES
    steps = [step for step, _ in written["section_relative_perf/min"]]
    assert steps == list(range(16, 40))  # Lightning counts from 0
    assert [step for step, _ in events["section_individual_perf/max"]] == steps
    assert {value for _, value in written["section_relative_perf/max"]} == {1.0}  # alone
    assert written["section_individual_perf/min"][0][1] == 1.0
    assert min(value for _, value in written["section_individual_perf/min"]) < 1.0


class Logging(Small):
    """Logs the step itself, as users do, with the step that Lightning then gives the loggers."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("own", float(self.global_step))
        return super().training_step(batch, batch_idx)


def test_the_steps_are_those_of_lightnings_own_metrics(tmp_path: Path) -> None:
    callback = StragglerDetectionCallback(report_time_interval=1e-6, logger_name="test_logger")
    logger = CSVLogger(tmp_path)
    trainer(
        tmp_path, callback, logger=logger, max_epochs=2, log_every_n_steps=1, accumulate_grad_batches=2
    ).fit(Logging())
    written = of_csv(tmp_path)
    ours = {step for step, _ in written["section_relative_perf/min"]}
    assert ours and ours <= {step for step, _ in written["own"]}
    assert max(ours) == max(step for step, _ in written["own"]) == 19


def test_no_logger_and_no_wish(tmp_path: Path) -> None:
    train(tmp_path, False)
    train(tmp_path, CSVLogger(tmp_path), enable_ptl_logging=False)
    assert not list(tmp_path.rglob("metrics.csv"))


class Broken(CSVLogger):
    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        raise ConnectionError("no route to host")


def test_a_logger_that_raises_is_told_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "test_logger"):
        train(tmp_path, [Broken(tmp_path / "broken"), CSVLogger(tmp_path / "good")])
    assert [text for text in caplog.messages if "metrics" in text] == [
        "Broken did not take the straggler metrics (ConnectionError: no route to host): they are missing there. "
        "Training continues"
    ]
    assert straggler(of_csv(tmp_path / "good")).keys() == NAMES
