"""The beginning and the end of an attempt, and `holdfast autoresume` beside it, where Slurm says what it rarely does.

Its commands are scripts here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest

from holdfast.autoresume.ledger import Chain, chain_begins
from holdfast.autoresume.outcome import Scheduler
from holdfast.autoresume.policy import Limits
from holdfast.autoresume.run_dir import LedgerFile, Taken, take_lock
from holdfast.cli.main import main
from holdfast.integrations.slurm import job as commands
from holdfast.integrations.slurm.attempt import Keeper, Refused, claim, claimed_by
from holdfast.integrations.slurm.job import Place, job_of, spared, word_of
from holdfast.integrations.slurm.script import DONE, REFUSED
from holdfast.integrations.slurm.submit import standing
from tests.autoresume.conftest import fill

COMMAND = """
echo "$(basename "$0") $*" >> {folder}/calls
case "$(basename "$0") $1" in
"scontrol show")
    [[ $2 != hostnames ]] || {{ echo "$3"; exit; }}
    cat {folder}/job-$3 2>/dev/null || {{ echo "Invalid job id specified" >&2; exit 1; }} ;;
"sacct "*) cat {folder}/past ;;
"sinfo "*) cat {folder}/nodes 2>/dev/null || true ;;
esac
case "$(basename "$0") $1" in
"scontrol requeue") [[ ! -e {folder}/refuses ]] || {{ echo "Unable to contact slurm controller" >&2; exit 1; }} ;;
"scontrol update") [[ ! -e {folder}/not-pending ]] || {{ echo "Job is not pending" >&2; exit 1; }} ;;
"scontrol show") [[ ! -e {folder}/next-$3 ]] || mv {folder}/next-$3 {folder}/job-$3 ;;
esac
"""
LOST = "n1 idle\nn2 down*\n"
Capture = pytest.CaptureFixture[str]


class Slurm:
    """What Slurm's commands answer, and what they were asked; and the run directory of a job."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run_dir = folder / "run"
        self.run_dir.mkdir()
        for name in ("scontrol", "sinfo", "scancel", "sacct"):
            self.has(name, COMMAND.format(folder=folder))

    def has(self, command: str, script: str) -> None:
        """This script for a command."""
        path = self.folder / command
        path.write_bytes(os.fsencode(f"#!/bin/bash\n{script}\n"))
        path.chmod(0o755)

    def shows(
        self,
        state: str = "RUNNING",
        restarts: int = 0,
        *,
        job: str = "7",
        limit: str = "UNLIMITED",
        more: str = "",
        file: str = "job",
    ) -> None:
        """This of a job, whose name is not UTF-8; with `file="next"` from the second question on."""
        text = (
            f"JobState={state} Restarts={restarts} TimeLimit={limit} PreemptTime=None ExcNodeList=n9 {more}"
        )
        (self.folder / f"{file}-{job}").write_bytes(b"JobId=7 JobName=tr\xe4in " + text.encode())

    def shows_time_limit(self) -> None:
        """It has come."""
        self.shows("COMPLETING", limit="00:01:00 StartTime=2026-01-01T00:00:00")

    def has_nodes(self, states: str) -> None:
        (self.folder / "nodes").write_text(states)

    def refuses(self) -> None:
        """It requeues nothing."""
        (self.folder / "refuses").touch()

    def is_deaf(self) -> None:
        """Its controller is gone."""
        self.has("scontrol", "echo Unable to contact slurm controller >&2; exit 1")

    def asked(self, command: str) -> list[str]:
        calls = (self.folder / "calls").read_text().splitlines()
        return [call for call in calls if call.startswith(command)]

    def keeper(self, restarts: int = 0, *, job: str = "7", **limits: int) -> Keeper:
        place = Place(job, restarts, "n[1-2]")
        return Keeper(str(self.run_dir), place, Limits(**limits), exclude_after=2, notice=180.0)

    def begins(self, restarts: int = 0) -> None:
        """An attempt of job 7 begins."""
        self.shows(restarts=restarts)
        assert self.keeper(restarts).begins() == 0

    def chains(self) -> tuple[Chain, ...]:
        return LedgerFile(str(self.run_dir)).read().chains

    def kinds(self) -> list[str]:
        """How the attempts of the first chain ended."""
        return [str(attempt.kind) for attempt in self.chains()[0].attempts]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("FAULT_TOL_FINISHED_FLAG_FILE", raising=False)
    monkeypatch.setattr(commands, "PAUSES", (0.0, 0.0))
    return Slurm(tmp_path)


def test_a_failure_is_requeued_and_the_next_attempt_has_a_number(
    slurm: Slurm, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm.begins()
    assert slurm.keeper().ended(9) == 0
    assert slurm.asked("scontrol requeue") == ["scontrol requeue 7"]
    said = capsys.readouterr().err
    assert "exit code 9. Failure 1 of 3 in a row; job 7 is requeued, attempt 2 follows" in said
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert main(["slurm", f"--run-dir={slurm.run_dir}", "--attempt-begins"]) == 0
    assert capsys.readouterr().out == "2\n"
    claim(str(slurm.run_dir), "8")
    slurm.shows(job="8")
    assert main(["slurm", f"--run-dir={slurm.run_dir}", "--attempt-begins"]) == REFUSED


def test_an_unknown_job_is_judged_by_its_exit_code(slurm: Slurm) -> None:
    assert slurm.keeper().begins() == 0
    assert slurm.keeper(max_failures=1).ended(9) == 1
    assert slurm.chains()[0].state == "gave up"


def test_a_requeued_job_is_cancelled_when_the_chain_gives_up(slurm: Slurm) -> None:
    slurm.shows("COMPLETING", restarts=1)
    slurm.has_nodes(LOST)
    assert slurm.keeper().begins() == 0
    assert slurm.keeper(max_failures=1).ended(143) == 1
    assert slurm.asked("scancel") == ["scancel 7"]
    assert slurm.asked("scontrol requeue") == []
    assert (slurm.kinds(), slurm.chains()[0].attempts[0].node) == (["node lost"], "n2")


def test_an_end_that_nobody_noted_is_noted_by_the_next_attempt(slurm: Slurm) -> None:
    slurm.shows(restarts=1)
    slurm.has_nodes("n1 down\nn2 idle\n")
    assert slurm.keeper().begins() == 0
    assert slurm.keeper(restarts=1).begins() == 0
    # The batch script on the lost node runs on, and ends while the next run is under way.
    assert slurm.keeper(restarts=0).ended(1) == 1
    assert slurm.asked("scontrol requeue") == []
    first, second = slurm.chains()[0].attempts
    assert (str(first.kind), first.node, second.kind) == ("node lost", "n1", None)
    # Of the next one that is not noted nothing is known.
    slurm.has_nodes("n1 idle\nn2 idle\n")
    assert slurm.keeper(restarts=2).begins() == 0
    lost = slurm.chains()[0].attempts[1]
    assert str(lost.kind) == "lost"
    assert lost.why == "run 7.1 could not note its end; Slurm started the job again"


def test_a_cancelled_job_s_chain_is_over(slurm: Slurm) -> None:
    slurm.begins()
    slurm.shows("CANCELLED")
    claim(str(slurm.run_dir), "8")  # as `holdfast slurm` does when it has submitted
    assert slurm.keeper(job="8").begins() == 0
    first, second = slurm.chains()
    (attempt,) = first.attempts
    assert (first.state, str(attempt.kind), attempt.seconds) == ("cancelled", "cancelled", None)
    assert (second.state, len(second.attempts)) == ("", 1)


def test_a_job_that_was_cancelled_while_it_waited(slurm: Slurm) -> None:
    slurm.begins()
    assert slurm.keeper().ended(9) == 0
    slurm.shows("CANCELLED", restarts=1)
    assert slurm.keeper(job="8").begins() == 0
    assert [chain.state for chain in slurm.chains()] == ["cancelled", ""]


def test_another_job_s_claim_counts_while_it_lives(slurm: Slurm) -> None:
    slurm.shows("PENDING")
    claim(str(slurm.run_dir), "7")
    with pytest.raises(Refused, match=r"job 7 trains in .*run already \(PENDING\)"):
        slurm.keeper(job="8").begins()
    slurm.shows("COMPLETED")
    assert slurm.keeper(job="8").begins() == 0
    assert claimed_by(str(slurm.run_dir)) == "8"


def test_a_stale_flag_is_removed_and_our_own_ends_the_chain(slurm: Slurm) -> None:
    flag = slurm.run_dir / "finished.flag"
    flag.touch()
    slurm.begins()
    assert not flag.exists()
    flag.touch()
    assert slurm.keeper().ended(0) == 0
    assert slurm.chains()[0].state == "finished"
    slurm.shows("COMPLETED")
    assert slurm.keeper(job="8").begins() == DONE
    # Also when it was killed between the two records of its end, and the flag is gone.
    ledger = slurm.run_dir / "attempts.jsonl"
    ledger.write_text("".join(ledger.read_text().splitlines(keepends=True)[:-1]))
    flag.unlink()
    assert slurm.keeper(restarts=1).begins() == DONE
    assert slurm.kinds() == ["finished"]


def test_at_the_time_limit_a_job_is_requeued_at_once(slurm: Slurm) -> None:
    slurm.begins()
    assert slurm.keeper().job_ends() == 0  # the batch script got a signal by hand: nothing to do
    slurm.shows_time_limit()
    assert slurm.keeper().job_ends() == 0
    slurm.shows("COMPLETING", restarts=1)
    assert slurm.keeper().ended(137) == 0
    assert slurm.asked("scontrol requeue") == ["scontrol requeue 7"]
    assert slurm.kinds() == ["time limit"]


def test_a_job_cancelled_while_its_failure_is_noted_ends(slurm: Slurm) -> None:
    assert slurm.keeper().begins() == 0
    slurm.shows()
    slurm.shows("COMPLETING", file="next")
    assert slurm.keeper().ended(9) == 130
    assert slurm.asked("scontrol requeue") == []
    assert slurm.chains()[0].state == "cancelled"


def test_a_chain_that_could_not_be_requeued_is_over(slurm: Slurm, capsys: Capture) -> None:
    slurm.begins()
    slurm.refuses()
    assert slurm.keeper().ended(9) == 1
    assert len(slurm.asked("scontrol requeue")) == 3
    (chain,) = slurm.chains()
    assert chain.state == "gave up"
    assert "job 7 could not be requeued (scontrol requeue: Unable to contact slurm controller)" in chain.why
    said = capsys.readouterr().err
    assert "To carry on: scontrol requeue 7" in said
    assert "is requeued" not in said
    assert slurm.keeper(restarts=1).begins() == 0
    assert [chain.state for chain in slurm.chains()] == ["gave up", ""]


def test_a_requeue_whose_answer_was_lost_is_done(slurm: Slurm) -> None:
    slurm.begins()
    slurm.refuses()
    requeued = f"sed -i s/Restarts=0/Restarts=1/ {slurm.folder}/job-7"
    script = COMMAND.format(folder=slurm.folder).replace('echo "Unable', f'{requeued}; echo "Unable')
    slurm.has("scontrol", script)
    assert slurm.keeper().ended(9) == 0
    assert len(slurm.asked("scontrol requeue")) == 1
    assert slurm.chains()[0].state == ""


@pytest.mark.parametrize(
    ("job", "is_pending", "asked", "said"),
    [
        ("", True, ["scontrol update JobId=7 ExcNodeList=n9,n2"], ""),  # beside those that the user excluded
        ("", False, None, "n2 could not be left out (scontrol update: Job is not pending)"),
        (" NumNodes=2", True, [], "n2: to be left out, but job 7 needs 2 nodes of those left"),
    ],
)
def test_a_node_that_was_lost_twice_is_left_out(
    slurm: Slurm, job: str, is_pending: bool, asked: list[str] | None, said: str, capsys: Capture
) -> None:
    """In any case the chain continues."""
    if not is_pending:
        (slurm.folder / "not-pending").touch()
    slurm.has_nodes(LOST)
    for restarts in range(2):
        slurm.shows(restarts=restarts + 1, more=job)
        assert slurm.keeper(restarts).begins() == 0
        assert slurm.keeper(restarts).ended(143) == 0
    assert asked is None or slurm.asked("scontrol update") == asked
    assert said in capsys.readouterr().err
    assert slurm.chains()[0].state == ""


@pytest.mark.parametrize(("limits", "state"), [({"max_jobs": 1}, "too many jobs"), ({}, "gave up")])
def test_giving_up_at_the_time_limit_is_an_error(slurm: Slurm, limits: dict[str, int], state: str) -> None:
    """By the limit of jobs, or as the job could not be requeued."""
    slurm.begins()
    slurm.shows_time_limit()
    if not limits:
        slurm.refuses()
    slurm.keeper(**limits).job_ends()
    assert slurm.chains()[0].state == state
    assert slurm.keeper(**limits).ended(137) == 1
    assert bool(slurm.asked("scontrol requeue")) is not bool(limits)


@pytest.mark.parametrize(("past", "kind"), [("", "preempted"), ("NODE_FAIL\nPENDING\n", "node lost")])
def test_a_requeue_by_an_administrator_is_no_lost_node(slurm: Slurm, past: str, kind: str) -> None:
    slurm.begins()
    slurm.shows("COMPLETING", restarts=1)
    slurm.has_nodes("n1 idle\nn2 idle\n")
    if past:
        (slurm.folder / "past").write_text(past)
    assert slurm.keeper(max_failures=1).ended(143) == (1 if past else 0)
    assert slurm.kinds() == [kind]


@pytest.mark.parametrize(
    ("bad", "needed", "expected"),
    [
        ("a b", 2, ("a", "b")),
        ("a b c", 2, ("a", "b")),  # d does not work: r alone would be left
        ("d a", 3, ("d", "a")),
        ("d a", 4, ("d",)),
        ("d", 5, ()),  # when it works again, it is needed
        ("x z r", 1, ()),  # excluded already; of no partition of ours; asked for by name
    ],
)
def test_a_job_keeps_the_nodes_that_it_needs(bad: str, needed: int, expected: tuple[str, ...]) -> None:
    nodes = {"a": "idle", "b": "allocated", "c": "idle", "d": "down*", "r": "mixed", "x": "idle"}
    assert spared(bad.split(), nodes, needed=needed, excluded=["x"], required=["r"]) == expected


PREEMPTION = '{{"t": {0}, "mono": 1.0, "node": "n1:9", "kind": "preemption", "signal": "SIGTERM"}}\n'
FIRST_STEP = (
    '{{"t": {0}, "mono": 0, "node": "n1:9", "kind": "first_step", "cycle": 0, "rank": 0, "step": 4}}\n'
)


def a_minute_from_now() -> str:
    """A time limit, and the start of its job."""
    return f"00:01:00 StartTime={datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%S}"


@pytest.mark.parametrize("told", [True, False])
def test_a_training_killed_at_the_time_limit_spends_nothing(slurm: Slurm, told: bool) -> None:
    slurm.begins()
    if told:
        (slurm.run_dir / "journal-n1_9.jsonl").write_text(PREEMPTION.format(time.time()))
    slurm.shows(limit=a_minute_from_now())
    assert slurm.keeper(max_failures=1).ended(137) == (0 if told else 1)
    assert slurm.kinds() == ["time limit" if told else "failed"]


def test_time_limits_without_a_step_come_to_an_end(slurm: Slurm) -> None:
    """Each resumes from the same step: the notice is too short for a checkpoint, or the training hangs."""
    limit = a_minute_from_now()
    codes = []
    for restarts in range(3):
        slurm.shows(restarts=restarts, limit=limit)
        assert slurm.keeper(restarts).begins() == 0
        lines = [FIRST_STEP.format(time.time()), PREEMPTION.format(time.time())]
        (slurm.run_dir / f"journal-n1_{restarts}.jsonl").write_text("".join(lines))
        codes.append(slurm.keeper(restarts).ended(137))
    assert codes == [0, 0, 1]
    assert slurm.kinds() == ["time limit"] * 3
    assert [chain.state for chain in slurm.chains()] == ["gave up"]


NIGHT = datetime(2026, 10, 25, 1, 30, tzinfo=timezone.utc).timestamp()
"""In Berlin it is 02:30 for the second time, for at 01:00 UTC summer time ended."""
BY_THE_CLOCK = f"""
format=${{SLURM_TIME_FORMAT:-standard}}
began=$(date -d @{NIGHT:.0f} "+${{format/#standard/%Y-%m-%dT%H:%M:%S}}")
echo "JobState=COMPLETING Restarts=0 StartTime=$began TimeLimit=04:00:00"
"""


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("berlin")
@pytest.mark.parametrize("form", ["standard", "%H:%M"])
def test_a_cancelled_job_after_summer_time_is_no_time_limit(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """As `date` does, Slurm's commands write local times, in a form that the user may choose."""
    monkeypatch.setenv("SLURM_TIME_FORMAT", form)
    slurm.has("scontrol", BY_THE_CLOCK)
    job = commands.job("7")
    assert job.began == NIGHT
    for minutes, expected in ((190, Scheduler.CANCELLED), (240, Scheduler.TIME_LIMIT)):
        word = word_of(job, restarts=0, code=143, now=NIGHT + 60.0 * minutes, notice=180.0)
        assert word.scheduler is expected


def test_a_job_that_may_not_be_requeued_starts_nothing(slurm: Slurm, capsys: Capture) -> None:
    slurm.shows(more="Requeue=0")
    assert slurm.keeper().begins() == 1
    assert "gave up: job 7 may not be requeued" in capsys.readouterr().err
    (chain,) = slurm.chains()
    assert (chain.state, chain.attempts) == ("gave up", ())
    slurm.begins()


def test_exit_code_2_beside_an_unreadable_journal_is_a_failure(slurm: Slurm) -> None:
    """Ranks may have been started: it is no command line that would be refused again."""
    slurm.begins()
    (slurm.run_dir / "journal-x.jsonl").mkdir()
    assert slurm.keeper().ended(2) == 0
    assert slurm.kinds() == ["failed"]


@pytest.fixture
def full(slurm: Slurm, small_disk: Path) -> Path:
    """A run directory in which a job has the claim, on a disk that is full."""
    slurm.run_dir = small_disk
    claim(str(small_disk), "7")
    fill(small_disk)
    return small_disk


def test_on_a_full_disk_the_chain_goes_on(slurm: Slurm, full: Path, capsys: Capture) -> None:
    for restarts in range(5):
        slurm.begins(restarts)
        assert slurm.keeper(restarts).ended(75) == 0
    assert len(slurm.asked("scontrol requeue")) == 5
    error = "cannot be written: No space left on device. The training continues"
    assert f"{full}/attempts.jsonl {error}" in capsys.readouterr().err
    (full / "filler").unlink()
    slurm.shows(restarts=5)
    (full / "finished.flag").touch()
    assert slurm.keeper(restarts=5).ended(0) == 0
    assert slurm.chains()[0].state == "finished"


@pytest.mark.usefixtures("full")
@pytest.mark.parametrize(("code", "limits", "codes"), [(9, {}, [0, 0, 1]), (75, {"max_jobs": 2}, [0, 1])])
def test_on_a_full_disk_a_chain_does_not_go_on_for_ever(
    slurm: Slurm, code: int, limits: dict[str, int], codes: list[int], capsys: Capture
) -> None:
    found = []
    for restarts in range(len(codes)):
        slurm.begins(restarts)
        found.append(slurm.keeper(restarts, **limits).ended(code))
    assert found == codes
    assert len(slurm.asked("scontrol requeue")) == codes.count(0)
    assert ("cannot tell: 2, taken for failures" in capsys.readouterr().err) is not bool(limits)


@pytest.mark.usefixtures("full")
def test_a_full_disk_does_not_hinder_the_requeue(slurm: Slurm) -> None:
    slurm.begins()
    slurm.shows_time_limit()
    assert slurm.keeper().job_ends() == 0
    assert slurm.asked("scontrol requeue") == ["scontrol requeue 7"]


def test_a_claim_that_cannot_be_written_is_named(slurm: Slurm, small_disk: Path, capsys: Capture) -> None:
    fill(small_disk)
    slurm.run_dir = small_disk
    slurm.begins()
    assert f"{small_disk}/slurm-job.json cannot be written: No space left" in capsys.readouterr().err


# `holdfast autoresume` and `holdfast slurm` in one run directory: one of them trains


def resumes(run_dir: Path) -> tuple[int, str]:
    """Exit code and standard error of `holdfast autoresume`, a process of its own: it adopts orphans.

    The training is finished at once, and tells that it ran.
    """
    train = ["touch", run_dir / "trained", run_dir / "finished.flag"]
    words = ["autoresume", "--run-dir", run_dir, "--backoff=0", "--", *train]
    done = subprocess.run([sys.executable, "-m", "holdfast", *words], capture_output=True, timeout=60)
    return done.returncode, done.stderr.decode()


def submits(run_dir: Path) -> int:
    return main(["slurm", "--run-dir", str(run_dir), "--", "ft_launcher", "train.py"])


def test_where_a_job_trains_or_will_autoresume_starts_nothing(slurm: Slurm) -> None:
    slurm.begins()
    slurm.shows("PENDING")
    run_dir = slurm.run_dir
    before = (run_dir / "attempts.jsonl").read_text()
    line = f"job 7 trains in {run_dir} already (PENDING). Wait for it, end it (scancel 7), or use another run directory"
    assert resumes(run_dir) == (2, f"holdfast: error: {line}\n")
    assert not (run_dir / "trained").exists()
    assert (run_dir / "attempts.jsonl").read_text() == before


def test_where_slurm_cannot_be_asked_the_way_out_is_told(slurm: Slurm) -> None:
    claim(str(slurm.run_dir), "7")
    slurm.is_deaf()
    code, said = resumes(slurm.run_dir)
    (line,) = said.splitlines()
    assert code == 2
    assert "Unable to contact slurm controller" in line
    assert line.endswith(f"If it is over: rm {slurm.run_dir}/slurm-job.json")
    (slurm.run_dir / "slurm-job.json").unlink()
    assert resumes(slurm.run_dir)[0] == 0


def test_where_autoresume_is_at_work_no_job_begins(slurm: Slurm, capsys: Capture) -> None:
    slurm.shows()
    with take_lock(str(slurm.run_dir)):
        assert submits(slurm.run_dir) == 2
        said = capsys.readouterr().err
        assert f"another holdfast autoresume is at work in {slurm.run_dir}" in said and said.count("\n") == 1
        assert not (slurm.run_dir / "job.sbatch").exists()
        with pytest.raises(Taken):
            slurm.keeper().begins()
        assert claimed_by(str(slurm.run_dir)) == ""
    assert slurm.keeper().begins() == 0


def test_a_keeper_that_was_killed_does_not_keep_jobs_out(slurm: Slurm) -> None:
    # Another process had this number.
    who = {"host": os.uname().nodename, "pid": os.getpid(), "started": 1}
    flag = str(slurm.run_dir / "finished.flag")
    file = LedgerFile(str(slurm.run_dir))
    file.append(chain_begins(1.0, command=["true"], flag=flag, carries_on=False, **who))
    slurm.begins()
    assert [chain.state for chain in slurm.chains()] == ["cancelled", ""]


# What --status says of a job


def test_status_of_a_job(slurm: Slurm, capsys: Capture) -> None:
    """One that is over blocks no other."""

    def status(*options: str) -> str:
        capsys.readouterr()
        assert main(["autoresume", "--status", str(slurm.run_dir), *options]) == 0
        return capsys.readouterr().out

    slurm.begins()
    *_, attempt, chain = status().splitlines()
    assert " runs " in attempt and chain == "continues: job 7 is RUNNING"
    for state, word in (("CANCELLED", "cancelled"), ("FAILED", "over"), ("", "over")):
        slurm.shows(state)
        if not state:
            (slurm.folder / "job-7").unlink()
        *_, attempt, chain = status().splitlines()
        assert chain.startswith(f"{word}: job 7 ") and "runs" not in attempt and word in attempt
        (found,) = json.loads(status("--json"))
        assert found["state"] == word and "job 7" in found["why"]
    slurm.is_deaf()
    *_, attempt, chain = status().splitlines()
    assert chain.startswith("not known: the end of job 7 is not in the ledger, and: scontrol show: Unable")
    assert "not known" in attempt
    slurm.has("scontrol", COMMAND.format(folder=slurm.folder))
    assert resumes(slurm.run_dir)[0] == 0
    assert (slurm.run_dir / "trained").exists()


def test_a_job_that_waits_says_why() -> None:
    job = job_of("JobState=PENDING Reason=BadConstraints Dependency=(null) Restarts=1")
    assert standing("7", job, None).why == "job 7 is PENDING, BadConstraints"


# What a user reads


def test_hints_can_be_pasted_into_a_shell(slurm: Slurm, tmp_path: Path, capsys: Capture) -> None:
    place, other = tmp_path / "my run", tmp_path / "an other"
    slurm.has("sbatch", "echo 9")
    assert submits(place) == 0
    assert f"holdfast autoresume --status '{place}'; to end" in capsys.readouterr().err
    assert os.path.exists(place / "slurm-job.json")
    code, said = resumes(other)
    assert (code, said.endswith(f"holdfast autoresume --status '{other}'\n")) == (0, True)


def test_what_slurm_refuses_in_other_bytes_is_one_line(slurm: Slurm) -> None:
    slurm.has("sbatch", os.fsdecode(b"echo ung\xfcltig >&2; exit 1"))
    with pytest.raises(commands.SlurmError) as refused:
        commands.submit("")
    assert os.fsencode(str(refused.value)) == b"sbatch --parsable: ung\xfcltig"


def test_each_byte_of_a_path_is_in_the_batch_script(slurm: Slurm, tmp_path: Path) -> None:
    slurm.has("sbatch", f"cat > {tmp_path}/submitted; echo 9")
    place = tmp_path / os.fsdecode(b"l\xe4uft \xc3\xa4")
    assert submits(place) == 0
    script = (tmp_path / "submitted").read_bytes()
    assert b"run_dir='%s'\n" % os.fsencode(place) in script
    assert (place / "job.sbatch").read_bytes() == script
    assert claimed_by(str(place)) == "9"


def test_slurm_that_submits_nothing_leaves_no_folder(
    slurm: Slurm, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own run directory; one that was chosen stays."""
    slurm.has("sbatch", "echo invalid partition >&2; exit 1")
    place = tmp_path / "here"
    place.mkdir()
    monkeypatch.chdir(place)
    for words, left in (([], []), (["--run-dir=mine"], ["mine"])):
        assert main(["slurm", *words, "--", "ft_launcher", "train.py"]) == 2
        assert capsys.readouterr().err == "holdfast: error: sbatch --parsable: invalid partition\n"
        assert sorted(path.name for path in place.iterdir()) == left
