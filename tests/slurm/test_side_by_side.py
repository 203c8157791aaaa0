"""`holdfast autoresume` and `holdfast slurm` in one run directory: one of them trains; Slurm's commands are scripts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.autoresume.ledger import chain_begins
from holdfast.autoresume.run_dir import LedgerFile, Taken, take_lock
from holdfast.cli.main import main
from holdfast.integrations.slurm.attempt import claim, claimed_by
from holdfast.integrations.slurm.job import job_of
from holdfast.integrations.slurm.submit import standing
from tests.slurm.test_attempt import RUNNING, Slurm, begin, chains, keeper, run_dir, slurm

__all__ = ["run_dir", "slurm"]  # fixtures

OVER = [("CANCELLED", "cancelled"), ("FAILED", "over"), ("", "over")]


def resumes(run_dir: Path, *command: str) -> tuple[int, str]:
    """Exit code and standard error of `holdfast autoresume`, a process of its own: it adopts orphans."""
    words = ["autoresume", "--run-dir", run_dir, "--backoff=0", "--", *command]
    done = subprocess.run([sys.executable, "-m", "holdfast", *words], capture_output=True, timeout=60)
    return done.returncode, done.stderr.decode()


def deaf(slurm: Slurm) -> None:
    """Its controller is gone."""
    script = "#!/bin/bash\necho Unable to contact slurm controller >&2\nexit 1\n"
    (slurm.folder / "scontrol").write_text(script)


def train(run_dir: Path) -> list[str]:
    """A training that is finished at once, and tells that it ran."""
    return ["touch", str(run_dir / "trained"), str(run_dir / "finished.flag")]


def submits(run_dir: Path) -> int:
    return main(["slurm", "--run-dir", str(run_dir), "--", "ft_launcher", "train.py"])


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "COMPLETING"])
def test_where_a_job_trains_or_will_autoresume_starts_nothing(
    slurm: Slurm, run_dir: Path, state: str
) -> None:
    begin(slurm, run_dir)
    slurm.tells("7", RUNNING.format(0).replace("RUNNING", state))
    before = (run_dir / "attempts.jsonl").read_text()
    line = f"job 7 trains in {run_dir} already ({state}). Wait for it, end it (scancel 7), or use another run directory"
    assert resumes(run_dir, *train(run_dir)) == (2, f"holdfast: error: {line}\n")
    assert not (run_dir / "trained").exists()
    assert (run_dir / "attempts.jsonl").read_text() == before


def test_where_slurm_cannot_be_asked_the_way_out_is_told(slurm: Slurm, run_dir: Path) -> None:
    claim(str(run_dir), "7")
    deaf(slurm)
    code, said = resumes(run_dir, *train(run_dir))
    (line,) = said.splitlines()
    assert code == 2
    assert "Unable to contact slurm controller" in line
    assert line.endswith(f"If it is over: rm {run_dir}/slurm-job.json")
    (run_dir / "slurm-job.json").unlink()
    assert resumes(run_dir, *train(run_dir))[0] == 0


def test_where_autoresume_is_at_work_nothing_is_submitted_and_no_job_begins(
    slurm: Slurm, run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm.tells("7", RUNNING.format(0))
    with take_lock(str(run_dir)):
        assert submits(run_dir) == 2
        said = capsys.readouterr().err
        assert f"another holdfast autoresume is at work in {run_dir}" in said and said.count("\n") == 1
        assert not (run_dir / "job.sbatch").exists()
        with pytest.raises(Taken):
            keeper(run_dir).begins()
        assert claimed_by(str(run_dir)) == ""
    assert keeper(run_dir).begins() == 0


def test_a_keeper_that_was_killed_does_not_keep_jobs_out(slurm: Slurm, run_dir: Path) -> None:
    # Another process had this number.
    who = {"host": os.uname().nodename, "pid": os.getpid(), "started": 1}
    flag = str(run_dir / "finished.flag")
    file = LedgerFile(str(run_dir))
    file.append(chain_begins(1.0, command=["true"], flag=flag, carries_on=False, **who))
    begin(slurm, run_dir)
    assert [chain.state for chain in chains(run_dir)] == ["cancelled", ""]


# What --status says of a job


def status(run_dir: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    capsys.readouterr()
    assert main(["autoresume", "--status", str(run_dir), *options]) == 0
    return capsys.readouterr().out


def test_a_job_that_runs_goes_on(slurm: Slurm, run_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    begin(slurm, run_dir)
    shown = status(run_dir, capsys).splitlines()
    assert shown[-1] == "continues: job 7 is RUNNING"
    assert " runs " in shown[-2]


@pytest.mark.parametrize(("state", "word"), OVER)
def test_a_job_that_is_over_is_said_to_be_and_blocks_nobody(
    slurm: Slurm, run_dir: Path, state: str, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    begin(slurm, run_dir)
    if state:
        slurm.tells("7", RUNNING.format(0).replace("RUNNING", state))
    else:
        (slurm.folder / "job-7").unlink()
    shown = status(run_dir, capsys).splitlines()
    assert shown[-1].startswith(f"{word}: job 7 ") and "runs" not in shown[-2] and word in shown[-2]
    (chain,) = json.loads(status(run_dir, capsys, "--json"))
    assert chain["state"] == word and "job 7" in chain["why"]
    assert resumes(run_dir, *train(run_dir))[0] == 0
    assert (run_dir / "trained").exists()


def test_where_slurm_does_not_tell_it_is_not_known(
    slurm: Slurm, run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begin(slurm, run_dir)
    deaf(slurm)
    shown = status(run_dir, capsys).splitlines()
    assert shown[-1].startswith(
        "not known: the end of job 7 is not in the ledger, and: scontrol show: Unable"
    )
    assert "not known" in shown[-2]


def test_a_job_that_waits_says_why() -> None:
    job = job_of("JobState=PENDING Reason=BadConstraints Dependency=(null) Restarts=1")
    assert standing("7", job, None).why == "job 7 is PENDING, BadConstraints"


def test_what_nobody_saw_ran_for_an_unknown_time(slurm: Slurm, run_dir: Path) -> None:
    begin(slurm, run_dir)
    slurm.tells("7", RUNNING.format(0).replace("RUNNING", "CANCELLED"))
    assert keeper(run_dir, "8").begins() == 0
    (attempt,) = chains(run_dir)[0].attempts
    assert (str(attempt.kind), attempt.seconds) == ("cancelled", None)


# Command lines


@pytest.mark.parametrize("command", ["autoresume", "slurm"])
def test_an_abbreviated_flag_is_a_misspelt_one(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([command, "--max-failure", "2", "--", "ft_launcher", "train.py"])
    assert stop.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    "words", [["incidents", "--jso"], ["stragglers", "--jso"], ["--vers"], ["slurm", "--attempt-beg"]]
)
def test_so_for_every_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2


def test_errors_name_the_option_that_was_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert submits(Path("/proc/nothing")) == 2
    said = capsys.readouterr().err
    assert "Give --run-dir a folder of your own" in said and "--ft-run-dir" not in said


def test_hints_can_be_pasted_into_a_shell(
    slurm: Slurm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "my run"
    (slurm.folder / "sbatch").write_text("#!/bin/bash\necho 9\n")
    (slurm.folder / "sbatch").chmod(0o755)
    assert submits(place) == 0
    assert f"holdfast autoresume --status '{place}'; to end" in capsys.readouterr().err
    assert os.path.exists(place / "slurm-job.json")
    other = tmp_path / "an other"
    code, said = resumes(other, "touch", str(other / "finished.flag"))
    assert (code, said.endswith(f"holdfast autoresume --status '{other}'\n")) == (0, True)


def test_slurm_that_submits_nothing_leaves_no_folder(slurm: Slurm, tmp_path: Path) -> None:
    """Its own run directory; one that was chosen stays."""
    (slurm.folder / "sbatch").write_text("#!/bin/bash\necho invalid partition >&2\nexit 1\n")
    (slurm.folder / "sbatch").chmod(0o755)
    place = tmp_path / "here"
    place.mkdir()
    for words, left in (([], []), (["--run-dir=mine"], ["mine"])):
        command = [sys.executable, "-m", "holdfast", "slurm", *words, "--", "ft_launcher", "train.py"]
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (
            2,
            "holdfast: error: sbatch --parsable: invalid partition\n",
        )
        assert sorted(path.name for path in place.iterdir()) == left
