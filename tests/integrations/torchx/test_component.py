"""The TorchX component, submitted by TorchX's own command: on this machine, and to a real Slurm."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

import pytest

from tests.processes import Spawned, Spawner
from tests.slurm.cluster import Cluster

pytestmark = pytest.mark.slow

BIN = Path(sys.executable).parent
COMPONENT = f"{Path(__file__).resolve().parents[3] / 'examples' / 'torchx' / 'holdfast_component.py'}:ft"
TRAINING = """
import os, sys
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], sys.argv[1:], flush=True)
if os.environ["RANK"] == "1" and len(sys.argv) > 2 and int(os.environ.get("SLURM_RESTART_COUNT", 0)) < int(sys.argv[2]):
    sys.exit(3)
"""


@pytest.fixture
def submit(spawn: Spawner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{BIN}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))  # TorchX writes there
    (tmp_path / "train.py").write_text(TRAINING)
    return tmp_path


def torchx(spawn: Spawner, folder: Path, scheduler: str, *words: str) -> Spawned:
    options = ["run", "--wait", "--log", "--scheduler", scheduler]
    return spawn([BIN / "torchx", *options, COMPONENT, "--script", "train.py", *words], cwd=folder)


def test_on_this_machine(spawn: Spawner, submit: Path) -> None:
    words = ["-j", "1x2", "--launcher_options", "--ft-rank-heartbeat-timeout 77", "--", "a b"]
    done = torchx(spawn, submit, "local_cwd", *words)
    assert done.wait(120) == 0, done.output()
    for rank in (0, 1):
        assert f"rank {rank} of 2 ['a b']" in done.output()
    assert "heartbeat 77 s" in done.output()
    assert "Job finished: SUCCEEDED" in done.output()


def test_on_slurm_a_failed_job_is_tried_again(
    accounting_cluster: Cluster, spawn: Spawner, submit: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in accounting_cluster.environ.items():
        monkeypatch.setenv(name, value)
    port = str(accounting_cluster.settings.spare_port)  # stores of other clusters listen too
    options = ["--max_retries", "1", "--max_restarts", "0"]
    words = ["-j", "2x1", "--rdzv_port", port, *options, "--", "--fail", "1"]
    try:
        done = torchx(spawn, submit, "slurm", *words)
        assert done.wait(170) == 0, done.output()
        assert "Job finished: SUCCEEDED" in done.output()
    finally:
        accounting_cluster.clear()


@pytest.mark.parametrize("args", [["-c", "python -m torch.distributed.run train.py"], ["train.py"]])
def test_a_torchx_that_starts_ranks_otherwise_is_named(
    args: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchx import specs
    from torchx.components import dist

    component = runpy.run_path(COMPONENT.removesuffix(":ft"))["ft"]
    role = specs.Role("train", "image", args=args)
    monkeypatch.setattr(dist, "ddp", lambda *_, **__: specs.AppDef("train", roles=[role]))
    with pytest.raises(RuntimeError, match=r"torchx .*: dist.ddp does not start .* any more, but \["):
        component(script="train.py")
