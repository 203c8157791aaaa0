"""The errors of a wrong start."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from holdfast.callbacks.supervision import Supervision
from holdfast.fault_tolerance import (
    FaultToleranceConfig,
    RankMonitorClient,
    RankMonitorClientError,
)
from holdfast.fault_tolerance.board import Board
from holdfast.ptl_resiliency import FaultToleranceCallback, FaultToleranceSectionsCallback
from tests.processes import Spawner

from .small import TinyModel, trainer

KINDS = [FaultToleranceCallback, FaultToleranceSectionsCallback]
BOTH = pytest.mark.parametrize("kind", KINDS, ids=["heartbeats", "sections"])
PREFIX = "[FaultToleranceCallback@rank0] "


@BOTH
def test_the_folder_is_made_below_the_trainers_own_or_said_to_be_missing(
    kind: type[Any], ranked: Board, tmp_path: Path
) -> None:
    trainer(tmp_path, kind(False, True), max_steps=1).fit(TinyModel())
    assert (tmp_path / "ft_state").is_dir()
    (tmp_path / "file").touch()
    callback = kind(False, True, exp_dir=tmp_path / "file" / "state")
    job = trainer(tmp_path, callback, max_steps=1)
    with pytest.raises(
        ValueError,
        match=f"save directory does not exist: {tmp_path}/file/state \\(and cannot be made: Not a dir",
    ):
        job.fit(TinyModel())
    assert Supervision._current is None and "teardown" not in vars(job.strategy)


@BOTH
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"autoresume": "no"}, "autoresume must be True or False, not 'no'"),
        ({"calculate_timeouts": None}, "calculate_timeouts must be True or False, not None"),
        ({"exp_dir": 3}, "exp_dir must be a folder's path or None, not 3"),
    ],
)
def test_wrong_arguments_are_told_at_once(kind: type[Any], wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        kind(**{"autoresume": False, "calculate_timeouts": True, **wrong})


def test_a_policy_is_a_function() -> None:
    with pytest.raises(ValueError, match="exc_handling_policy must be a function of the exception or None"):
        FaultToleranceSectionsCallback(False, True, exc_handling_policy="x")  # type: ignore[arg-type]


@BOTH
def test_without_a_launcher_the_error_says_what_to_run(
    kind: type[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FT_RANK_MONITOR_IPC_SOCKET", raising=False)
    monkeypatch.delenv("FAULT_TOL_FINISHED_FLAG_FILE", raising=False)
    monkeypatch.setattr("sys.argv", ["/a/path/train.py"])
    with pytest.raises(RuntimeError) as error:
        trainer(tmp_path, kind(False, True)).fit(TinyModel())
    assert str(error.value) == (
        f"{kind.__name__} needs ft_launcher, which watches over the ranks, and this program was started without it "
        "(FT_RANK_MONITOR_IPC_SOCKET is not set). Run `ft_launcher --nproc-per-node=N train.py` with N ranks on this "
        "node, in place of `python train.py` or torchrun; or take the callback out of the trainer."
    )
    with pytest.raises(
        RuntimeError, match=r"FINISHED_FLAG_FILE' env variable is not set.*ft_launcher --nproc"
    ):
        trainer(tmp_path, kind(True, True)).fit(TinyModel())


def test_a_flag_that_cannot_be_made_fails_nothing(
    ranked: Board,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("FAULT_TOL_FINISHED_FLAG_FILE", str(tmp_path / "missing" / "flag"))
    callback = FaultToleranceCallback(True, True, exp_dir=tmp_path)
    trainer(tmp_path, callback, max_steps=3).fit(TinyModel())
    assert any("the finished flag" in line and "cannot be created" in line for line in caplog.messages)


class TestNoLimits:
    @pytest.fixture
    def config(self) -> FaultToleranceConfig:
        return FaultToleranceConfig(initial_rank_heartbeat_timeout=None, rank_heartbeat_timeout=None)

    def test_there_must_be_limits_or_a_way_to_learn_them(
        self, ranked: Board, caplog: pytest.LogCaptureFixture, tmp_path: Path
    ) -> None:
        with pytest.raises(RuntimeError) as error:
            trainer(tmp_path, FaultToleranceCallback(False, False)).fit(TinyModel())
        assert str(error.value) == (
            "Fault tolerance doesn't have valid timeouts set and 'calculate_timeouts' is False."
        )
        with caplog.at_level(logging.INFO):
            job = trainer(tmp_path, FaultToleranceCallback(False, True), max_steps=1)
            job.fit(TinyModel())
        assert f"{PREFIX}Fault tolerance client initialized. Timeouts: not calculated yet." in caplog.messages

    def test_the_sections_must_have_limits(self, ranked: Board, tmp_path: Path) -> None:
        with pytest.raises(ValueError) as error:
            trainer(tmp_path, FaultToleranceSectionsCallback(False, True)).fit(TinyModel())
        assert str(error.value) == (
            "rank_section_timeouts should contain {'checkpointing', 'setup', 'step'} entries, and nothing else; it has "
            "none. Give ft_launcher the limits in seconds, for example "
            "--ft-rank-section-timeouts=setup:600,step:180,checkpointing:420"
        )
        assert Supervision._current is None


def test_a_client_of_the_programs_own_is_an_error(ranked: Board, tmp_path: Path) -> None:
    client = RankMonitorClient()
    client.init_workload_monitoring()
    with pytest.raises(RankMonitorClientError, match="another RankMonitorClient of this process"):
        trainer(tmp_path, FaultToleranceCallback(False, True)).fit(TinyModel())
    client.shutdown_workload_monitoring()


@BOTH
def test_autoresume_true_without_its_variable_is_one_line(
    kind: type[Any],
    ranked: Board,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    """Rank 0 logs it; the exception ends a rank with 1 and shows no traceback."""
    monkeypatch.setenv("FAULT_TOL_FINISHED_FLAG_FILE", "")
    with pytest.raises(SystemExit) as ended:
        trainer(tmp_path, kind(True)).fit(TinyModel())
    assert ended.value.code == 1 and isinstance(ended.value, RuntimeError)
    assert "env variable is not set. Was this job launched with FT launcher?" in str(ended.value)
    assert caplog.messages.count(PREFIX + str(ended.value)) == 1


@BOTH
@pytest.mark.parametrize("named", [True, False])
def test_by_default_the_flag_is_made_where_the_variable_is_set(
    kind: type[Any],
    named: bool,
    ranked: Board,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FAULT_TOL_FINISHED_FLAG_FILE", str(tmp_path / "flag") if named else "")
    trainer(tmp_path, kind(), max_steps=1).fit(TinyModel())
    assert (tmp_path / "flag").exists() == named


# -- the callbacks with `pytorch_lightning`, and with both names of Lightning in one process


PROGRAM = Path(__file__).resolve().parent / "programs" / "either_lightning.py"


@pytest.mark.slow
@pytest.mark.parametrize(
    "names", [["pytorch_lightning"], ["lightning.pytorch", "pytorch_lightning"]], ids=len
)
def test_either_lightning(names: list[str], ranked: Board, spawn: Spawner, tmp_path: Path) -> None:
    """In a process of its own, as this one has loaded `lightning`; it finds the board where a rank does."""
    job = spawn.python(
        PROGRAM, str(tmp_path / "out"), *names, env={"FAULT_TOL_FINISHED_FLAG_FILE": str(tmp_path / "flag")}
    )
    assert job.wait() == 0, job.output()[-4000:]
    (line,) = (line for line in job.out().splitlines() if line.startswith("{"))
    told = json.loads(line)
    assert told.pop("loaded") == sorted(name.partition(".")[0] for name in names)
    assert sorted(told) == sorted(names)
    checkpoints = 0
    for name in names:
        # Stopped early after three epochs of ten: complete.
        assert (told[name]["bases"], told[name]["step"], told[name]["flag"]) == (True, 30, True)
        assert told[name]["checkpoints"] >= checkpoints + 6
        checkpoints = told[name]["checkpoints"]
