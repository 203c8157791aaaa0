"""The hooks on a real board, that nothing of it hurts, and docs/megatron.md's program in jobs in a row."""

from __future__ import annotations

import dataclasses
import inspect
import json
import logging
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.fault_tolerance import FaultToleranceConfig, RankMonitorClientError
from holdfast.fault_tolerance.board import Board
from holdfast.integrations import megatron
from holdfast.integrations.megatron import FaultToleranceState, _selection
from tests.pages import DOCS, block
from tests.processes import Spawned, Spawner

LIMITS = {"setup": 600.0, "step": 180.0, "checkpointing": 420.0}


@pytest.fixture
def config() -> FaultToleranceConfig:
    return FaultToleranceConfig(rank_section_timeouts=dict(LIMITS), rank_out_of_section_timeout=300.0)


@dataclass
class BridgeState:
    """As `megatron.bridge.training.state.FaultToleranceState`."""

    ft_state_path: str | None = None
    is_persistent_chkpt_loaded: bool = False
    is_async_chkpt_enabled: bool = False
    is_calculating_timeouts: bool = False
    is_setup_section_open: bool = False
    seen_checkpoints_cnt: int = 0
    seen_tr_iters_cnt: int = 0
    curr_eval_iter_idx: int = 0


@dataclass
class GlobalState:
    """As `megatron.bridge.training.state.GlobalState`."""

    cfg: Any = None
    rank_monitor_client: Any = None
    fault_tolerance_state: Any = field(default_factory=BridgeState)


def config_container(save: Path | None, *, learn: bool = True, asynchronous: bool = False) -> Any:
    return SimpleNamespace(
        checkpoint=SimpleNamespace(save=save and str(save), async_save=asynchronous),
        ft=SimpleNamespace(enable_ft_package=True, calc_ft_timeouts=learn, simulate_fault=False),
    )


def train(state: Any, steps: int, *, loaded: bool = False, evaluate: int = 0, saves: int = 1) -> None:
    """A loop's calls, between `setup` and the end."""
    if loaded:
        megatron.on_checkpoint_loaded(False, state)
    for _ in range(steps):
        megatron.on_training_step_start(state)
        megatron.on_training_step_end(state)
    for _ in range(evaluate):
        megatron.on_eval_step_start(state)
        megatron.on_eval_step_end(state)
    for _ in range(saves):
        megatron.on_checkpointing_start(state)
        megatron.on_checkpointing_end(False, state)


def fields(state: Any) -> dict[str, Any]:
    return dataclasses.asdict(state.fault_tolerance_state)


def names(board: Board) -> list[str]:
    return [section.name for section in board.snapshot().open_sections]


def kept(folder: Path) -> dict[str, Any]:
    """The learned timeouts of sections."""
    found = json.loads((folder / "ft_state.json").read_text())["current_timeouts"]["section"]
    assert isinstance(found, dict)
    return found


@pytest.fixture(params=["bridge", "plain"])
def state(request: pytest.FixtureRequest) -> Any:
    return GlobalState() if request.param == "bridge" else SimpleNamespace()


def test_without_setup_every_hook_does_nothing(state: Any) -> None:
    before = vars(state).copy()
    train(state, 2, loaded=True, evaluate=2)
    megatron.shutdown(state)
    megatron.abort(state)
    megatron._load_state_if_exists(state)
    megatron._update_timeouts(["step"], True, state)
    megatron._maybe_update_timeouts(state, is_closing_ft=True)
    megatron.maybe_setup_simulated_fault(None)
    megatron.maybe_setup_simulated_fault(SimpleNamespace(simulate_fault=False))
    assert vars(state) == before


def test_sections_are_open_where_they_should_be(board: Board, state: Any, tmp_path: Path) -> None:
    """No section in the first training step, and in the first evaluation step after training."""
    megatron.setup(config_container(tmp_path), state)
    assert names(board) == ["setup"] and state.rank_monitor_client.is_initialized
    seen = []
    for kind in ("training", "training", "eval", "eval", "training", "eval", "eval"):
        getattr(megatron, f"on_{kind}_step_start")(state)
        seen.append(names(board))
        getattr(megatron, f"on_{kind}_step_end")(state)
        assert names(board) == []
    assert seen == [[], ["step"], [], ["step"], ["step"], [], ["step"]]
    megatron.on_checkpointing_start(state)
    assert names(board) == ["checkpointing"]
    megatron.on_checkpointing_end(True, state)
    assert names(board) == [] and fields(state)["seen_checkpoints_cnt"] == 0
    assert (fields(state)["seen_tr_iters_cnt"], fields(state)["curr_eval_iter_idx"]) == (3, 2)
    megatron.shutdown(state)
    assert state.rank_monitor_client is None and board.snapshot().finished
    megatron.shutdown(state)


def test_bridge_s_own_class_stays_and_begins_anew(board: Board, tmp_path: Path) -> None:
    state = GlobalState()
    own = state.fault_tolerance_state = BridgeState(seen_tr_iters_cnt=7, is_persistent_chkpt_loaded=True)
    megatron.setup(config_container(tmp_path, asynchronous=True), state)
    assert state.fault_tolerance_state is own and own == BridgeState(
        ft_state_path=str(tmp_path / "ft_state.json"),
        is_async_chkpt_enabled=True,
        is_calculating_timeouts=True,
        is_setup_section_open=True,
    )
    megatron.abort(state)


def test_a_configuration_without_ft_is_left_alone(board: Board, tmp_path: Path) -> None:
    """As in Megatron: evaluation hooks do not ask."""
    state = GlobalState(cfg=SimpleNamespace(ft=None))
    megatron.setup(config_container(tmp_path), state)
    train(state, 3, loaded=True)
    assert names(board) == ["setup"] and fields(state)["seen_tr_iters_cnt"] == 0
    megatron.on_eval_step_start(state)
    assert names(board) == []
    megatron.abort(state)


def test_setup_without_a_directory_or_a_launcher(
    tmp_path: Path, state: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match=r"^checkpointing save dir must be set to enable fault tolerance$"):
        megatron.setup(config_container(None), state)
    with pytest.raises(RankMonitorClientError, match="start the program with ft_launcher"):
        megatron.setup(config_container(tmp_path), state)
    assert getattr(state, "rank_monitor_client", None) is None


def test_a_directory_that_cannot_be_had(board: Board, tmp_path: Path, state: Any) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="Fault tolerance save directory does not exist"):
        megatron.setup(config_container(tmp_path / "file" / "save"), state)
    assert state.rank_monitor_client is None and board.snapshot().finished


def test_limits_are_learned_kept_and_loaded(
    board: Board, tmp_path: Path, state: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next job has them also if it does not learn. The file is as documented."""
    monkeypatch.setenv("HOLDFAST_LEARNED_FLOOR", "7")
    monkeypatch.setenv("HOLDFAST_LEARNED_INITIAL_FLOOR", "70")
    save = tmp_path / "save"
    megatron.setup(config_container(save), state)
    train(state, 15)
    assert kept(save)["calculated_sections"] == ["checkpointing"]
    train(state, 1, loaded=True)
    megatron.shutdown(state)
    assert os.listdir(save) == ["ft_state.json"]
    learned = {
        "section": {"setup": 70.0, "step": 7.0, "checkpointing": 7.0},
        "out_of_section": 7.0,
        "calculated_sections": ["checkpointing", "setup", "step"],
        "is_out_of_section_calculated": True,
    }
    whole = {"current_timeouts": {"section": learned}}
    assert json.loads((save / "ft_state.json").read_text()) == whole
    megatron.setup(config_container(save, learn=False), state)
    limits = state.rank_monitor_client.section_timeouts
    assert (limits.section, limits.out_of_section) == (learned["section"], 7.0)
    before = (save / "ft_state.json").stat().st_mtime_ns
    train(state, 20, loaded=True)
    megatron.shutdown(state)
    assert (save / "ft_state.json").stat().st_mtime_ns == before


@pytest.mark.parametrize("ending", ["abort", "shutdown in finally", "clean stop"])
def test_nothing_is_learned_after_a_failure(board: Board, tmp_path: Path, state: Any, ending: str) -> None:
    megatron.setup(config_container(tmp_path), state)
    train(state, 20, loaded=True, saves=0)
    try:
        try:
            if ending != "abort":
                raise SystemExit(0) if ending == "clean stop" else RuntimeError("NCCL error")
            megatron.abort(state)
        finally:
            megatron.shutdown(state)
    except (RuntimeError, SystemExit):
        pass
    assert state.rank_monitor_client is None and board.snapshot().finished
    assert (tmp_path / "ft_state.json").exists() == (ending == "clean stop")


def test_what_goes_wrong_is_said_once_and_the_training_goes_on(
    board: Board, tmp_path: Path, state: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A section that an exception left open, supervision that ended, a state that is damaged or cannot be written."""
    (tmp_path / "ft_state.json").write_text('{"current_timeouts": ')
    caplog.set_level(logging.INFO)
    megatron.setup(config_container(tmp_path), state)
    assert "the learned timeouts in" in caplog.text and "are left out: it is not JSON" in caplog.text
    assert state.rank_monitor_client.section_timeouts.section == LIMITS
    for _ in range(3):
        megatron.on_training_step_start(state)  # and never ended
        state.fault_tolerance_state.seen_tr_iters_cnt += 1
    assert caplog.text.count("section 'step' is open already") == 1
    (tmp_path / "ft_state.json").unlink()
    (tmp_path / "ft_state.json").mkdir()
    train(state, 20, loaded=True)
    assert "the learned timeouts cannot be written to" in caplog.text
    state.rank_monitor_client.shutdown_workload_monitoring()
    train(state, 2)
    assert "RankMonitorClient is not initialised" in caplog.text
    megatron.shutdown(state)


def test_a_simulated_fault_is_armed_as_it_is_told(board: Board, tmp_path: Path, state: Any) -> None:
    ft = SimpleNamespace(simulate_fault=True, simulated_fault_type="rank_hung", simulated_fault_rank=0)
    ft.simulated_fault_base_delay = 500
    megatron.setup(config_container(tmp_path), state)
    megatron.maybe_setup_simulated_fault(ft)
    (timer,) = megatron._runs[state.rank_monitor_client].faults[0]._timers
    assert 500 <= timer.interval <= 600
    ft.simulated_fault_type = "rank_sleepy"
    with pytest.raises(ValueError, match="Failed to parse simulated fault params"):
        megatron.maybe_setup_simulated_fault(ft)
    megatron.shutdown(state)
    assert not timer.is_alive()


def test_without_setup_a_simulated_fault_does_not_happen() -> None:
    code = """
import time
from types import SimpleNamespace
from holdfast.integrations import megatron
ft = SimpleNamespace(simulate_fault=True, simulated_fault_type="rank_killed", simulated_fault_rank=0)
megatron.maybe_setup_simulated_fault(ft)
time.sleep(0.5)
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


# -- when which limit is learned: a table of what a run has seen


LOADED = {"is_persistent_chkpt_loaded": True, "seen_tr_iters_cnt": 16}
COMPLETE = {**LOADED, "seen_checkpoints_cnt": 1}


@pytest.mark.parametrize(
    ("seen", "closing", "sections", "out"),
    [
        ({}, True, [], False),
        ({"is_persistent_chkpt_loaded": True}, False, ["setup"], False),
        ({"is_persistent_chkpt_loaded": True, "is_setup_section_open": True}, True, [], False),
        ({"seen_tr_iters_cnt": 15}, True, [], False),
        ({"seen_tr_iters_cnt": 16}, False, ["step"], False),
        ({"seen_checkpoints_cnt": 1}, False, ["checkpointing"], False),
        ({"seen_checkpoints_cnt": 1, "is_async_chkpt_enabled": True}, False, [], False),
        (LOADED, True, ["setup", "step"], False),
        (COMPLETE, False, ["setup", "step", "checkpointing"], False),
        (COMPLETE, True, ["setup", "step", "checkpointing"], True),  # at the end of a complete run only
        ({**COMPLETE, "is_async_chkpt_enabled": True}, False, ["setup", "step"], False),
        ({**COMPLETE, "is_async_chkpt_enabled": True}, True, ["setup", "step"], True),
    ],
)
def test_what_is_selected(seen: dict[str, object], closing: bool, sections: list[str], out: bool) -> None:
    state = FaultToleranceState(**seen)  # type: ignore[arg-type]
    chosen = _selection(state, evaluation_to_come=False, closing=closing)
    assert (list(chosen.sections), chosen.out_of_section) == (sections, out)


@pytest.mark.parametrize(
    ("configured", "evaluate", "sections"),
    [
        ({"train": SimpleNamespace(eval_iters=3, eval_interval=100)}, 0, ["checkpointing"]),
        ({"train": SimpleNamespace(eval_iters=3, eval_interval=100)}, 3, ["checkpointing", "step"]),
        ({"validation": SimpleNamespace(eval_iters=3, eval_interval=100)}, 0, ["checkpointing"]),
        ({"train": SimpleNamespace(eval_iters=0, eval_interval=100)}, 0, ["checkpointing", "step"]),
        ({"train": SimpleNamespace(eval_iters=3, eval_interval=None)}, 0, ["checkpointing", "step"]),
    ],
)
def test_a_step_is_not_learned_before_an_evaluation_that_is_to_come(
    configured: dict[str, Any], evaluate: int, sections: list[str], board: Board, tmp_path: Path, state: Any
) -> None:
    config = config_container(tmp_path)
    vars(config).update(configured)
    megatron.setup(config, state)
    train(state, 20, evaluate=evaluate)
    megatron.shutdown(state)
    assert kept(tmp_path)["calculated_sections"] == sections


def test_the_documented_names_and_signatures() -> None:
    assert (megatron._NUM_WARMUP_ITERS, megatron._MIN_ITERS_FOR_STEP_TIMEOUT_UPDATE) == (1, 16)
    hooks = [f"on_{kind}_step_{edge}" for kind in ("training", "eval") for edge in ("start", "end")]
    hooks += ["on_checkpointing_start", "shutdown", "abort", "_load_state_if_exists"]
    expected = {
        **{name: ["global_state"] for name in hooks},
        "setup": ["config", "global_state"],
        "on_checkpointing_end": ["is_async_finalization", "global_state"],
        "on_checkpoint_loaded": ["is_local_chkpt", "global_state"],
        "maybe_setup_simulated_fault": ["config"],
        "_update_timeouts": ["selected_sections", "calc_out_of_section", "global_state"],
        "_maybe_update_timeouts": ["global_state", "is_closing_ft"],
    }
    found = {name: list(inspect.signature(getattr(megatron, name)).parameters) for name in expected}
    assert found == expected
    assert inspect.signature(megatron._maybe_update_timeouts).parameters["is_closing_ft"].default is False


# -- docs/megatron.md


SECTIONS = [
    "--ft-param-rank_section_timeouts=setup:600,step:180,checkpointing:420",
    "--ft-param-rank_out_of_section_timeout=300",
]


def run(spawn: Spawner, folder: Path, until: int, *options: str, **environment: str) -> Spawned:
    launcher = [sys.executable, "-m", "holdfast.fault_tolerance.launcher", "--nproc-per-node=2"]
    options = ("--max-restarts=20", f"--ft-run-dir={folder / 'run'}", *options)
    floors = {"HOLDFAST_LEARNED_FLOOR": "2", "HOLDFAST_LEARNED_INITIAL_FLOOR": "60"}
    env = {"OMP_NUM_THREADS": "1", **floors, **environment}
    job = spawn([*launcher, *options, "train.py", str(until)], cwd=folder, env=env)
    assert job.wait(150) == 0, job.output()[-5000:]
    return job


@pytest.mark.variant
@pytest.mark.slow
def test_limits_are_learned_over_two_jobs_and_find_a_hang_in_the_third(
    spawn: Spawner, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(block("megatron.md", "train.py"))
    folder = tmp_path / "checkpoints"
    run(spawn, tmp_path, 20, *SECTIONS)
    assert kept(folder)["calculated_sections"] == ["checkpointing", "step"]
    assert not kept(folder)["is_out_of_section_calculated"]
    second = run(spawn, tmp_path, 40, *SECTIONS)
    assert sorted(re.findall(r"rank \d resumes from step \d+", second.out())) == [
        f"rank {rank} resumes from step 20" for rank in (0, 1)
    ]
    limits = kept(folder)
    assert limits["calculated_sections"] == ["checkpointing", "setup", "step"]
    assert limits["is_out_of_section_calculated"] and limits["out_of_section"]
    third = run(spawn, tmp_path, 90, FAULT_AFTER="1.5")
    assert "Simulating fault: rank_hung; rank to fail: 1" in third.err()
    line = r"HANG: rank \d .*(?:Section '(\w+)' did|No section was).* Timeout ([\d.]+) s"
    found = re.search(line, third.err())
    assert found, third.err()[-3000:]
    limit = limits["section"][found[1]] if found[1] else limits["out_of_section"]
    assert float(found[2]) == pytest.approx(limit, abs=0.06) and float(found[2]) < 100
    assert "resumes from step" in third.out()
    assert len(set(re.findall(r"result (\S+)", third.out()))) == 1
    assert [path.name for path in folder.iterdir() if path.suffix != ".pt"] == ["ft_state.json"]


def test_the_page_names_every_function() -> None:
    page = (DOCS / "megatron.md").read_text()
    public = [name for name in megatron.__all__ if name[0] not in "_F"]
    assert len(public) == 11 and all(name in page for name in public)


@pytest.mark.slow
def test_after_a_failure_nobody_waits_for_a_rank_that_stands_still(spawn: Spawner, shm: Path) -> None:
    program = Path(__file__).with_name("aborting.py")
    first, _ = (spawn.python(program, str(rank), str(shm)) for rank in range(2))
    assert first.wait() == 0, first.output()
    found = re.search(r"left after ([\d.]+) s, None", first.out())
    assert found and float(found[1]) < 40, first.output()  # 60 s is its patience with a rank that answers
    assert not (shm / "save" / "ft_state.json").exists()
