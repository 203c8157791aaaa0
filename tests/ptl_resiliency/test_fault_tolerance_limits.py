"""Limits from job to job, the errors of a wrong start, and what a policy asks for."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest

from holdfast.fault_tolerance import (
    FaultToleranceConfig,
    RankMonitorClient,
    RankMonitorClientError,
    WorkloadAction,
    WorkloadControlRequest,
)
from holdfast.fault_tolerance.board import Board
from holdfast.ptl_resiliency import FaultToleranceCallback, FaultToleranceSectionsCallback
from holdfast.ptl_resiliency.supervision import Supervision

from .conftest import TinyModel, saving

KINDS = [FaultToleranceCallback, FaultToleranceSectionsCallback]
BOTH = pytest.mark.parametrize("kind", KINDS, ids=["heartbeats", "sections"])
PREFIX = "[FaultToleranceCallback@rank0] "


def fit(callbacks: list[Any], quiet: dict[str, Any], **arguments: Any) -> Any:
    """A fit of 30 steps that saves every 5."""
    ckpt_path = arguments.pop("ckpt_path", None)
    saved = saving(Path(quiet["default_root_dir"]) / "saved")
    trainer = pl.Trainer(
        callbacks=[*callbacks, saved], **{"max_steps": 30, **quiet, **arguments, "enable_checkpointing": True}
    )
    trainer.fit(TinyModel(), ckpt_path=ckpt_path)
    return trainer


def test_heartbeat_limits_of_one_job_bind_in_the_next(
    ranked: Board,
    quiet: dict[str, Any],
    checkpoint: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = tmp_path / "_ft_state.json"
    with caplog.at_level(logging.INFO, "nemo_logger.FaultToleranceCallback"):
        fit([FaultToleranceCallback(False, True, exp_dir=tmp_path)], quiet, ckpt_path=str(checkpoint))
        learned = json.loads(path.read_text())["current_timeouts"]["heartbeat"]
        first, caplog.records[:] = list(caplog.messages), []
        fit([FaultToleranceCallback(False, True, exp_dir=str(tmp_path))], quiet)
    assert json.loads(path.read_text()) == {"current_timeouts": {"heartbeat": learned}}  # nothing was loaded
    limits = ranked.snapshot().limits
    assert [limits.initial, limits.subsequent] == [learned["initial"], learned["subsequent"]]
    shown = f"heartbeat limits: initial {learned['initial']:.2f} s (learned), subsequent {learned['subsequent']:.2f} s"
    configured = "heartbeat limits: initial 3600.00 s, subsequent 2700.00 s"
    assert [line for line in first if "FaultTol" in line] == [
        f"{PREFIX}Fault tolerance dir: {tmp_path}",
        f"{PREFIX}Fault tolerance client initialized. Timeouts: {configured}",
        f"{PREFIX}Updating FT timeouts...",
        f"{PREFIX}Updated FT timeouts. New values: {shown} (learned)",
    ]
    assert [line for line in caplog.messages if "FaultTol" in line] == [
        f"{PREFIX}Fault tolerance dir: {tmp_path}",
        f"{PREFIX}Fault tolerance timeouts loaded: {shown} (learned)",
        f"{PREFIX}Fault tolerance client initialized. Timeouts: {shown} (learned)",
        f"{PREFIX}The FT timeouts are not updated: no checkpoint was loaded",
    ]


def test_what_is_said_while_section_limits_are_learned(
    ranked: Board,
    quiet: dict[str, Any],
    checkpoint: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO, "nemo_logger.FaultToleranceCallback"):
        fit([FaultToleranceSectionsCallback(False, True, exp_dir=tmp_path)], quiet, max_steps=8)
    said = [line.removeprefix(PREFIX) for line in caplog.messages if PREFIX in line]
    assert [re.sub("section limits: .*", "…", line) for line in said] == [
        f"Fault tolerance dir: {tmp_path}",
        "Fault tolerance client initialized. Timeouts: …",
        # after the checkpoint of step 5
        "Can't update the setup section timeout until persistent checkpoint is loaded",
        "Need to see more training iterations to update the step section timeout",
        "Updating FT timeouts for: ['checkpointing'] update out-of-section: False",
        "Updated FT timeouts. New values: …",
        # the end
        "The out-of-section timeout won't be updated until all FT sections were seen",
        "Updating FT timeouts for: ['checkpointing'] update out-of-section: False",
        "Updated FT timeouts. New values: …",
    ]
    assert ranked.snapshot().limits.sections["setup"] == 600.0


@BOTH
def test_nothing_is_learned_or_loaded_unless_asked(
    kind: type[Any], ranked: Board, quiet: dict[str, Any], checkpoint: Path, tmp_path: Path
) -> None:
    limits = ranked.snapshot().limits
    state = {"current_timeouts": {"heartbeat": {"initial": 1e4, "subsequent": 1e4, "were_calculated": True}}}
    path = tmp_path / kind.TIMEOUTS_FILENAME
    path.write_text(json.dumps(state))
    fit([kind(False, False, exp_dir=tmp_path)], quiet, ckpt_path=str(checkpoint))
    assert ranked.snapshot().limits == limits and json.loads(path.read_text()) == state


@BOTH
@pytest.mark.parametrize("text", ["", "{", '{"current_timeouts": {"heartbeat": {"initial": -1}}}', "[]"])
def test_a_damaged_state_is_left_out(
    kind: type[Any],
    text: str,
    ranked: Board,
    quiet: dict[str, Any],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / kind.TIMEOUTS_FILENAME).write_text(text)
    pl.Trainer(max_steps=1, callbacks=[kind(False, True, exp_dir=tmp_path)], **quiet).fit(TinyModel())
    limits = ranked.snapshot().limits
    assert (limits.initial, limits.subsequent, limits.sections["setup"]) == (3600.0, 2700.0, 600.0)
    damaged = text in ("{", "[]") or ("initial" in text and kind is FaultToleranceCallback)
    assert bool([line for line in caplog.messages if "left out" in line]) == damaged


def test_a_state_of_nvrx_is_loaded(ranked: Board, quiet: dict[str, Any], tmp_path: Path) -> None:
    """As its documents give the format, with what a newer version might add."""
    heartbeat = {"initial": 1000.0, "subsequent": 500.0, "were_calculated": True, "since": "0.9"}
    section = {
        "section": {"setup": 700.0, "step": 90.0, "checkpointing": 80.0},
        "out_of_section": 60.0,
        "calculated_sections": ["setup", "step", "checkpointing"],
        "is_out_of_section_calculated": True,
    }
    (tmp_path / "_ft_state.json").write_text(
        json.dumps({"current_timeouts": {"heartbeat": heartbeat}, "v": 2})
    )
    (tmp_path / "_ft_state_.json").write_text(json.dumps({"current_timeouts": {"section": section}}))
    callbacks = [kind(False, True, exp_dir=tmp_path) for kind in KINDS]
    seen: list[Any] = []
    trainer = pl.Trainer(max_steps=1, callbacks=callbacks, **quiet)
    trainer.fit(TinyModel(lambda trainer, batch_idx: seen.append(ranked.snapshot().limits)))
    (limits,) = seen
    assert (limits.initial, limits.subsequent, limits.out_of_section) == (1000.0, 500.0, 60.0)
    assert limits.sections == section["section"]


@BOTH
def test_the_folder_is_made_below_the_trainers_own_or_said_to_be_missing(
    kind: type[Any], ranked: Board, quiet: dict[str, Any], tmp_path: Path
) -> None:
    pl.Trainer(max_steps=1, callbacks=[kind(False, True)], **quiet).fit(TinyModel())
    assert (tmp_path / "ft_state").is_dir()
    (tmp_path / "file").touch()
    callback = kind(False, True, exp_dir=tmp_path / "file" / "state")
    trainer = pl.Trainer(max_steps=1, callbacks=[callback], **quiet)
    with pytest.raises(ValueError, match=f"save directory does not exist: {tmp_path}/file/state"):
        trainer.fit(TinyModel())
    assert Supervision._current is None and "teardown" not in vars(trainer.strategy)


@BOTH
def test_without_a_launcher_the_error_says_what_to_run(
    kind: type[Any], quiet: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FT_RANK_MONITOR_IPC_SOCKET", raising=False)
    monkeypatch.delenv("FAULT_TOL_FINISHED_FLAG_FILE", raising=False)
    monkeypatch.setattr("sys.argv", ["/a/path/train.py"])
    with pytest.raises(RuntimeError) as error:
        pl.Trainer(callbacks=[kind(False, True)], **quiet).fit(TinyModel())
    assert str(error.value) == (
        f"{kind.__name__} needs ft_launcher, which watches over the ranks, and this program was started without it "
        "(FT_RANK_MONITOR_IPC_SOCKET is not set). Run `ft_launcher --nproc-per-node=N train.py` with N ranks on this "
        "node, in place of `python train.py` or torchrun; or take the callback out of the trainer."
    )
    with pytest.raises(
        RuntimeError, match=r"FINISHED_FLAG_FILE' env variable is not set.*ft_launcher --nproc"
    ):
        pl.Trainer(callbacks=[kind(True, True)], **quiet).fit(TinyModel())


@BOTH
def test_autoresume_needs_its_variable(
    kind: type[Any], ranked: Board, quiet: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAULT_TOL_FINISHED_FLAG_FILE", "")
    with pytest.raises(
        RuntimeError,
        match=r"'FAULT_TOL_FINISHED_FLAG_FILE' env variable is not set\. Was this job launched with FT launcher\?",
    ):
        pl.Trainer(callbacks=[kind(True, True)], **quiet).fit(TinyModel())


def test_a_flag_that_cannot_be_made_fails_nothing(
    ranked: Board,
    quiet: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("FAULT_TOL_FINISHED_FLAG_FILE", str(tmp_path / "missing" / "flag"))
    callback = FaultToleranceCallback(True, True, exp_dir=tmp_path)
    pl.Trainer(max_steps=3, callbacks=[callback], **quiet).fit(TinyModel())
    assert any("the finished flag" in line and "cannot be created" in line for line in caplog.messages)


class TestNoLimits:
    @pytest.fixture
    def config(self) -> FaultToleranceConfig:
        return FaultToleranceConfig(initial_rank_heartbeat_timeout=None, rank_heartbeat_timeout=None)

    def test_there_must_be_limits_or_a_way_to_learn_them(
        self, ranked: Board, quiet: dict[str, Any], caplog: pytest.LogCaptureFixture
    ) -> None:
        with pytest.raises(RuntimeError) as error:
            pl.Trainer(callbacks=[FaultToleranceCallback(False, False)], **quiet).fit(TinyModel())
        assert str(error.value) == (
            "Fault tolerance doesn't have valid timeouts set and 'calculate_timeouts' is False."
        )
        with caplog.at_level(logging.INFO):
            trainer = pl.Trainer(max_steps=1, callbacks=[FaultToleranceCallback(False, True)], **quiet)
            trainer.fit(TinyModel())
        assert f"{PREFIX}Fault tolerance client initialized. Timeouts: not calculated yet." in caplog.messages

    def test_the_sections_must_have_limits(self, ranked: Board, quiet: dict[str, Any]) -> None:
        with pytest.raises(ValueError) as error:
            pl.Trainer(callbacks=[FaultToleranceSectionsCallback(False, True)], **quiet).fit(TinyModel())
        assert str(error.value) == (
            "rank_section_timeouts should contain {'checkpointing', 'setup', 'step'} entries, and nothing else; it has "
            "none. Give ft_launcher the limits in seconds, for example "
            "--ft-rank-section-timeouts=setup:600,step:180,checkpointing:420"
        )
        assert Supervision._current is None


def test_a_client_of_the_programs_own_is_an_error(ranked: Board, quiet: dict[str, Any]) -> None:
    client = RankMonitorClient()
    client.init_workload_monitoring()
    with pytest.raises(RankMonitorClientError, match="another RankMonitorClient of this process"):
        pl.Trainer(callbacks=[FaultToleranceCallback(False, True)], **quiet).fit(TinyModel())
    client.shutdown_workload_monitoring()


def request(action: WorkloadAction) -> Callable[[Any], WorkloadControlRequest]:
    return lambda error: WorkloadControlRequest(action, f"because of {error}")


def refuse(error: Any) -> Any:
    raise KeyError("in the policy")


@pytest.mark.parametrize(
    ("policy", "asked", "flag", "said"),
    [
        (None, None, False, ""),
        (lambda error: None, None, False, ""),
        (request(WorkloadAction.ExcludeThisNode), "exclude_this_node", False, ""),
        (
            request(WorkloadAction.ShutdownWorkload),
            "shutdown_workload",
            True,
            "Shutdown workload requested, so creating finished flag file.",
        ),
        (
            refuse,
            None,
            False,
            "exc_handling_policy failed on OSError('broken') with KeyError('in the policy')",
        ),
        (lambda error: "restart", None, False, "exc_handling_policy returned 'restart' on OSError('broken')"),
    ],
)
@pytest.mark.parametrize("rank", [0, 3])
def test_what_a_policy_asks_for(
    policy: Any,
    asked: str | None,
    flag: bool,
    said: str,
    rank: int,
    ranked: Board,
    quiet: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """On whichever rank failed."""
    monkeypatch.setenv("FAULT_TOL_FINISHED_FLAG_FILE", str(tmp_path / "flag"))
    callback = FaultToleranceSectionsCallback(True, True, exp_dir=tmp_path, exc_handling_policy=policy)

    def fail(trainer: Any, batch_idx: int) -> None:
        if rank:
            trainer.strategy.global_rank = rank
        raise OSError("broken")

    with pytest.raises(OSError, match="broken"):
        pl.Trainer(max_steps=3, callbacks=[callback], **quiet).fit(TinyModel(fail))
    asked_for = ranked.snapshot().request
    assert (asked_for.action if asked_for else None) == asked
    assert asked is None or (asked_for is not None and asked_for.description == "because of broken")
    assert (tmp_path / "flag").exists() == flag
    assert said in "\n".join(caplog.messages)


def test_a_clean_stop_asks_for_nothing(ranked: Board, quiet: dict[str, Any], tmp_path: Path) -> None:
    policy = request(WorkloadAction.ShutdownWorkload)
    callback = FaultToleranceSectionsCallback(False, True, exp_dir=tmp_path, exc_handling_policy=policy)

    def leave(trainer: Any, batch_idx: int) -> None:
        raise SystemExit(0)

    with pytest.raises(SystemExit):
        pl.Trainer(max_steps=3, callbacks=[callback], **quiet).fit(TinyModel(leave))
    assert ranked.snapshot().request is None
