"""Where output goes: the ranks' by `--log-dir`, `--redirects` and `--tee`, as under torchrun, and the launcher's."""

from __future__ import annotations

import re
from pathlib import Path

from tests.launcher.conftest import Jobs, run_twins, tree

PRINTS = """
print(f"out of {RANK}, cycle {CYCLE}")
print(f"err of {RANK}, cycle {CYCLE}", file=sys.stderr)
meet()
sys.exit(0 if CYCLE else RANK)
"""


def test_same_output_and_same_files(jobs: Jobs) -> None:
    """All combinations are compared without processes: test_output.py."""
    text = PRINTS.replace("meet()\nsys.exit(0 if CYCLE else RANK)\n", "")
    flags = ("--log-dir", "logs-{who}", "--tee", "0:3,1:1", "--redirects", "1:2", "--role", "trainer")
    twins = run_twins(jobs, "--nproc-per-node", "2", *flags, jobs.script(text))
    twins.same_output()
    ours, theirs = ({line for line in each.err().splitlines() if "err of" in line} for each in twins)
    assert ours == theirs
    files = [tree(jobs.folder / f"logs-{who}") for who in ("ours", "theirs")]
    assert files[0] == files[1] and files[0]


def test_each_restart_has_a_folder_of_its_own(jobs: Jobs) -> None:
    job = jobs(PRINTS, "--max-restarts", "1", "--log-dir", "logs", "--redirects", "3")
    job.end(0)
    written = tree(jobs.folder / "logs")
    for cycle in range(2):
        for rank in range(2):
            folder = f"RUN/attempt_{cycle}/{rank}"
            assert written[f"{folder}/stdout.log"] == f"out of {rank}, cycle {cycle}\n"
            assert f"err of {rank}, cycle {cycle}\n" in written[f"{folder}/stderr.log"]


def test_everything_that_is_teed_arrives(jobs: Jobs) -> None:
    """Also what a rank wrote in its last moment, before the launcher ends."""
    job = jobs("for number in range(5000): print(number)", "--tee", "3")
    job.end(0)
    lines = job.spawned.out().splitlines()
    assert len(lines) == 10_000 and sum(line.endswith(":4999") for line in lines) == 2


def test_without_a_log_dir_nothing_is_left_in_the_temporary_folder(jobs: Jobs, tmp_path: Path) -> None:
    """torchrun leaves a folder there; here the streams are kept in the run directory."""
    job = jobs("print('kept')", "--redirects", "1", nproc=1, env={"TMPDIR": str(tmp_path / "tmp")})
    job.end(0)
    assert not (tmp_path / "tmp").exists()
    assert list(tree(job.run_dir / "logs").values()) == ["kept\n"]


def test_torchs_file_timer_leaves_nothing_from_cycle_to_cycle(jobs: Jobs) -> None:
    """It is a thread and a FIFO for each cycle."""
    text = """
import glob
meet()
say("sees", len(glob.glob(os.environ["TMPDIR"] + "/watchdog_timer_*")))
sys.exit(3 if CYCLE < 2 else 0)
"""
    env = {"TORCHELASTIC_ENABLE_FILE_TIMER": "1", "TMPDIR": str(jobs.folder)}
    job = jobs(text, "--max-restarts", "2", nproc=1, env=env)
    job.end(0)
    assert [line.split()[-1] for line in job.lines(" sees ")] == ["1", "1", "1"]
    assert not list(jobs.folder.glob("watchdog_timer_*"))


HEAD = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}[+-]\d{4} \S+ "


def test_lines_of_the_launcher_are_appended(jobs: Jobs) -> None:
    path = jobs.folder / "ft.log"
    path.write_text("kept\n")
    job = jobs("sys.exit(3)", "--max-restarts", "1", env={"PET_FT_NVRX_LOGFILE": "ft.log"})
    job.end(3)
    first, *lines = path.read_text().splitlines()
    assert first == "kept"
    assert [re.sub(f"^{HEAD}", "", line) for line in lines] == job.said()
    assert all(re.match(f"{HEAD}\\[holdfast\\] ", line) for line in lines)
