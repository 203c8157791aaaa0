"""The metrics of straggler reports reach every logger of the trainer, and a logger cannot end the training."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from holdfast.ptl_resiliency import StragglerDetectionCallback
from holdfast.ptl_resiliency.framework import TrainerLoggers
from holdfast.straggler import Detector
from tests.ptl_resiliency.small import At, Small, trainer
from tests.ptl_resiliency.written_metrics import Values, of_csv, of_tensorboard

pytestmark = pytest.mark.filterwarnings("ignore")

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


def test_csv_and_tensorboard_at_once(tmp_path: Path) -> None:
    train(tmp_path, [CSVLogger(tmp_path / "csv"), TensorBoardLogger(tmp_path / "board")])
    written, events = straggler(of_csv(tmp_path / "csv")), straggler(of_tensorboard(tmp_path / "board"))
    assert written.keys() == events.keys() == NAMES
    steps = [step for step, _ in written["section_relative_perf/min"]]
    # Lightning counts from 0. A report is left out where the one before is not made yet, but never the last.
    assert (steps[0], steps[-1]) == (16, 39) and steps == sorted(set(steps))
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


def test_gpu_metrics_by_their_documented_names(tmp_path: Path) -> None:
    names = [f"gpu_{kind}_perf/{part}" for kind in ("relative", "individual") for part in ("min", "max")]
    loggers = TrainerLoggers(logging.getLogger("test_logger"))
    give = At(3, lambda trainer: loggers.of_this_step(trainer)(dict.fromkeys(names, 0.5)))
    both = [CSVLogger(tmp_path / "csv"), TensorBoardLogger(tmp_path / "board")]
    trainer(tmp_path, give, logger=both).fit(Small())
    for values in (of_csv(tmp_path / "csv"), of_tensorboard(tmp_path / "board")):
        assert {name: values[name] for name in names} == {name: [(2, 0.5)] for name in names}
