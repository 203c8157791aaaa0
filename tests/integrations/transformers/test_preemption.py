"""A training that is asked to stop, or has a straggler: what it leaves, how it ends, how the next start resumes."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file
from transformers import Trainer

from holdfast.in_time import UnderWay
from holdfast.integrations.transformers import (
    HoldfastCallback,
    PreemptionCallback,
    StragglerDetectionCallback,
)
from holdfast.integrations.transformers.checkpoints import MARK
from holdfast.integrations.transformers.training import EVALUATION_TO_COME
from holdfast.straggler import Detector
from tests import preloading
from tests.processes import Spawned, Spawner

from .conftest import Ranked
from .small import IS_4_46, LOADS_TO_CPU_0, VERSION, Doing, said, trainer, weights


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
    evaluations = (entry for entry in made.state.log_history if "eval_loss" in entry)
    return [(entry["step"], round(entry["eval_loss"], 12)) for entry in evaluations]


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


def test_an_epoch_ends_before_the_evaluation_that_is_due_at_its_last_step(tmp_path: Path) -> None:
    """No further start would call the hooks of its end."""
    changes = {"eval_steps": 10, "num_train_epochs": 2}
    ended: list[int] = []
    stopped = trainer(
        tmp_path,
        [PreemptionCallback()],
        {"on_step_begin 19": term, "on_epoch_end 20": lambda: ended.append(20)},
        **changes,
    )
    with pytest.raises(SystemExit):
        stopped.train(resume_from_checkpoint=True)
    assert ended == [20]
    alone = trainer(tmp_path / "alone", **changes)
    alone.train()
    assert metrics(resumed(tmp_path, **changes)) == metrics(alone)


@pytest.mark.skipif(IS_4_46, reason="4.46 loses the best step")
def test_the_best_checkpoint_may_be_that_of_the_last_evaluation_which_was_cut_short(tmp_path: Path) -> None:
    """No other checkpoint follows, with which the trainer would note it."""
    changes = {"eval_strategy": "epoch", "save_strategy": "epoch", "num_train_epochs": 2}
    changes |= {"load_best_model_at_end": True, "save_total_limit": 1}
    alone = trainer(tmp_path / "alone", **changes)
    alone.train()
    assert Path(str(alone.state.best_model_checkpoint)).name == "checkpoint-40"
    preempted(tmp_path / "cut", "on_prediction_step 40", **changes)
    again = resumed(tmp_path / "cut", **changes)
    assert Path(str(again.state.best_model_checkpoint)).name == "checkpoint-40"
    assert weights(again) == weights(alone) and "checkpoint-40" in checkpoints(tmp_path / "cut")


def test_a_preemption_saves_the_optimizer_whatever_other_checkpoints_have(tmp_path: Path) -> None:
    changes = {"save_only_model": True, "warmup_steps": 5, "num_train_epochs": 2}
    preempted(tmp_path / "cut", "on_step_begin 6", **changes)
    assert weights(resumed(tmp_path / "cut", **changes)) == undisturbed(tmp_path / "alone", **changes)


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


# -- straggler reports of a Trainer, and the three callbacks in one


PROGRAM = Path(__file__).parent / "programs" / "slow_rank.py"
ROOT = Path(__file__).resolve().parents[3]


def test_reports_are_made_and_the_trainer_is_as_it_was(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "nemo_logger.StragglerDetectionCallback")
    logs = {"logging_strategy": "steps", "logging_steps": 1}
    made = trainer(tmp_path, [StragglerDetectionCallback(0)], max_steps=40, **logs)
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

    deeds, changes = {"on_epoch_end 20": stop}, {"max_steps": 40, "num_train_epochs": 2}
    made = trainer(tmp_path, [StragglerDetectionCallback(0)], deeds, **changes)
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
    stops = {"gpu_individual_perf_threshold": 9.0, "stop_if_detected": True, "stop_on": "scores"}
    made = trainer(tmp_path, [StragglerDetectionCallback(0, **stops)], max_steps=200)
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
def test_a_slow_rank_is_named(spawn: Spawner, tmp_path: Path) -> None:
    command = [*LAUNCHER, "--nproc-per-node=2", f"--ft-run-dir={tmp_path}/run", PROGRAM, tmp_path]
    job = spawn(command, env={**QUIET, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"})
    assert job.wait(240) == 1, job.output()[-3000:]
    assert "slower on some ranks. Affected ranks: {StragglerId(rank=1, " in job.output(), job.output()[-3000:]


# -- the example under ft_launcher on two ranks: killed, preempted, resumed, with the same weights


EXAMPLES = ROOT / "examples" / "transformers"
SCRIPT, LOOP = EXAMPLES / "train.py", EXAMPLES / "accelerate_loop.py"
TWICE = Path(__file__).parent / "programs" / "and_undisturbed.py"
LAUNCHER = [sys.executable, "-m", "holdfast.fault_tolerance.launcher"]
QUIET = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src"), "HF_HUB_OFFLINE": "1"}
STEPS = 105
PAUSE = "0.1"
"""Seconds after each step of a job that is disturbed: a busy machine may send a signal late."""
SCHEDULE = [f"--steps={STEPS}", "--save-every=15"]


def job(spawn: Spawner, script: Path, folder: Path, *options: str, pause: str = "0") -> Spawned:
    """One of two ranks; without a pause it trains once more at its end, undisturbed, in a folder beside."""
    launcher = [*LAUNCHER, preloading.TRANSFORMERS, "--nproc-per-node=2", "--max-restarts=1"]
    launcher += [f"--ft-run-dir={folder}-run", *options]
    env = {**QUIET, "FAULT_TOL_FINISHED_FLAG_FILE": f"{folder}.flag", "PAUSE": pause}
    return spawn([*launcher, str(TWICE), str(script), str(folder), *SCHEDULE], env=env)


def rank(launcher: Spawned, number: int) -> psutil.Process:
    """The process that is this rank now."""
    for process in psutil.Process(launcher.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # one that ends meanwhile
            if process.environ().get("RANK") == str(number) and process.name().startswith("python"):
                return process
    raise AssertionError(f"there is no rank {number}")


def complete(folder: Path, step: int) -> bool:
    place = folder / f"checkpoint-{step}"
    return (place / "trainer_state.json").exists() and not (place / "checkpoint-is-incomplete.txt").exists()


def same_weights(folder: Path, file: str) -> bool:
    """As in the folder of the undisturbed training, bit by bit."""
    mine, theirs = (load_file(place / file) for place in (folder, Path(f"{folder}-undisturbed")))
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.mark.slow
@pytest.mark.skipif(
    LOADS_TO_CPU_0, reason=f"transformers {VERSION} loads the optimizer to cpu:0, and torch 2.13 refuses it"
)
def test_a_killed_and_a_preempted_job_end_with_the_weights_of_an_undisturbed_one(
    spawn: Spawner, tmp_path: Path
) -> None:
    """SIGTERM goes to one rank only: transformers' own checkpoint on a signal hangs then."""
    folder = tmp_path / "run"
    first = job(spawn, SCRIPT, folder, "--ft-preempted-exit-code=75", pause=PAUSE)
    first.wait_for(lambda: complete(folder, 15), 150)
    rank(first, 1).kill()
    first.wait_for(r"the training resumes from .*checkpoint-\d+", 150)
    before = newest_step(folder)
    first.wait_for(lambda: newest_step(folder) > before, 150)  # it trains again
    rank(first, 1).send_signal(signal.SIGTERM)
    assert first.wait(150) == 75, first.output()[-3000:]
    assert "Received signal 15, initiating graceful stop" in first.output()
    assert "Preemption detected, saving checkpoint and exiting" in first.output()
    stopped = newest_step(folder)
    assert complete(folder, stopped) and not (tmp_path / "run.flag").exists()

    second = job(spawn, SCRIPT, folder)
    assert second.wait(150) == 0, second.output()[-3000:]
    assert f"the training resumes from {folder}/checkpoint-{stopped}" in second.output()
    assert (tmp_path / "run.flag").exists()
    assert same_weights(folder, "final/model.safetensors")


@pytest.mark.slow
@pytest.mark.variant
def test_an_accelerate_loop_that_is_preempted_ends_with_the_weights_of_an_undisturbed_one(
    spawn: Spawner, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    first = job(spawn, LOOP, folder, "--ft-preempted-exit-code=75", pause=PAUSE)
    first.wait_for(lambda: (folder / "step-15").exists(), 150)
    launcher = psutil.Process(first.pid)
    for process in [*launcher.children(recursive=True), launcher]:  # as Slurm does: everybody at once
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGTERM)
    assert first.wait(150) == 75, first.output()[-3000:]
    assert "preempted: the checkpoint of step" in first.output()
    second = job(spawn, LOOP, folder)
    assert second.wait(150) == 0, second.output()[-3000:]
    assert f"the training resumes from {folder}/step-" in second.output()
    assert same_weights(folder, f"step-{STEPS}/model.safetensors")


def newest_step(folder: Path) -> int:
    return max((int(path.name.partition("-")[2]) for path in folder.glob("checkpoint-*")), default=0)
