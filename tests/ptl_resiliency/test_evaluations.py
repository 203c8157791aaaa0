"""`trainer.validate()` and `trainer.test()` by themselves are supervised; they learn nothing and create no flag."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from holdfast.callbacks.supervision import Supervision
from holdfast.fault_tolerance import RankMonitorClient
from holdfast.fault_tolerance.board import Board
from holdfast.ptl_resiliency import FaultToleranceCallback, FaultToleranceSectionsCallback
from tests.processes import Spawner

from .small import TinyModel, trainer

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).parent / "programs" / "evaluating_job.py"


@pytest.mark.slow
def test_a_hang_in_an_evaluation_by_itself_is_found(spawn: Spawner, tmp_path: Path) -> None:
    launcher = ["-m", "holdfast.fault_tolerance.launcher", "--nproc-per-node=2", "--max-restarts=2"]
    limits = ["--ft-rank-heartbeat-timeout=4", "--ft-rank-section-timeouts=step:4"]
    env = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "TMPDIR": str(tmp_path)}
    command = [*launcher, *limits, f"--ft-run-dir={tmp_path / 'run'}", str(PROGRAM), str(tmp_path)]
    job = spawn([sys.executable, *command], env=env)
    assert job.wait(150) == 0, job.output()[-3000:]
    said = job.output()
    assert said.count("HANG: rank 1") == 2, said[-3000:]
    assert all(f"rank {rank} has done its {what}" in said for rank in (0, 1) for what in ("validate", "test"))


@pytest.mark.parametrize("kind", [FaultToleranceCallback, FaultToleranceSectionsCallback])
@pytest.mark.parametrize("what", ["validate", "test"])
def test_it_is_supervised_and_nothing_follows(
    kind: type[Any],
    what: str,
    ranked: Board,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FAULT_TOL_FINISHED_FLAG_FILE", str(tmp_path / "flag"))
    callback = kind(True, True, exp_dir=tmp_path / "state")
    job = trainer(tmp_path, callback)
    for _ in range(2):
        before = ranked.snapshot()
        getattr(job, what)(TinyModel(), verbose=False)
        after = ranked.snapshot()
        if kind is FaultToleranceCallback:  # the start, 2 batches, the end
            assert after.heartbeat_count == before.heartbeat_count + 4
        else:  # setup, and 2 steps
            assert after.section_count == before.section_count + 3
        assert after.finished and not after.open_sections and not callback.is_initialized
    assert Supervision._current is None and "teardown" not in vars(job.strategy)
    assert not (tmp_path / "flag").exists() and not list((tmp_path / "state").iterdir())


def test_an_error_in_it_ends_supervision(ranked: Board, tmp_path: Path) -> None:
    def fail(trainer: Any, batch_idx: int) -> None:
        raise OSError("broken")

    callbacks = [
        FaultToleranceCallback(exp_dir=tmp_path),
        FaultToleranceSectionsCallback(exp_dir=tmp_path, exc_handling_policy=pytest.fail),
    ]
    with pytest.raises(OSError, match="broken"):
        trainer(tmp_path, *callbacks).validate(TinyModel(on_validation=fail), verbose=False)
    snapshot = ranked.snapshot()
    assert snapshot.finished and not snapshot.open_sections and Supervision._current is None


def test_supervision_that_cannot_begin_ends_nothing(
    ranked: Board, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The program has a client of its own."""
    client = RankMonitorClient()
    client.init_workload_monitoring()
    job = trainer(tmp_path, FaultToleranceCallback(exp_dir=tmp_path))
    job.validate(TinyModel(), verbose=False)
    client.shutdown_workload_monitoring()
    assert sum("trainer.validate() is not supervised" in line for line in caplog.messages) == 1


def test_an_evaluation_of_one_rank_waits_for_no_other(ranked: Board, tmp_path: Path) -> None:
    """As after a fit, whose process group is still there."""
    dist.init_process_group("fake", store=dist.HashStore(), rank=0, world_size=2)
    try:
        callbacks = [
            FaultToleranceCallback(exp_dir=tmp_path),
            FaultToleranceSectionsCallback(exp_dir=tmp_path),
        ]
        began = time.monotonic()
        trainer(tmp_path, *callbacks).validate(TinyModel(), verbose=False)
        assert time.monotonic() - began < 30 and ranked.snapshot().heartbeat_count == 4
    finally:
        dist.destroy_process_group()
