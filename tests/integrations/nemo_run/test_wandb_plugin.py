"""What `WandbPlugin` does to a task, what it writes, and what it refuses."""

from __future__ import annotations

import logging
import signal
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import nemo_run as run
import pytest
from lightning.pytorch.loggers import WandbLogger

from holdfast.integrations.nemo_run import FaultTolerancePlugin, PreemptionPlugin, WandbPlugin
from tests.integrations.nemo_run.job_scripts import executor, script_for
from tests.integrations.nemo_run.lightning_training import train

KEY = "0123456789abcdef0123456789abcdef01234567"


class Log:
    def __init__(self, wandb: Any = None) -> None:
        self.wandb = wandb


def train_with_log(trainer: pl.Trainer, log: Log) -> None:
    """Like NeMo's recipes."""


def logger(name: str, **fields: Any) -> Any:
    return run.Config(WandbLogger, project="mine", name=name, **fields)


MADE: list[Any] = []


def kept(name: str) -> Any:
    """At the top level: NeMo-Run imports it by its name."""
    MADE.append(logger(name))
    return MADE[-1]


def plugin(**fields: Any) -> WandbPlugin:
    return WandbPlugin(**{"name": "char", "logger_fn": logger, **fields})


def task() -> Any:
    return run.Partial(train, trainer=run.Config(pl.Trainer, max_steps=7), folder="", faults=[])


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)


def test_the_logger_of_a_recipe_with_a_log() -> None:
    what = run.Partial(train_with_log, trainer=run.Config(pl.Trainer), log=run.Config(Log))
    plugin().setup(what, executor())
    made = what.log.wandb
    assert (made.__fn_or_cls__, made.project, made.name) == (WandbLogger, "mine", "char")
    assert what.trainer.logger is None


def test_the_logger_of_a_task_that_has_only_a_trainer() -> None:
    what = task()
    plugin().setup(what, executor())
    assert what.trainer.logger.config["trainer"]["max_steps"] == 7
    what = task()
    plugin(log_task_config=False).setup(what, executor())
    assert not hasattr(what.trainer.logger, "config")


def test_it_logs_a_task_that_another_plugin_has_changed() -> None:
    what = task()
    for each in (FaultTolerancePlugin(), PreemptionPlugin(), plugin()):
        each.setup(what, executor())
    fault_tolerance, preemption = what.trainer.logger.config["trainer"]["callbacks"]
    assert preemption["sig"] == 15 and fault_tolerance["autoresume"] is True


def test_a_task_that_yaml_cannot_hold_is_trained_without_its_configuration(
    caplog: pytest.LogCaptureFixture,
) -> None:
    what = task()
    what.faults = [signal.SIGTERM]
    ours = logging.getLogger("holdfast")
    ours.addHandler(caplog.handler)  # NeMo-Run may replace the handlers of the root logger meanwhile
    try:
        plugin().setup(what, executor())
    finally:
        ours.removeHandler(caplog.handler)
    assert what.trainer.logger.id and not hasattr(what.trainer.logger, "config")
    assert "The task's configuration is not logged to wandb, since YAML cannot hold it:" in caplog.text


def test_each_job_has_a_run_of_its_own_unless_the_user_names_one() -> None:
    first, second = task(), task()
    plugin().setup(first, executor())
    plugin().setup(second, executor())
    assert first.trainer.logger.id and first.trainer.logger.id != second.trainer.logger.id
    mine = task()
    plugin(logger_fn=lambda name: logger(name, id="mine")).setup(mine, executor())
    assert mine.trainer.logger.id == "mine"
    mine = task()
    plugin(logger_fn=lambda name: logger(name, version="v1")).setup(mine, executor())
    assert mine.trainer.logger.id is None


def test_the_key_is_in_no_file_and_the_run_is_kept(nemo_home: Path) -> None:
    """What a requeued attempt starts from is what NeMo-Run has written: the id has to be in it."""
    script = script_for(task(), [FaultTolerancePlugin(), plugin(logger_fn=kept)])
    files = [path for path in script.parent.rglob("*") if path.is_file()]
    assert script in files
    assert not [path for path in files if KEY.encode() in path.read_bytes()]
    assert "--export" not in script.read_text()  # the job gets the environment of who submits
    assert len(MADE) == 1 and MADE[0].id


def test_a_key_that_would_be_written_is_refused() -> None:
    with pytest.raises(ValueError, match="would be written into the job script"):
        plugin().setup(task(), executor(env_vars={"WANDB_API_KEY": KEY}))


def test_without_a_key_and_for_a_script_there_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        plugin().setup(run.Script(path="train.py", entrypoint="python"), executor())
        monkeypatch.delenv("WANDB_API_KEY")
        plugin().setup(task(), run.LocalExecutor())
    assert "WandbPlugin changes nothing for a run.Script" in caplog.text
    assert "WANDB_API_KEY is not set" in caplog.text


def test_a_task_without_a_place_for_a_logger_is_named() -> None:
    with pytest.raises(ValueError, match="this has none"):
        plugin().setup(run.Partial(print), executor())
