"""The beginning and the end of an attempt, and `holdfast autoresume` beside it, where Slurm says what it rarely does.

Its commands are scripts here.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
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

COMMAND = """#!/bin/bash
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
RUNNING = "JobState=RUNNING Restarts={0} TimeLimit=UNLIMITED PreemptTime=None ExcNodeList=n9"
LATE = "JobState=COMPLETING Restarts=0 StartTime=2026-01-01T00:00:00 TimeLimit=00:01:00"
"""The time limit has come."""
LOST = "n1 idle\nn2 down*\n"


class Slurm:
    """What Slurm's commands answer, and what they were asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("scontrol", "sinfo", "scancel", "sacct"):
            path = folder / name
            path.write_text(COMMAND.format(folder=folder))
            path.chmod(0o755)

    def tells(self, job: str, text: str) -> None:
        (self.folder / f"job-{job}").write_text(text)

    def then_tells(self, job: str, text: str) -> None:
        """From the second question on."""
        (self.folder / f"next-{job}").write_text(text)

    def asked(self, command: str) -> list[str]:
        calls = (self.folder / "calls").read_text().splitlines()
        return [call for call in calls if call.startswith(command)]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("FAULT_TOL_FINISHED_FLAG_FILE", raising=False)
    return Slurm(tmp_path)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    place = tmp_path / "run"
    place.mkdir()
    return place


def keeper(run_dir: Path, job: str = "7", restarts: int = 0, **limits: int) -> Keeper:
    place = Place(job, restarts, "n[1-2]")
    return Keeper(str(run_dir), place, Limits(**limits), exclude_after=2, notice=180.0)


def begin(slurm: Slurm, run_dir: Path, job: str = "7", restarts: int = 0) -> None:
    """An attempt of this job begins."""
    slurm.tells(job, RUNNING.format(restarts))
    assert keeper(run_dir, job, restarts).begins() == 0


def chains(run_dir: Path) -> tuple[Chain, ...]:
    return LedgerFile(str(run_dir)).read().chains


def test_a_failure_is_requeued_and_counted(
    slurm: Slurm, run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begin(slurm, run_dir)
    assert keeper(run_dir).ended(9) == 0
    assert slurm.asked("scontrol requeue") == ["scontrol requeue 7"]
    assert (
        "exit code 9. Failure 1 of 3 in a row; job 7 is requeued, attempt 2 follows"
        in capsys.readouterr().err
    )


def test_a_job_of_which_the_controller_says_nothing_is_judged_by_its_exit_code(
    slurm: Slurm, run_dir: Path
) -> None:
    assert keeper(run_dir).begins() == 0
    assert keeper(run_dir, max_failures=1).ended(9) == 1
    assert chains(run_dir)[0].state == "gave up"


def test_what_slurm_has_requeued_is_cancelled_when_the_chain_gives_up(slurm: Slurm, run_dir: Path) -> None:
    slurm.tells("7", RUNNING.format(1).replace("RUNNING", "COMPLETING"))
    (slurm.folder / "nodes").write_text(LOST)
    assert keeper(run_dir).begins() == 0
    assert keeper(run_dir, max_failures=1).ended(143) == 1
    assert slurm.asked("scancel") == ["scancel 7"]
    assert slurm.asked("scontrol requeue") == []
    attempt = chains(run_dir)[0].attempts[0]
    assert (str(attempt.kind), attempt.node) == ("node lost", "n2")


def test_an_end_that_nobody_noted_is_noted_by_the_next_attempt(slurm: Slurm, run_dir: Path) -> None:
    slurm.tells("7", RUNNING.format(1))
    (slurm.folder / "nodes").write_text("n1 down\nn2 idle\n")
    assert keeper(run_dir).begins() == 0
    assert keeper(run_dir, restarts=1).begins() == 0
    # The batch script on the lost node runs on, and ends while the next run is under way.
    assert keeper(run_dir, restarts=0).ended(1) == 1
    assert slurm.asked("scontrol requeue") == []
    first, second = chains(run_dir)[0].attempts
    assert (str(first.kind), first.node, second.kind) == ("node lost", "n1", None)
    # Of the next one that is not noted nothing is known.
    (slurm.folder / "nodes").write_text("n1 idle\nn2 idle\n")
    assert keeper(run_dir, restarts=2).begins() == 0
    lost = chains(run_dir)[0].attempts[1]
    assert str(lost.kind) == "lost"
    assert lost.why == "run 7.1 could not note its end; Slurm started the job again"


def test_a_cancelled_job_s_chain_is_over_and_the_next_job_begins_another(slurm: Slurm, run_dir: Path) -> None:
    begin(slurm, run_dir)
    slurm.tells("7", RUNNING.format(0).replace("RUNNING", "CANCELLED"))
    claim(str(run_dir), "8")  # as `holdfast slurm` does when it has submitted
    assert keeper(run_dir, "8").begins() == 0
    first, second = chains(run_dir)
    (attempt,) = first.attempts
    assert (first.state, str(attempt.kind), attempt.seconds) == ("cancelled", "cancelled", None)
    assert (second.state, len(second.attempts)) == ("", 1)


def test_a_job_that_was_cancelled_while_it_waited(slurm: Slurm, run_dir: Path) -> None:
    begin(slurm, run_dir)
    assert keeper(run_dir).ended(9) == 0
    slurm.tells("7", RUNNING.format(1).replace("RUNNING", "CANCELLED"))
    assert keeper(run_dir, "8").begins() == 0
    assert [chain.state for chain in chains(run_dir)] == ["cancelled", ""]


def test_another_job_s_claim_counts_while_it_lives(slurm: Slurm, run_dir: Path) -> None:
    slurm.tells("7", RUNNING.format(0).replace("RUNNING", "PENDING"))
    claim(str(run_dir), "7")
    with pytest.raises(Refused, match=r"job 7 trains in .*run already \(PENDING\)"):
        keeper(run_dir, "8").begins()
    slurm.tells("7", RUNNING.format(0).replace("RUNNING", "COMPLETED"))
    assert keeper(run_dir, "8").begins() == 0
    assert claimed_by(str(run_dir)) == "8"


def test_a_flag_of_another_run_is_removed_and_our_own_ends_the_chain(slurm: Slurm, run_dir: Path) -> None:
    flag = run_dir / "finished.flag"
    flag.touch()
    begin(slurm, run_dir)
    assert not flag.exists()
    flag.touch()
    assert keeper(run_dir).ended(0) == 0
    assert chains(run_dir)[0].state == "finished"
    slurm.tells("7", RUNNING.format(0).replace("RUNNING", "COMPLETED"))
    assert keeper(run_dir, "8").begins() == DONE


def test_at_the_time_limit_the_job_is_requeued_before_its_ranks_have_ended(
    slurm: Slurm, run_dir: Path
) -> None:
    begin(slurm, run_dir)
    assert keeper(run_dir).job_ends() == 0  # the batch script got a signal by hand: nothing to do
    slurm.tells("7", LATE)
    assert keeper(run_dir).job_ends() == 0
    slurm.tells("7", RUNNING.format(1).replace("RUNNING", "COMPLETING"))
    assert keeper(run_dir).ended(137) == 0
    assert slurm.asked("scontrol requeue") == ["scontrol requeue 7"]
    assert [str(attempt.kind) for attempt in chains(run_dir)[0].attempts] == ["time limit"]


def test_a_job_that_is_cancelled_while_its_failure_is_noted_is_not_requeued(
    slurm: Slurm, run_dir: Path
) -> None:
    assert keeper(run_dir).begins() == 0
    slurm.tells("7", RUNNING.format(0))
    slurm.then_tells("7", RUNNING.format(0).replace("RUNNING", "COMPLETING"))
    assert keeper(run_dir).ended(9) == 130
    assert slurm.asked("scontrol requeue") == []
    assert chains(run_dir)[0].state == "cancelled"


def test_a_finished_chain_whose_end_is_not_noted_starts_nothing(slurm: Slurm, run_dir: Path) -> None:
    """Killed between the two records of its end, and the flag is gone."""
    begin(slurm, run_dir)
    (run_dir / "finished.flag").touch()
    assert keeper(run_dir).ended(0) == 0
    ledger = run_dir / "attempts.jsonl"
    ledger.write_text("".join(ledger.read_text().splitlines(keepends=True)[:-1]))
    (run_dir / "finished.flag").unlink()
    assert keeper(run_dir, restarts=1).begins() == DONE
    assert len(chains(run_dir)[0].attempts) == 1


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "PAUSES", (0.0, 0.0))


@pytest.mark.usefixtures("impatient")
def test_a_chain_that_could_not_be_requeued_is_over_and_goes_on_when_somebody_does(
    slurm: Slurm, run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begin(slurm, run_dir)
    (slurm.folder / "refuses").touch()
    assert keeper(run_dir).ended(9) == 1
    assert len(slurm.asked("scontrol requeue")) == 3
    (chain,) = chains(run_dir)
    assert chain.state == "gave up"
    assert "job 7 could not be requeued (scontrol requeue: Unable to contact slurm controller)" in chain.why
    said = capsys.readouterr().err
    assert "To carry on: scontrol requeue 7" in said
    assert "is requeued" not in said
    assert keeper(run_dir, restarts=1).begins() == 0
    assert [chain.state for chain in chains(run_dir)] == ["gave up", ""]


@pytest.mark.usefixtures("impatient")
def test_a_requeue_whose_answer_was_lost_is_done(slurm: Slurm, run_dir: Path) -> None:
    assert keeper(run_dir).begins() == 0
    slurm.tells("7", RUNNING.format(0))
    (slurm.folder / "refuses").touch()
    requeued = f"sed -i s/Restarts=0/Restarts=1/ {slurm.folder}/job-7"
    (slurm.folder / "scontrol").write_text(
        (slurm.folder / "scontrol").read_text().replace('echo "Unable', f'{requeued}; echo "Unable')
    )
    assert keeper(run_dir).ended(9) == 0
    assert len(slurm.asked("scontrol requeue")) == 1
    assert chains(run_dir)[0].state == ""


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("job", "is_pending", "asked", "said"),
    [
        ("", True, ["scontrol update JobId=7 ExcNodeList=n9,n2"], ""),  # beside those that the user excluded
        ("", False, None, "n2 could not be left out (scontrol update: Job is not pending)"),
        (" NumNodes=2", True, [], "n2: to be left out, but job 7 needs 2 nodes of those left"),
    ],
)
def test_a_node_that_was_lost_twice_is_left_out(
    slurm: Slurm,
    run_dir: Path,
    job: str,
    is_pending: bool,
    asked: list[str] | None,
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In any case the chain continues."""
    if not is_pending:
        (slurm.folder / "not-pending").touch()
    (slurm.folder / "nodes").write_text(LOST)
    for restarts in range(2):
        slurm.tells("7", RUNNING.format(restarts + 1) + job)
        assert keeper(run_dir, restarts=restarts).begins() == 0
        assert keeper(run_dir, restarts=restarts).ended(143) == 0
    assert asked is None or slurm.asked("scontrol update") == asked
    assert said in capsys.readouterr().err
    assert chains(run_dir)[0].state == ""


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(("limits", "state"), [({"max_jobs": 1}, "too many jobs"), ({}, "gave up")])
def test_giving_up_at_the_time_limit_is_the_exit_code_of_the_script(
    slurm: Slurm, run_dir: Path, limits: dict[str, int], state: str
) -> None:
    """By the limit of jobs, or as the job could not be requeued."""
    begin(slurm, run_dir)
    slurm.tells("7", LATE)
    if not limits:
        (slurm.folder / "refuses").touch()
    keeper(run_dir, **limits).job_ends()
    assert chains(run_dir)[0].state == state
    assert keeper(run_dir, **limits).ended(137) == 1
    assert bool(slurm.asked("scontrol requeue")) is not bool(limits)


@pytest.mark.parametrize(("past", "kind"), [("", "preempted"), ("NODE_FAIL\nPENDING\n", "node lost")])
def test_a_requeue_by_an_administrator_is_no_lost_node(
    slurm: Slurm, run_dir: Path, past: str, kind: str
) -> None:
    begin(slurm, run_dir)
    slurm.tells("7", RUNNING.format(1).replace("RUNNING", "COMPLETING"))
    (slurm.folder / "nodes").write_text("n1 idle\nn2 idle\n")
    if past:
        (slurm.folder / "past").write_text(past)
    assert keeper(run_dir, max_failures=1).ended(143) == (1 if past else 0)
    assert str(chains(run_dir)[0].attempts[0].kind) == kind


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


def in_utc(moment: float) -> str:
    return datetime.fromtimestamp(moment, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S")


PREEMPTION = '{{"t": {0}, "mono": 1.0, "node": "n1:9", "kind": "preemption", "signal": "SIGTERM"}}\n'
FIRST_STEP = (
    '{{"t": {0}, "mono": 0.5, "node": "n1:9", "kind": "first_step", "cycle": 0, "rank": 0, "step": 40}}\n'
)


@pytest.mark.parametrize("told", [True, False])
def test_a_training_that_had_to_be_killed_at_the_time_limit_spends_nothing(
    slurm: Slurm, run_dir: Path, told: bool
) -> None:
    begin(slurm, run_dir)
    if told:
        (run_dir / "journal-n1_9.jsonl").write_text(PREEMPTION.format(time.time()))
    began = in_utc(time.time())
    slurm.tells("7", f"JobState=RUNNING Restarts=0 StartTime={began} TimeLimit=00:01:00")
    assert keeper(run_dir, max_failures=1).ended(137) == (0 if told else 1)
    assert str(chains(run_dir)[0].attempts[0].kind) == ("time limit" if told else "failed")


def test_time_limits_at_which_it_is_killed_and_has_won_no_step_come_to_an_end(
    slurm: Slurm, run_dir: Path
) -> None:
    """Each resumes from the same step: the notice is too short for a checkpoint, or the training hangs."""
    began = in_utc(time.time())
    codes = []
    for restarts in range(3):
        slurm.tells("7", f"JobState=RUNNING Restarts={restarts} StartTime={began} TimeLimit=00:01:00")
        assert keeper(run_dir, restarts=restarts).begins() == 0
        lines = [FIRST_STEP.format(time.time()), PREEMPTION.format(time.time())]
        (run_dir / f"journal-n1_{restarts}.jsonl").write_text("".join(lines))
        codes.append(keeper(run_dir, restarts=restarts).ended(137))
    assert codes == [0, 0, 1]
    (chain,) = chains(run_dir)
    assert [str(attempt.kind) for attempt in chain.attempts] == ["time limit"] * 3
    assert chain.state == "gave up"


NIGHT = datetime(2026, 10, 25, 1, 30, tzinfo=timezone.utc).timestamp()
"""In Berlin it is 02:30 for the second time, for at 01:00 UTC summer time ended."""
BY_THE_CLOCK = f"""#!/bin/bash
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
def test_a_job_that_is_cancelled_when_summer_time_has_ended_is_no_time_limit(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """As `date` does, Slurm's commands write local times, in a form that the user may choose."""
    monkeypatch.setenv("SLURM_TIME_FORMAT", form)
    (slurm.folder / "scontrol").write_text(BY_THE_CLOCK)
    job = commands.job("7")
    assert job.began == NIGHT
    for minutes, expected in ((190, Scheduler.CANCELLED), (240, Scheduler.TIME_LIMIT)):
        word = word_of(job, restarts=0, code=143, now=NIGHT + 60.0 * minutes, notice=180.0)
        assert word.scheduler is expected


def test_a_job_that_may_not_be_requeued_starts_nothing(
    slurm: Slurm, run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slurm.tells("7", RUNNING.format(0) + " Requeue=0")
    assert keeper(run_dir).begins() == 1
    assert "gave up: job 7 may not be requeued" in capsys.readouterr().err
    (chain,) = chains(run_dir)
    assert (chain.state, chain.attempts) == ("gave up", ())
    begin(slurm, run_dir)


def test_the_number_of_the_attempt_is_told_to_the_batch_script(
    slurm: Slurm, run_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(slurm, run_dir)
    assert keeper(run_dir).ended(9) == 0
    capsys.readouterr()
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    with kept_signals():
        assert main(["slurm", f"--run-dir={run_dir}", "--attempt-begins"]) == 0
        assert capsys.readouterr().out == "2\n"
        claim(str(run_dir), "8")
        slurm.tells("8", RUNNING.format(0))
        assert main(["slurm", f"--run-dir={run_dir}", "--attempt-begins"]) == REFUSED


@contextlib.contextmanager
def kept_signals() -> Iterator[None]:
    """The command ignores signals, in a process of its own otherwise."""
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def test_exit_code_2_beside_a_journal_that_cannot_be_read_is_a_failure(slurm: Slurm, run_dir: Path) -> None:
    """Ranks may have been started: it is no command line that would be refused again."""
    begin(slurm, run_dir)
    (run_dir / "journal-x.jsonl").mkdir()
    assert keeper(run_dir).ended(2) == 0
    assert str(chains(run_dir)[0].attempts[0].kind) == "failed"


def full(small_disk: Path) -> Path:
    """A run directory in which a job has the claim, on a disk that is full."""
    claim(str(small_disk), "7")
    fill(small_disk)
    return small_disk


def test_on_a_full_disk_the_chain_goes_on(
    slurm: Slurm, small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = full(small_disk)
    for restarts in range(5):
        begin(slurm, run_dir, restarts=restarts)
        assert keeper(run_dir, restarts=restarts).ended(75) == 0
    assert len(slurm.asked("scontrol requeue")) == 5
    said = capsys.readouterr().err
    assert (
        f"{run_dir}/attempts.jsonl cannot be written: No space left on device. The training continues" in said
    )
    (run_dir / "filler").unlink()
    slurm.tells("7", RUNNING.format(5))
    (run_dir / "finished.flag").touch()
    assert keeper(run_dir, restarts=5).ended(0) == 0
    assert chains(run_dir)[0].state == "finished"


@pytest.mark.parametrize(("code", "limits", "codes"), [(9, {}, [0, 0, 1]), (75, {"max_jobs": 2}, [0, 1])])
def test_on_a_full_disk_a_chain_does_not_go_on_for_ever(
    slurm: Slurm,
    small_disk: Path,
    code: int,
    limits: dict[str, int],
    codes: list[int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_dir, found = full(small_disk), list[int]()
    for restarts in range(len(codes)):
        begin(slurm, run_dir, restarts=restarts)
        found.append(keeper(run_dir, restarts=restarts, **limits).ended(code))
    assert found == codes
    assert len(slurm.asked("scontrol requeue")) == codes.count(0)
    assert ("cannot tell: 2, taken for failures" in capsys.readouterr().err) is not bool(limits)


def test_at_the_time_limit_a_full_disk_does_not_hinder_the_requeue(slurm: Slurm, small_disk: Path) -> None:
    run_dir = full(small_disk)
    begin(slurm, run_dir)
    slurm.tells("7", LATE)
    assert keeper(run_dir).job_ends() == 0
    assert slurm.asked("scontrol requeue") == ["scontrol requeue 7"]


def test_a_claim_that_cannot_be_written_is_told_by_its_name(
    slurm: Slurm, small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(small_disk)
    slurm.tells("7", RUNNING.format(0))
    assert keeper(small_disk).begins() == 0
    assert f"{small_disk}/slurm-job.json cannot be written: No space left" in capsys.readouterr().err


# `holdfast autoresume` and `holdfast slurm` in one run directory: one of them trains


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


def test_where_a_job_trains_or_will_autoresume_starts_nothing(slurm: Slurm, run_dir: Path) -> None:
    begin(slurm, run_dir)
    slurm.tells("7", RUNNING.format(0).replace("RUNNING", "PENDING"))
    before = (run_dir / "attempts.jsonl").read_text()
    line = f"job 7 trains in {run_dir} already (PENDING). Wait for it, end it (scancel 7), or use another run directory"
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


def test_a_job_that_is_over_is_said_to_be_and_blocks_nobody(
    slurm: Slurm, run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begin(slurm, run_dir)
    for state, word in (("CANCELLED", "cancelled"), ("FAILED", "over"), ("", "over")):
        slurm.tells("7", RUNNING.format(0).replace("RUNNING", state))
        if not state:
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


# What a user reads


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


def test_a_job_whose_name_is_not_utf_8_is_requeued(slurm: Slurm, run_dir: Path) -> None:
    (slurm.folder / "job-7").write_bytes(b"JobId=7 JobName=tr\xe4in " + RUNNING.format(0).encode())
    assert keeper(run_dir).begins() == 0
    assert keeper(run_dir).ended(9) == 0
    assert slurm.asked("scontrol requeue") == ["scontrol requeue 7"]


def test_what_slurm_refuses_in_other_bytes_is_one_line(slurm: Slurm) -> None:
    (slurm.folder / "sbatch").write_bytes(b"#!/bin/bash\necho ung\xfcltig >&2\nexit 1\n")
    (slurm.folder / "sbatch").chmod(0o755)
    with pytest.raises(commands.SlurmError) as refused:
        commands.submit("")
    assert os.fsencode(str(refused.value)) == b"sbatch --parsable: ung\xfcltig"


def test_each_byte_of_a_path_is_in_the_batch_script(slurm: Slurm, tmp_path: Path) -> None:
    (slurm.folder / "sbatch").write_text(f"#!/bin/bash\ncat > {tmp_path}/submitted\necho 9\n")
    (slurm.folder / "sbatch").chmod(0o755)
    place = tmp_path / os.fsdecode(b"l\xe4uft \xc3\xa4")
    assert submits(place) == 0
    script = (tmp_path / "submitted").read_bytes()
    assert b"run_dir='%s'\n" % os.fsencode(place) in script
    assert (place / "job.sbatch").read_bytes() == script
    assert claimed_by(str(place)) == "9"


def test_slurm_that_submits_nothing_leaves_no_folder(
    slurm: Slurm, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own run directory; one that was chosen stays."""
    (slurm.folder / "sbatch").write_text("#!/bin/bash\necho invalid partition >&2\nexit 1\n")
    (slurm.folder / "sbatch").chmod(0o755)
    place = tmp_path / "here"
    place.mkdir()
    monkeypatch.chdir(place)
    for words, left in (([], []), (["--run-dir=mine"], ["mine"])):
        assert main(["slurm", *words, "--", "ft_launcher", "train.py"]) == 2
        assert capsys.readouterr().err == "holdfast: error: sbatch --parsable: invalid partition\n"
        assert sorted(path.name for path in place.iterdir()) == left
