"""examples/slurm/chain.sh where Slurm says what it rarely does: its commands are scripts here."""

from __future__ import annotations

import subprocess
import time
from datetime import datetime
from pathlib import Path

import pytest

from tests.slurm.training import SCRIPTS

JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1"}
TASK = {**JOB, "SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_MAX": "3"}


class Chain:
    """A run directory, and Slurm's commands, which note how they were called."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.run_dir = folder, folder / "run dir"
        self.run_dir.mkdir()
        self.tells("scontrol", "Restarts=0 StartTime=2026-01-01T00:00:00 TimeLimit=UNLIMITED")
        self.tells("squeue", "RUNNING")
        self.tells("scancel", "")

    def tells(self, command: str, text: str) -> None:
        path = self.folder / command
        path.write_text(f'#!/bin/bash\necho "{command} $*" >> {self.folder}/calls\necho "{text}"\n')
        path.chmod(0o755)

    def runs(self, command: str, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
        known = {"PATH": f"{self.folder}:/usr/bin:/bin", "RUN": str(self.run_dir)}
        script = f"export SHELL_PID=$$\nsource {SCRIPTS}/chain.sh\nchain_begin\nchain_run {command}"
        return subprocess.run(
            ["bash", "-c", script], env={**known, **environ}, capture_output=True, text=True
        )

    @property
    def calls(self) -> str:
        return (self.folder / "calls").read_text()


@pytest.fixture
def chain(tmp_path: Path) -> Chain:
    return Chain(tmp_path)


def a_journal(chain: Chain, attempt: str) -> None:
    folder = chain.run_dir / "journal"
    folder.mkdir()
    (folder / "journal-n1_1.jsonl").write_text(
        f'{{"t":1.0,"run_id":"{attempt}","kind":"run_start"}}\n{{"t":2.0,"signal":"SIGTERM","kind":"preemption"}}\n'
    )


@pytest.mark.parametrize(
    ("attempt", "minutes", "ending"), [("7.0", 3, "time-limit"), ("7.0", 30, "failed"), ("6.0", 3, "failed")]
)
def test_a_training_that_had_to_be_killed_at_the_time_limit_is_no_failure(
    chain: Chain, attempt: str, minutes: int, ending: str
) -> None:
    a_journal(chain, attempt)
    began = datetime.fromtimestamp(time.time()).isoformat(timespec="seconds")
    chain.tells("scontrol", f"Restarts=0 StartTime={began} TimeLimit=00:{minutes:02}:00")
    assert chain.runs("exit 137", JOB).returncode == 0
    assert (chain.run_dir / "attempts").read_text().splitlines()[-1].endswith(f" {ending} (137)")


def test_a_job_that_may_not_be_requeued_starts_nothing(chain: Chain) -> None:
    chain.tells("scontrol", "JobState=RUNNING Requeue=0 Restarts=0")
    done = chain.runs(f"touch {chain.folder}/started", JOB)
    assert done.returncode == 1
    assert "job 7 may not be requeued" in done.stdout
    assert not (chain.folder / "started").exists()


def test_each_attempt_knows_its_number(chain: Chain) -> None:
    for restarts in range(2):
        done = chain.runs(
            'bash -c "echo this is $HOLDFAST_ATTEMPT; exit 75"',
            {**JOB, "SLURM_RESTART_COUNT": str(restarts), "HOLDFAST_ATTEMPT": "77"},
        )
        assert f"this is {restarts + 1}\n" in done.stdout


def test_nothing_is_started_that_cannot_be_counted(chain: Chain) -> None:
    """On a full disk each attempt would be the first."""
    (chain.run_dir / "attempts").symlink_to("/dev/full")
    done = chain.runs(f"touch {chain.folder}/started", JOB)
    assert done.returncode == 1
    assert f"cannot write {chain.run_dir}/attempts: nothing is started" in done.stdout
    assert not (chain.folder / "started").exists()


@pytest.mark.parametrize(("task", "code"), [("2", 0), ("3", 1)])
def test_the_last_task_of_an_array_that_has_not_finished_is_no_success(
    chain: Chain, task: str, code: int
) -> None:
    done = chain.runs("exit 75", {**TASK, "SLURM_ARRAY_TASK_ID": task})
    assert done.returncode == code, done.stdout
    assert ("not finished: task 3 is the last of the array" in done.stdout) is (code == 1)
    assert "scontrol requeue" not in chain.calls


def test_a_job_that_slurm_has_requeued_has_not_reached_its_time_limit(chain: Chain) -> None:
    chain.tells("scontrol", "Restarts=1 StartTime=Unknown TimeLimit=00:01:00")
    chain.tells("squeue", "PENDING")
    done = chain.runs("bash -c 'kill -TERM $PPID; sleep 0.5; exit 143'", JOB)
    assert done.returncode == 1
    assert "ended-by-slurm (143)" in (chain.run_dir / "attempts").read_text()
    assert "time-limit" not in (chain.run_dir / "attempts").read_text()
    assert "scontrol requeue" not in chain.calls


def test_a_task_is_known_by_its_place_in_the_array(chain: Chain) -> None:
    """One task of an array has the array's own number, by which Slurm tells of all its tasks."""
    facts = "Restarts=0 StartTime=2026-01-01T00:00:00 TimeLimit=UNLIMITED"
    chain.tells("scontrol", f'$([[ $* == *5_2 ]] || echo "Restarts=1 ")$(echo "{facts}")')
    assert chain.runs("exit 3", {**TASK, "SLURM_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "2"}).returncode == 0
    assert [line.split()[1:] for line in (chain.run_dir / "attempts").read_text().splitlines()][1:] == [
        ["5_2.0", "start", "on", "n1"],
        ["5_2.0", "failed", "(3)"],
    ]


def test_a_sigterm_that_comes_while_the_one_before_is_seen_to_is_seen_to_as_well(chain: Chain) -> None:
    """The first was somebody's, and is no time limit; the second is Slurm's."""
    late = "Restarts=0 StartTime=2026-01-01T00:00:00 TimeLimit=00:01:00"
    early = late.replace("00:01:00", "UNLIMITED")
    (chain.folder / "scontrol").write_text(
        f"""#!/bin/bash
echo "scontrol $*" >> {chain.folder}/calls
[[ -e $RUN/attempts ]] || exit # it has not begun
[[ $1 != requeue ]] || {{ touch {chain.folder}/done; exit; }}
if [[ -e {chain.folder}/asked ]]; then echo {late}; else echo {early}; kill -TERM "$SHELL_PID"; fi
touch {chain.folder}/asked
"""
    )
    waits = f"for try in {{1..100}}; do [[ ! -e {chain.folder}/done ]] || exit 143; sleep 0.1; done"
    (chain.folder / "trains").write_text(f"#!/bin/bash\nkill -TERM $PPID\n{waits}\n")
    (chain.folder / "trains").chmod(0o755)
    chain.runs("trains", JOB)
    assert "time-limit (not ended)" in (chain.run_dir / "attempts").read_text()
    assert "scontrol requeue 7" in chain.calls


def test_a_job_that_is_cancelled_between_two_tries_to_requeue_it_stays_cancelled(chain: Chain) -> None:
    (chain.folder / "scontrol").write_text(
        f"""#!/bin/bash
echo "scontrol $*" >> {chain.folder}/calls
[[ $1 == requeue ]] || {{ echo Restarts=0 StartTime=2026-01-01T00:00:00 TimeLimit=UNLIMITED; exit; }}
echo "echo CANCELLED" >> {chain.folder}/squeue
exit 1
"""
    )
    (chain.folder / "squeue").write_text("#!/bin/bash\n")
    (chain.folder / "sleep").write_text("#!/bin/bash\n")
    (chain.folder / "sleep").chmod(0o755)
    chain.runs("exit 3", JOB)
    assert chain.calls.count("scontrol requeue") == 1
