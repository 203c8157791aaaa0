"""A straggler in a real job, under ft_launcher and under plain `python`."""

from __future__ import annotations

import re
import socket
import sys
from pathlib import Path

import pytest
import torch

from holdfast.autoresume.ledger import Ledger
from holdfast.autoresume.policy import nodes_to_exclude
from holdfast.autoresume.run_dir import LEDGER, read_records
from tests.processes import Spawner
from tests.ptl_resiliency.written_metrics import of_wandb

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).parent / "programs" / "straggler.py"
PATHS = {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}

pytestmark = pytest.mark.slow


def saved_step(folder: Path) -> int:
    return int(torch.load(folder / "stops" / "last.ckpt", weights_only=False)["global_step"])


def test_two_ranks_under_the_launcher(spawn: Spawner, tmp_path: Path) -> None:
    launcher = ["-m", "holdfast.fault_tolerance.launcher", "--nproc-per-node=2", "--max-restarts=0"]
    env = PATHS | {"TMPDIR": str(tmp_path)}  # torch leaves an empty folder there
    job = spawn([sys.executable, *launcher, PROGRAM, tmp_path], env=env)
    assert job.wait(60) == 1, job.output()
    said = job.err()
    # Who waits for rank 0's buffers is no straggler.
    assert len(re.findall(r"late: rank \d trained 30 steps", job.out())) == 2, job.output()
    # Each rank has 10 batches of an epoch; told not to stop, it did not, though there were reports with a straggler.
    assert sorted(re.findall(r"goes_on: rank \d trained \d+ steps", job.out())) == [
        "goes_on: rank 0 trained 30 steps",
        "goes_on: rank 1 trained 30 steps",
    ]
    warning = "Section training_step is slower on some ranks. Affected ranks: {StragglerId(rank=1, node="
    assert said.count(f"STRAGGLER DETECTION WARNING: {warning}") >= 2
    worst, best = r"  Rank=1 Node=\S+ Score=0\.\d\d", r"  Rank=0 Node=\S+ Score=1\.00"
    assert re.search(rf"^Section relative performance \(training_step\):\n{worst}\n{best}$", said, re.M)
    times = len(re.findall(r"^Straggler report processing time: \d\.\d{3} sec\.$", said, re.M))
    reports = len(re.findall(r"^Section relative performance \(training_step\):$", said, re.M))
    # Rank 0 leaves a report out where the one before is not made yet; rank 1 has taken part in its exchange.
    assert times > 2 * reports if "reports were left out" in said else times == 2 * reports
    ends = re.findall(r"stops: rank (\d) exits with 1 at (\d+), job\.should_stop=True", job.out())
    assert sorted(ends) == [("0", str(saved_step(tmp_path))), ("1", str(saved_step(tmp_path)))]
    assert len(re.findall(r"^Detected stragglers\. Terminating training\.\.\.$", said, re.M)) == 2
    assert f"Saved {tmp_path}/stops/last.ckpt before terminating" in said


def test_three_ranks_end_once_a_verdict_confirms_it(spawn: Spawner, tmp_path: Path) -> None:
    """And what decides on the next attempt knows which node is to be left out."""
    run_dir, env = tmp_path / "run", PATHS | {"TMPDIR": str(tmp_path)}
    holdfast = [sys.executable, "-m", "holdfast"]
    launcher = ["-m", "holdfast.fault_tolerance.launcher", "--nproc-per-node=3", "--max-restarts=0"]
    chain = [*holdfast, "autoresume", "--run-dir", run_dir, "--max-failures=1", "--", sys.executable]
    job = spawn([*chain, *launcher, PROGRAM, tmp_path], env=env)
    assert job.wait(90) == 1, job.output()
    said = job.err()
    assert (
        "stop_if_detected: the job ends when a score is below its threshold in three successive reports"
        in said
    )
    assert "the default: one low score, as stop_on='scores' takes, may be noise" in said
    # The first report warms up, three more make a verdict: one low score ends nothing.
    assert len(re.findall("^Section relative performance", said, re.M)) >= 4
    assert re.search(
        r"^The job ends for rank 1 \(node \S+\): section, \d+\.\d+ × slower since report", said, re.M
    )
    assert len(re.findall(r"confirmed: rank \d exits with 1", job.out())) == 3, job.output()
    (attempt,) = Ledger.of(read_records(str(run_dir / LEDGER))[0]).attempts
    assert attempt.suspected == nodes_to_exclude([attempt]) == (socket.gethostname(),)
    stopped = r"the job was stopped for a straggler; rank 1 \(node \S+\): section, \d+\.\d+ × slower"
    for command in ("incidents", "nodes"):
        told = spawn([*holdfast, command, run_dir], env=env)
        assert told.wait(30) == 0, told.output()
        assert re.search(stopped, " ".join(told.out().split())), told.output()


def test_one_rank_under_plain_python(spawn: Spawner, tmp_path: Path) -> None:
    """And what W&B has of it, which is on the disk although the job ended early."""
    env = {
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
        "WANDB_CONFIG_DIR": str(tmp_path),
        "WANDB_CACHE_DIR": str(tmp_path),
        "WANDB_DATA_DIR": str(tmp_path),
        "TMPDIR": str(tmp_path),
    }
    job = spawn([sys.executable, PROGRAM, tmp_path, "wandb"], env=env | PATHS)
    assert job.wait(60) == 1, job.output()
    said = job.output()
    assert "Section training_step became slower on some ranks. Affected ranks: {StragglerId(rank=0" in said
    assert said.count("Detected stragglers. Terminating training...") == 1
    values = of_wandb(tmp_path)
    kinds = [f"section_{kind}_perf/" for kind in ("relative", "individual")]
    assert {f"{kind}{part}" for kind in kinds for part in ("min", "median", "max")} <= values.keys()
    step, score = values["section_individual_perf/min"][-1]
    assert (step, score < 0.7) == (saved_step(tmp_path) - 1, True)
