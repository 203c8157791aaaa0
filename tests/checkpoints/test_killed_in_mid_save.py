"""A process that dies while it saves, with no care taken: what is found afterwards can be loaded."""

from __future__ import annotations

import signal
import sys
import warnings
from pathlib import Path

import pytest
import torch

from holdfast import checkpoints
from tests.processes import Spawner

PYTHON = [sys.executable, "-c"]
SAVES = """
import sys, torch, torch.distributed.checkpoint as dcp, warnings
from holdfast.testing import Faults
warnings.simplefilter("ignore")
folder, how, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
faults = Faults.from_env()
for step in range(1, 100000):
    faults.at_step(step)
    state = {"step": step, "w": torch.full((size,), float(step))}
    if how == "torch":
        torch.save(state, f"{folder}/step-{step}.pt")
    else:
        dcp.save(state, checkpoint_id=f"{folder}/step-{step}", no_dist=True)
    print("saved", step, flush=True)
"""


@pytest.mark.slow
def test_by_the_fault_that_leaves_half_a_file(spawn: Spawner, tmp_path: Path) -> None:
    """A folder of shards; for a single file see tests/testing/test_deeds.py."""
    import torch.distributed.checkpoint as dcp

    job = spawn(
        [*PYTHON, SAVES, str(tmp_path), "dcp", "3000"], env={"HOLDFAST_FAULT": "half_save@step=3,size=9000"}
    )
    assert job.wait() == -signal.SIGXFSZ, job.output()
    said: list[str] = []
    assert checkpoints.last_complete(tmp_path, said.append) == tmp_path / "step-2"
    assert len(said) == 1 and "step-3 has no .metadata" in said[0]
    state = {"step": 0, "w": torch.zeros(3000)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(state, checkpoint_id=tmp_path / "step-2", no_dist=True)
    assert state["step"] == 2 and torch.equal(state["w"], torch.full((3000,), 2.0))


@pytest.mark.slow
def test_by_kill_9_at_any_moment(spawn: Spawner, tmp_path: Path) -> None:
    """Of a checkpoint of 40 MB, when half of it is on the disk."""
    job = spawn([*PYTHON, SAVES, str(tmp_path), "torch", "10000000"])
    job.wait_for("saved 2")
    job.wait_for(lambda: half_written(tmp_path))
    job.send_signal(signal.SIGKILL)
    job.wait()
    found = checkpoints.last_complete(tmp_path, lambda text: None)
    assert found is not None
    state = torch.load(found)
    assert state["step"] == int(found.stem.removeprefix("step-")) >= 2
    assert float(state["w"].min()) == float(state["w"].max()) == state["step"]


def half_written(folder: Path) -> bool:
    """Removes old ones meanwhile, so that the disk does not fill."""
    sizes = {int(path.stem.removeprefix("step-")): path for path in folder.glob("step-*.pt")}
    newest = max(sizes)
    for step, path in sizes.items():
        if step < newest - 2:
            path.unlink()
    return 0 < sizes[newest].stat().st_size < 39_000_000


@pytest.mark.slow
def test_by_kill_9_after_an_asynchronous_save_came_back(spawn: Spawner, tmp_path: Path) -> None:
    """The call has returned and the shards are written; without the metadata the older one is the newest."""
    launcher = [sys.executable, "-m", "holdfast.fault_tolerance.launcher", "--nproc-per-node=2"]
    program = Path(__file__).parent / "programs" / "saving_beside.py"
    run_dir = f"--ft-run-dir={tmp_path / 'run'}"
    job = spawn([*launcher, "--max-restarts=1", run_dir, str(program), str(tmp_path / "saved")])
    assert job.wait() == 0, job.output()
    assert "returned from 2" in job.out() and "SIGKILL" in job.err()
    assert job.out().count("resumed at 1 1.0 1.0") == 2
    assert job.err().count("checkpoint skipped, resuming from step-1: ") == 1
    assert "step-2 has no .metadata" in job.err()
    assert {path.name for path in (tmp_path / "saved").iterdir()} == {"step-1", "step-2"}
