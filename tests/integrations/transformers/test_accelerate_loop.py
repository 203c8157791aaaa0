"""The example's loop in this process; its jobs are in `test_examples`."""

from __future__ import annotations

import runpy
from pathlib import Path

from .conftest import Ranked

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "transformers" / "accelerate_loop.py"


def test_it_gets_past_a_damaged_checkpoint_that_it_has_skipped(tmp_path: Path, ranked: Ranked) -> None:
    """It writes another one of the same name."""
    ranked()
    damaged = tmp_path / "step-2"
    damaged.mkdir()
    (damaged / "model.safetensors").write_bytes(b"half")
    runpy.run_path(str(EXAMPLE))["train"](tmp_path, 2, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-1", "step-2"]
    assert (damaged / "model.safetensors").stat().st_size > 4
