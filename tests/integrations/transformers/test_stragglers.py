"""Straggler reports of a Trainer, and the three callbacks in one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from holdfast.in_time import UnderWay
from holdfast.integrations.transformers import (
    HoldfastCallback,
    PreemptionCallback,
    StragglerDetectionCallback,
)
from holdfast.straggler import Detector
from tests.processes import Spawner

from .conftest import Ranked
from .small import Doing, said, trainer

PROGRAM = Path(__file__).parent / "programs" / "slow_rank.py"
ROOT = Path(__file__).resolve().parents[3]


def test_reports_are_made_and_the_trainer_is_as_it_was(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "nemo_logger.StragglerDetectionCallback")
    made = trainer(
        tmp_path, [StragglerDetectionCallback(0)], max_steps=40, logging_strategy="steps", logging_steps=1
    )
    made.train()
    assert said(caplog, "Section individual performance (training_step)")
    assert any("section_individual_perf/min" in line for line in made.state.log_history)
    assert sum("loss" in line for line in made.state.log_history) == 40
    assert "compute_loss" not in vars(made) and not Detector.initialized


@pytest.mark.parametrize("stops_at_epoch_end", [False, True])
def test_loggers_that_have_ended_get_no_metrics(
    stops_at_epoch_end: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first report is still being made when the training ends: that is known in the last step, or only later."""
    monkeypatch.setattr(UnderWay, "is_done", False)

    def stop() -> None:
        made.control.should_training_stop = stops_at_epoch_end

    made = trainer(
        tmp_path, [StragglerDetectionCallback(0)], {"on_epoch_end 20": stop}, max_steps=40, num_train_epochs=2
    )
    made.train()
    seen = next(each.seen for each in made.callback_handler.callbacks if isinstance(each, Doing))
    assert seen[-1] == f"on_train_end {20 if stops_at_epoch_end else 40}"
    has_metrics = any("section_individual_perf/min" in line for line in made.state.log_history)
    assert has_metrics is not stops_at_epoch_end


def test_what_fails_in_the_metrics_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = trainer(tmp_path, [StragglerDetectionCallback(0)], max_steps=60)
    log = made.log

    def failing(logs: dict[str, float], *rest: object) -> None:
        if any("perf" in name for name in logs):
            raise OSError("no network")
        log(logs, *rest)  # type: ignore[arg-type]

    made.log = failing  # type: ignore[method-assign]
    made.train()
    assert made.state.global_step == 60 and said(caplog, "no network") == 1


def test_a_stop_saves_and_exits_with_1(tmp_path: Path) -> None:
    callback = StragglerDetectionCallback(
        0, gpu_individual_perf_threshold=9.0, stop_if_detected=True, stop_on="scores"
    )
    made = trainer(tmp_path, [callback], max_steps=200)
    with pytest.raises(SystemExit) as end:
        made.train()
    assert end.value.code == 1 and made.state.global_step < 200
    assert (tmp_path / f"checkpoint-{made.state.global_step}" / "trainer_state.json").exists()


def test_the_bundle_adds_what_is_not_there_for_one_training(tmp_path: Path, ranked: Ranked) -> None:
    ranked()
    seen = list[list[str]]()
    own = PreemptionCallback()
    deeds = {"on_train_begin 0": lambda: seen.append([type(each).__name__ for each in handler.callbacks])}  # type: ignore[has-type]
    made = trainer(tmp_path, [HoldfastCallback(), own], deeds)
    handler = made.callback_handler
    made.train()
    for name in ("FaultToleranceCallback", "PreemptionCallback", "StragglerDetectionCallback"):
        assert seen[0].count(name) == 1
    assert len(handler.callbacks) == len(seen[0]) - 2


@pytest.mark.slow
def test_the_slow_rank_of_three_is_named(spawn: Spawner, tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "holdfast.fault_tolerance.launcher", "--nproc-per-node=3"]
    env = {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "HF_HUB_OFFLINE": "1"}
    job = spawn([*launcher, f"--ft-run-dir={tmp_path}/run", str(PROGRAM), str(tmp_path)], env=env)
    assert job.wait(120) == 1, job.output()[-3000:]
    assert "The job ends for rank 1" in job.output(), job.output()[-3000:]
