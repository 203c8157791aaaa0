"""docs/checkpoints.md: its program with its fault, and its calls into frameworks."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from holdfast import checkpoints
from tests.pages import DOCS, block
from tests.processes import Spawner

from .conftest import HUGGING_FACE

PAGE = DOCS / "checkpoints.md"


def call_of(framework: str) -> str:
    found = re.search(rf"^\| {re.escape(framework)} \| `(.*?)`", PAGE.read_text(), re.MULTILINE)
    assert found
    return found[1]


@pytest.mark.slow
def test_the_program_skips_what_the_fault_left(spawn: Spawner, tmp_path: Path) -> None:
    (tmp_path / "save.py").write_text(block("checkpoints.md", "save.py"))
    first = spawn([sys.executable, "save.py"], cwd=tmp_path, env={"HOLDFAST_FAULT": "half_save@step=3"})
    assert first.wait() == -signal.SIGXFSZ
    second = spawn([sys.executable, "save.py"], cwd=tmp_path)
    assert second.wait() == 0
    expected = (
        "checkpoint skipped, resuming from step-2.pt: checkpoints/step-3.pt is cut off, after 4096 bytes"
    )
    assert f"holdfast: {expected}" in second.err() and expected in PAGE.read_text()
    assert second.out() == "begins after step 2\nends after step 5\n"


def test_lightning_resumes_from_it(
    make: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pl = pytest.importorskip("lightning.pytorch")
    from lightning.pytorch.demos.boring_classes import BoringModel

    (tmp_path / "checkpoints").mkdir()
    make("lightning", "checkpoints/epoch=0-step=1.ckpt")
    half = make("lightning", "checkpoints/epoch=0-step=2.ckpt")
    half.write_bytes(half.read_bytes()[:999])
    monkeypatch.chdir(tmp_path)
    trainer = pl.Trainer(
        max_steps=3, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, max_epochs=5,
    )  # fmt: skip
    model = BoringModel()
    model.train_dataloader = lambda: torch.utils.data.DataLoader(torch.randn(4, 32))
    model.val_dataloader = lambda: []
    eval(call_of("Lightning"), {"trainer": trainer, "model": model, "checkpoints": checkpoints})
    assert trainer.global_step == 3 and trainer.ckpt_path is not None


@pytest.mark.slow
def test_hugging_face_resumes_from_it(make: Callable[..., Path], tmp_path: Path, spawn: Spawner) -> None:
    whole = make("hugging face")
    half = tmp_path / "checkpoint-3"
    half.mkdir()
    (half / "model.safetensors").write_bytes((whole / "model.safetensors").read_bytes()[:500])
    program = HUGGING_FACE.replace("max_steps=2", "max_steps=3, logging_steps=1")
    plain, call = (
        "transformers.Trainer(model=model, args=arguments, train_dataset=data)",
        call_of("Hugging Face"),
    )
    assert plain in program
    program = program.replace(f"{plain}.train()", f"trainer = {plain}")
    program += "from holdfast import checkpoints\nnewest = checkpoints.last_complete(sys.argv[1])\n"
    program += f"{call}\nprint('loaded', newest.name, 'at', trainer.state.global_step)\n"
    job = spawn.python(program, str(tmp_path))
    assert job.wait() == 0, job.output()
    assert "loaded checkpoint-2 at 3" in job.out() and "checkpoint skipped" in job.err()
