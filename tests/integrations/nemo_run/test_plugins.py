"""What the plugins do to a task and its executor, and what they refuse."""

from __future__ import annotations

import logging
import signal
from typing import Any

import fiddle
import lightning.pytorch as pl
import nemo_run as run
import pytest

from holdfast.integrations.nemo_run import (
    FaultToleranceLauncher,
    FaultTolerancePlugin,
    PreemptionPlugin,
    straggler_det_callback_config,
)
from holdfast.ptl_resiliency import (
    FaultToleranceCallback,
    FaultToleranceSectionsCallback,
    PreemptionCallback,
    StragglerDetectionCallback,
)
from holdfast.ptl_resiliency.recipes import straggler_det_callback
from tests.integrations.nemo_run.job_scripts import executor, script_for
from tests.integrations.nemo_run.lightning_training import train


class Log:
    def __init__(self, log_dir: str) -> None:
        self.log_dir = log_dir


def train_with_log(trainer: pl.Trainer, log: Log) -> None:
    """Like NeMo's recipes."""


def task(**trainer: Any) -> Any:
    return run.Partial(train, trainer=run.Config(pl.Trainer, **trainer), folder="", faults=[])


def test_fault_tolerance_as_documented() -> None:
    where, what = executor(), task()
    FaultTolerancePlugin().setup(what, where)
    assert isinstance(where.launcher, FaultToleranceLauncher)
    assert isinstance(where.launcher, run.FaultTolerance)
    assert (where.launcher.max_restarts, where.retries) == (3, 2)
    assert where.launcher.initial_rank_heartbeat_timeout == 1800
    assert where.launcher.rank_heartbeat_timeout == 300
    (callback,) = what.trainer.callbacks
    assert callback.__fn_or_cls__ is FaultToleranceCallback
    assert (callback.autoresume, callback.calculate_timeouts, callback.exp_dir) == (True, True, None)


def test_a_recipe_with_a_log_keeps_the_limits_beside_it() -> None:
    what = run.Partial(train_with_log, trainer=run.Config(pl.Trainer), log=run.Config(Log, log_dir="/logs"))
    FaultTolerancePlugin().setup(what, executor())
    assert what.trainer.callbacks[0].exp_dir == "/logs"


def test_callbacks_that_are_there_are_kept_and_none_comes_twice() -> None:
    mine = run.Config(FaultToleranceCallback, autoresume=True, calculate_timeouts=False)
    other = run.Config(pl.callbacks.EarlyStopping, monitor="loss")
    what = task(callbacks=[mine, other])
    for plugin in (FaultTolerancePlugin(), PreemptionPlugin(), FaultTolerancePlugin(), PreemptionPlugin()):
        plugin.setup(what, executor())
    types = [each.__fn_or_cls__ for each in what.trainer.callbacks]
    assert types == [FaultToleranceCallback, pl.callbacks.EarlyStopping, PreemptionCallback]
    assert what.trainer.callbacks[0] == mine


@pytest.mark.parametrize("none", [{}, {"callbacks": None}, {"callbacks": []}])
def test_a_trainer_without_callbacks_gets_a_list(none: dict[str, Any]) -> None:
    what = task(**none)
    PreemptionPlugin().setup(what, executor())
    assert [each.__fn_or_cls__ for each in what.trainer.callbacks] == [PreemptionCallback]


def test_elsewhere_than_on_slurm_ranks_are_restarted_and_nothing_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    local, what = run.LocalExecutor(), task()
    with caplog.at_level(logging.WARNING):
        FaultTolerancePlugin().setup(what, local)
    assert "FaultTolerancePlugin is made for Slurm: LocalExecutor has no job script" in caplog.text
    assert what.trainer.callbacks[0].autoresume is False
    assert local.launcher.max_restarts == 3


def test_section_limits() -> None:
    where, what = executor(), task()
    plugin = FaultTolerancePlugin(
        rank_section_timeouts={"setup": 600, "step": 180.5, "checkpointing": None},
        rank_out_of_section_timeout=90,
        rank_heartbeat_timeout=None,
    )
    plugin.setup(what, where)
    assert where.env_vars["PET_FT_RANK_SECTION_TIMEOUTS"] == "setup:600.0,step:180.5,checkpointing:None"
    assert where.env_vars["PET_FT_RANK_OUT_OF_SECTION_TIMEOUT"] == "90.0"
    assert where.env_vars["PET_FT_RANK_HEARTBEAT_TIMEOUT"] == "None"
    assert [each.__fn_or_cls__ for each in what.trainer.callbacks] == [FaultToleranceSectionsCallback]


def test_the_rendezvous_of_a_launcher_that_is_there_stays() -> None:
    where = executor(launcher=run.Torchrun(rdzv_port=29777, rdzv_id=5))
    FaultTolerancePlugin().setup(task(), where)
    assert (where.launcher.rdzv_port, where.launcher.rdzv_id) == (29777, 5)


def test_what_the_user_has_set_stays() -> None:
    srun_args = ["--kill-on-bad-exit=1", "--wait=30"]
    where = executor(env_vars={"PET_FT_RESTARTS_RESET_ON_PROGRESS": "0"}, srun_args=list(srun_args))
    FaultTolerancePlugin().setup(task(), where)
    assert where.env_vars["PET_FT_RESTARTS_RESET_ON_PROGRESS"] == "0"
    assert where.srun_args == srun_args


@pytest.mark.parametrize("first", ["nsys", "ft"])
@pytest.mark.usefixtures("nemo_home")
def test_nsys_is_refused_whichever_plugin_comes_first(first: str) -> None:
    class Nsys(run.Plugin):
        """As NeMo's: it asks for a profile by the launcher."""

        def setup(self, task: Any, executor: Any) -> None:
            executor.get_launcher().nsys_profile = True

    plugins = [Nsys(), FaultTolerancePlugin()]
    with pytest.raises(ValueError, match=r"Nsys not supported with the FaultTolerancePlugin\."):
        script_for(task(), plugins if first == "nsys" else plugins[::-1])


def test_a_plugin_that_has_asked_for_the_launcher_before_changes_nothing() -> None:
    where = executor(launcher="torchrun")
    where.get_launcher()
    FaultTolerancePlugin().setup(task(), where)
    assert where.get_launcher().finished_flag_file
    assert (where.nproc_per_node(), where.ntasks_per_node) == (2, 1)


def test_preemption_as_documented() -> None:
    where, what = executor(), task()
    PreemptionPlugin().setup(what, where)
    assert where.signal == "15@60"
    assert what.trainer.callbacks[0].sig == signal.SIGTERM
    where, what = executor(), task()
    own = run.Config(pl.callbacks.LambdaCallback)
    PreemptionPlugin(preempt_time=120, sig=signal.SIGUSR1, callbacks=[own]).setup(what, where)
    assert (where.signal, what.trainer.callbacks) == ("10@120", [own])
    local = run.LocalExecutor()
    PreemptionPlugin().setup(task(), local)
    assert not hasattr(local, "signal")


def test_a_script_gets_the_launcher_and_no_callback(caplog: pytest.LogCaptureFixture) -> None:
    script, where = run.Script(path="train.py", entrypoint="python"), executor()
    with caplog.at_level(logging.WARNING):
        FaultTolerancePlugin().setup(script, where)
        PreemptionPlugin().setup(script, where)
    assert isinstance(where.launcher, FaultToleranceLauncher)
    assert where.signal is None
    assert "FaultTolerancePlugin adds no callback to a run.Script" in caplog.text
    assert "executor.signal = '15@60'" in caplog.text


@pytest.mark.parametrize(
    ("plugin", "words"),
    [
        (FaultTolerancePlugin(num_in_job_restarts=-1), "num_in_job_restarts must be a .* of at least 0"),
        (FaultTolerancePlugin(num_job_retries_on_failure=True), "num_job_retries_on_failure must be"),
        (FaultTolerancePlugin(max_unfinished_jobs=0), "max_unfinished_jobs must be a .* of at least 1"),
        (FaultTolerancePlugin(rank_heartbeat_timeout=0), "rank_heartbeat_timeout=0: give a number of"),
        (FaultTolerancePlugin(rank_section_timeouts={"step": -1}), "section 'step' has -1"),
        (PreemptionPlugin(preempt_time=0), "preempt_time must be a whole number of at least 1"),
        (PreemptionPlugin(sig=0), "sig must be a signal"),
    ],
)
def test_settings_that_are_none_are_named(plugin: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        plugin.setup(task(), executor())


def test_a_task_without_a_trainer_is_named() -> None:
    with pytest.raises(ValueError, match="this task has none"):
        FaultTolerancePlugin().setup(run.Partial(signal.alarm), executor())


def test_the_straggler_recipe_as_a_config() -> None:
    built = fiddle.build(straggler_det_callback_config(stop_if_detected_straggler=False))
    plain = straggler_det_callback(stop_if_detected_straggler=False)
    assert isinstance(built, StragglerDetectionCallback)
    assert built._settings == plain._settings
