"""Bad input through the real command: one line, exit code 2, and nothing was started or left."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["nowhere.py"], "there is no training script 'nowhere.py'"),
        (["--ft-cfg-path", "list.yaml", "train.py"], "list.yaml: the file is a list"),
        (["--ft-cfg-path", "key.yaml", "train.py"], "did you mean 'rank_heartbeat_timeout'?"),
        (
            ["--ft-rank-heartbeat-timeout", "nan", "train.py"],
            "--ft-rank-heartbeat-timeout: 'nan' is not allowed",
        ),
        (["--ft-rank-section-timeouts", "step:", "train.py"], "section 'step' has no limit"),
        (["--nnodes", "2:1", "train.py"], "--nnodes: '2:1' is not allowed"),
        (["--unknown", "train.py"], "unknown option --unknown"),
    ],
)
def test_bad_input(tmp_path: Path, argv: list[str], said: str) -> None:
    (tmp_path / "train.py").write_text("open('started', 'w')\n")
    (tmp_path / "list.yaml").write_text("- 1\n")
    (tmp_path / "key.yaml").write_text("fault_tolerance:\n  rank_hartbeat_timeout: 3\n")
    before = sorted(tmp_path.iterdir())
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.fault_tolerance.launcher", *argv],
        cwd=tmp_path,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("ft_launcher: error: ")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before
