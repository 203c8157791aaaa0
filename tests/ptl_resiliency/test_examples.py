"""The example scripts run as their first lines say, and start and resume with the same command."""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path

import pytest

from tests.processes import Spawner

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "lightning"
LAUNCHER = [sys.executable, "-m", "holdfast.fault_tolerance.launcher"]
QUIET = {"OMP_NUM_THREADS": "1"}


def command(folder: Path, script: str, *more: str, ranks: int = 1) -> list[str]:
    launcher = [*LAUNCHER, f"--nproc-per-node={ranks}", f"--ft-run-dir={folder / 'run'}"]
    return [*launcher, str(EXAMPLES / script), f"--dir={folder / 'saved'}", *more]


LOADER = """
import sys
import lightning.pytorch as pl
import torch
from digits import Classifier, Digits

folder, every = sys.argv[1], 0

class Stop(pl.Callback):
    def on_train_batch_end(self, trainer, *rest):
        if trainer.global_step == self.at:
            raise RuntimeError("stop")

def run(folder, at):
    pl.seed_everything(1, verbose=False)
    model, end = Classifier(), Stop()
    end.at = at
    keep = pl.callbacks.ModelCheckpoint(folder, save_last=True, **({"every_n_train_steps": every} if every else {}))
    trainer = pl.Trainer(accelerator="cpu", max_epochs=3, logger=False, enable_progress_bar=False,
                         enable_model_summary=False, use_distributed_sampler=False, callbacks=[end, keep])
    try:
        trainer.fit(model, datamodule=Digits(64), ckpt_path="last")
    except RuntimeError:
        pass
    return list(model.parameters())

expected = run(folder + "/whole", 0)
for every in (0, 7):  # 22 batches an epoch: resumed from the end of the first one, or from step 28
    run(f"{folder}/cut{every}", 30)
    found = run(f"{folder}/cut{every}", 0)
    if not all(map(torch.equal, expected, found)):
        sys.exit(f"every {every}: other weights")
"""


@pytest.mark.slow
def test_the_loader_goes_on_where_the_checkpoint_was(spawn: Spawner, tmp_path: Path) -> None:
    """At the end of an epoch, and in the middle of one."""
    script = tmp_path / "train.py"
    script.write_text(LOADER)
    path = {"PYTHONPATH": f"{EXAMPLES}:{EXAMPLES.parents[1] / 'src'}"}
    job = spawn([sys.executable, str(script), str(tmp_path)], env={**QUIET, **path})
    assert job.wait() == 0, job.output()[-3000:]


ONE_AFTER_ANOTHER = """
import runpy, sys
folder, examples = sys.argv[1:3]
sys.path.insert(0, examples)
for script in ("fault_tolerance", "sections"):
    sys.argv = [script, f"--dir={folder}/{script}", "--epochs=1"]
    runpy.run_path(f"{examples}/{script}.py", run_name="__main__")
"""


@pytest.mark.slow
def test_fault_tolerance_and_sections(spawn: Spawner, tmp_path: Path) -> None:
    script, flag = tmp_path / "train.py", tmp_path / "finished"
    script.write_text(ONE_AFTER_ANOTHER)
    options = [f"--ft-run-dir={tmp_path / 'run'}", "--nproc-per-node=1"]
    options += ["--ft-rank-section-timeouts=setup:600,step:180,checkpointing:420"]
    env = {**QUIET, "FAULT_TOL_FINISHED_FLAG_FILE": str(flag)}
    job = spawn([*LAUNCHER, *options, str(script), str(tmp_path), str(EXAMPLES)], env=env)
    assert job.wait() == 0, job.err()[-3000:]
    assert flag.exists()
    assert all((tmp_path / name / "last.ckpt").exists() for name in ("fault_tolerance", "sections"))


@pytest.mark.slow
def test_stragglers(spawn: Spawner, tmp_path: Path) -> None:
    job = spawn(command(tmp_path, "stragglers.py", "--slow-rank=1", "--stop", ranks=2), env=QUIET)
    assert job.wait() == 1, job.err()[-3000:]
    said = job.out() + job.err()
    assert "Detected stragglers. Terminating training..." in said
    assert re.search(r"Affected ranks: \{StragglerId\(rank=1, ", said)
    assert (tmp_path / "saved" / "last.ckpt").exists()


@pytest.mark.slow
def test_preemption(spawn: Spawner, tmp_path: Path) -> None:
    line = command(tmp_path, "preemption.py", "--epochs=1000")  # resumed: test_preemption_jobs.py
    saved = tmp_path / "saved" / "last.ckpt"
    job = spawn(line, env=QUIET)
    job.wait_for(saved.exists)
    job.send_signal(signal.SIGTERM)
    assert job.wait() == 0, job.err()[-3000:]
    assert "Preemption detected, saving checkpoint and exiting" in job.out() + job.err()
