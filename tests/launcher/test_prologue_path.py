"""A sitecustomize that a site puts before PYTHONPATH: the prologue would not run, and a zygote would be a rank."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.launcher.conftest import Jobs
from tests.processes import Spawner

LAUNCHES = "from holdfast.fault_tolerance.launcher.main import console; console()"
ASKS = "from holdfast.fault_tolerance.launcher.ranks.rank_environment import hides_the_prologue as h; print(repr(h()))"


def test_a_folder_that_a_pth_file_puts_first_is_seen(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").touch()
    first = f"import sys; sys.path.insert(1, {str(tmp_path)!r}); {ASKS}"
    asked = [
        subprocess.run([sys.executable, "-c", text], capture_output=True, text=True) for text in (ASKS, first)
    ]
    assert [each.stdout.strip() for each in asked] == ["''", repr(str(tmp_path))]


def test_with_it_ranks_start_cold(jobs: Jobs, spawn: Spawner, tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").touch()
    # As a .pth file would, in the launcher: the ranks of this test have no such file.
    start = f"import sys; sys.path.insert(1, {str(site)!r}); {LAUNCHES}"
    script = jobs.script("say('runs')")
    spawned = spawn(
        [
            sys.executable,
            "-c",
            start,
            "--ft-run-dir",
            str(tmp_path / "run"),
            "--nproc-per-node=2",
            str(script),
        ]
    )
    assert spawned.wait() == 0
    (journal,) = (tmp_path / "run").glob("journal-*.jsonl")
    assert "takes a sitecustomize from" in journal.read_text()
    assert '"start": "warm"' not in journal.read_text()


def test_a_broken_sitecustomize_never_lets_a_zygote_run_the_script(jobs: Jobs, tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("raise RuntimeError('a broken site')\n")
    script = tmp_path / "train.py"
    script.write_text("import os\nos.write(1, f'{os.environ.get(\"RANK\")} runs\\n'.encode())\n")
    paths = (
        ":".join([str(site), *os.environ["PYTHONPATH"].split(":")])
        if "PYTHONPATH" in os.environ
        else str(site)
    )
    job = jobs.command(
        "--nproc-per-node", "2", "--ft-warm-start", "on", str(script), env={"PYTHONPATH": paths}
    )
    said = job.end(0)
    assert sorted(job.lines("runs")) == ["0 runs", "1 runs"]
    assert "warm start: its zygote" in said and "Ranks start cold" in said
