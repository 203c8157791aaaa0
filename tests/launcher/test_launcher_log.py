"""`--ft-launcher-log`, also as `--ft-nvrx-logfile`: the launcher's own lines in a file, too."""

from __future__ import annotations

import re

import pytest

from tests.launcher.conftest import Jobs

HEAD = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}[+-]\d{4} \S+ "


@pytest.mark.parametrize("flag", ["--ft-launcher-log", "--ft-nvrx-logfile", "--ft_nvrx_logfile"])
def test_lines_of_the_launcher_are_appended(jobs: Jobs, flag: str) -> None:
    path = jobs.folder / "ft.log"
    path.write_text("kept\n")
    job = jobs("sys.exit(3)", flag, path, "--max-restarts", "1")
    job.end(3)
    first, *lines = path.read_text().splitlines()
    assert first == "kept"
    assert [re.sub(f"^{HEAD}", "", line) for line in lines] == job.said()
    assert all(re.match(f"{HEAD}\\[holdfast\\] ", line) for line in lines)
    assert any("no restart left" in line for line in lines)


def test_variable(jobs: Jobs) -> None:
    job = jobs("pass", env={"PET_FT_NVRX_LOGFILE": "ft.log"})
    job.end(0)
    assert "limits" in (jobs.folder / "ft.log").read_text()


@pytest.mark.parametrize(
    ("path", "why"), [("nowhere/ft.log", "No such file or directory"), (".", "Is a directory")]
)
def test_path_that_cannot_be_written_is_a_usage_error(jobs: Jobs, path: str, why: str) -> None:
    job = jobs.plain("--ft-launcher-log", path, jobs.script("say('started')"))
    (line,) = job.end(2).splitlines()
    assert line.startswith("ft_launcher: error: --ft-launcher-log: ") and why in line
    assert job.spawned.out() == ""
