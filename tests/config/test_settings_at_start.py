"""Settings of other releases through the real command: the job runs, and two lines report them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import yaml

from tests.config.settings_of_releases import HERE, SETTINGS, VARIABLE, YET, flags

KEYS = [each for each in SETTINGS if each.is_key]
FLAGS = [each for each in SETTINGS if not each.is_key]
SCRIPT = "import sys; print('trained', *sys.argv[1:])\n"


def launched(
    folder: Path, *argv: str, settings: object = None, environ: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """The launcher with these options on a script that ends at once; `settings` are the file's."""
    (folder / "train.py").write_text(SCRIPT)
    (folder / "ft.yaml").write_text("" if settings is None else yaml.safe_dump({"fault_tolerance": settings}))
    command = [sys.executable, "-m", "holdfast.fault_tolerance.launcher", "--ft-cfg-path=ft.yaml", *argv]
    return subprocess.run(
        [*command, "train.py", "--lr=1"],
        cwd=folder,
        env={**os.environ, "XDG_STATE_HOME": str(folder / "state"), **(environ or {})},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_job_with_every_setting_runs_and_reports_two_lines(tmp_path: Path) -> None:
    done = launched(
        tmp_path,
        *(f"{flags(each)[0]}={each.values[1]}" for each in FLAGS),
        settings={each.name: each.values[1] for each in KEYS},
        environ={VARIABLE: "4"},
    )
    assert (done.returncode, done.stdout) == (0, "trained --lr=1\n"), done.stderr
    lines = [line for line in done.stderr.splitlines() if "accepted, " in line]
    assert [message for line in lines for message in (YET, HERE) if message in line] == [YET, HERE]
    assert "use_infra_group_rank, " in lines[0]
    assert "--ft-no-restart-exit-code" in lines[0]
    assert f"{VARIABLE} (" in lines[1]


def test_job_with_every_setting_at_default_reports_nothing(tmp_path: Path) -> None:
    given = [each for each in FLAGS if each.values[0] is not None]
    done = launched(
        tmp_path,
        *(f"{flags(each)[-1]}={each.values[0]}" for each in given),
        settings={each.name: each.values[0] for each in KEYS},
    )
    assert (done.returncode, done.stdout) == (0, "trained --lr=1\n"), done.stderr
    assert "accepted, " not in done.stderr


def test_job_with_empty_file_beside_flags_runs(tmp_path: Path) -> None:
    done = launched(tmp_path, "--ft-rank-heartbeat-timeout=7", "--ft-dist-storage-health-check")
    assert (done.returncode, done.stdout) == (0, "trained --lr=1\n"), done.stderr
    assert "ft.yaml: the file is empty" in done.stderr
    assert "accepted, not yet effective in this version: enable_dist_storage_healthcheck\n" in done.stderr


def test_value_of_wrong_type_is_refused_before_the_job(tmp_path: Path) -> None:
    done = launched(tmp_path, settings={"gpu_memory_tolerance_mb": "many"})
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "ft_launcher: error: ft.yaml, line 2, gpu_memory_tolerance_mb: 'many' is not allowed: "
        "give a number, 0 or greater\n"
    )
