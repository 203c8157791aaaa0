"""Settings of other releases through the real command: the job runs, and two lines report them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import yaml

from tests.config.settings_of_releases import HERE, SETTINGS, VARIABLE, flags

SCRIPT = "import sys; print('trained', *sys.argv[1:])\n"


def test_job_with_every_setting_runs_and_reports_one_line(tmp_path: Path) -> None:
    """Keys in the file, flags on the command line, one variable."""
    (tmp_path / "train.py").write_text(SCRIPT)
    values = {each.name: each.values[1] for each in SETTINGS if each.is_key}
    (tmp_path / "ft.yaml").write_text(yaml.safe_dump({"fault_tolerance": values}))
    command = [sys.executable, "-m", "holdfast.fault_tolerance.launcher", "--ft-cfg-path=ft.yaml"]
    command += [f"{flags(each)[0]}={each.values[1]}" for each in SETTINGS if not each.is_key]
    done = subprocess.run(
        [*command, "train.py", "--lr=1"],
        cwd=tmp_path,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), VARIABLE: "4"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "trained --lr=1\n"), done.stderr
    lines = [line for line in done.stderr.splitlines() if "accepted, " in line]
    assert len(lines) == 1 and HERE in lines[0]
    assert (tmp_path / "job_cycle0.log").read_text() == "rank 0: trained --lr=1\n"
    assert lines[0] in (tmp_path / "ft.log").read_text()
    assert not any(each.name in done.stderr for each in SETTINGS if each.is_effective)
    assert f"{VARIABLE} (" in lines[0]
