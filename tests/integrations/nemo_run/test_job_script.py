"""What an attempt's job script decides, for each way to end."""

from __future__ import annotations

import json
import re
from pathlib import Path

import lightning.pytorch as pl
import nemo_run as run
import pytest

from holdfast.integrations.nemo_run import FaultTolerancePlugin, PreemptionPlugin
from tests.autoresume.test_policy import CASES, Case
from tests.integrations.nemo_run.job_scripts import attempt, executor, script_for
from tests.integrations.nemo_run.lightning_training import train

FINISHED = 'touch "$FAULT_TOL_FINISHED_FLAG_FILE"; exit 0'


@pytest.fixture(scope="module")
def made(nemo_home: Path) -> Path:
    task = run.Partial(train, trainer=run.Config(pl.Trainer), folder="", faults=[])
    return script_for(task, [FaultTolerancePlugin(), PreemptionPlugin()])


@pytest.fixture
def script(made: Path) -> Path:
    for name in ("char_job_results", "char_finished_flag", "char_journal/journal-n1.jsonl"):
        (made.parent / "char" / name).unlink(missing_ok=True)
    return made


def test_what_the_plugins_say_in_the_script(script: Path) -> None:
    """The lines that they have a part in, as NeMo-Run 0.11.1 writes them."""
    job = script.parent / "char"
    lines = script.read_text().splitlines()
    for line in (
        "#SBATCH --signal=15@60",
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=1",
        "export TORCHX_MAX_RETRIES=2",
        "export PET_FT_IGNORE_MISSING_CFG=1",
        "export PET_FT_PREEMPTED_EXIT_CODE=75",
        "export PET_FT_RESTARTS_RESET_ON_PROGRESS=1",
        f'export FAULT_TOL_CFG_PATH="{job}/char_ft_cfg.yml"',
        f'export FAULT_TOL_FINISHED_FLAG_FILE="{job}/char_finished_flag"',
        f'JOB_RESULTS_FILE="{job}/char_job_results"',
        "MAX_JOB_FAILURES=3",
        "MAX_UNFINISHED_JOBS=3",
    ):
        assert lines.count(line) == 1, line
    (command,) = (line for line in lines if "ft_launcher" in line and line.startswith("srun"))
    command, _, rest = command.partition("--rdzv-backend")
    assert command.endswith(
        "--wait=60 --kill-on-bad-exit=1 --kill-on-bad-exit=0 --wait=0 ft_launcher "
        "--ft-initial_rank_heartbeat_timeout 1800 --ft-rank_heartbeat_timeout 300 --max-restarts 3 "
    )
    assert "--nnodes 2 --nproc-per-node 2 " in rest
    assert "is_job_failures_limit_reached" not in script.read_text()


def tells(*events: dict[str, object]) -> str:
    """Bash for what launchers write into their journal now; before it there is one event of an earlier attempt."""
    now = "'$(date +%s).5'"
    old = {"kind": "first_step", "t": 5.5, "cycle": 0, "step": 999}
    lines = [json.dumps({"t": "NOW", **event}, separators=(",", ":")) for event in (old, *events)]
    text = "\n".join(lines).replace('"NOW"', now)
    return f"""mkdir -p "$PET_FT_RUN_DIR"; echo '{text}' > "$PET_FT_RUN_DIR/journal-n1.jsonl"; """


def first_step(step: int, cycle: int = 0, rank: int = 0) -> dict[str, object]:
    return {"cycle": cycle, "rank": rank, "step": step, "kind": "first_step"}


PREEMPTION: dict[str, object] = {"node": "n1", "signal": "SIGTERM", "kind": "preemption"}


def test_preempted_jobs_go_on_however_many_there_are(script: Path, tmp_path: Path) -> None:
    """The launcher's journal tells of it, or Slurm, or it ran for a while."""
    by_journal = tells(PREEMPTION) + "exit 75"
    by_slurm, by_time = {"FACTS": "PreemptTime=2026-01-01T00:00:00"}, {"SECONDS": "400"}
    ends = [(by_journal, {}), ("exit 75", by_slurm), ("exit 75", by_time)]
    for number, (ended, known) in enumerate(ends * 2):
        seen = attempt(script, tmp_path, ended, number, **known)
        assert (seen.code, seen.requeued) == (75, True)
        assert seen.said == "[holdfast] job 7 is requeued: it was preempted"
    seen = attempt(script, tmp_path, FINISHED, 6)
    assert (seen.code, seen.requeued, seen.letters) == (0, False, "PPPPPPS")
    assert seen.said == "[holdfast] training is finished"


@pytest.mark.parametrize("limit", [{"STATE": "COMPLETING TimeLimit"}, {"LEFT": "1:59"}])
def test_time_limits_go_on_as_long_as_each_begins_at_a_later_step(
    script: Path, tmp_path: Path, limit: dict[str, str]
) -> None:
    """The journal tells of the signal before the limit too: no preemption, so it does not excuse."""
    for number, steps in enumerate([(0,), (0, 40), (40,), (80,), (120,), (120,), (120,)]):
        begun = [first_step(step + rank, cycle, rank) for cycle, step in enumerate(steps) for rank in (0, 1)]
        ended = tells(*begun, PREEMPTION) + "exit 75"
        seen = attempt(script, tmp_path, ended, number, SECONDS="9000", **limit)
        assert seen.requeued is (number < 6), seen.said
    assert "the last one: its time limit is over" in seen.said
    ledger = (script.parent / "char" / "char_job_results").read_text().splitlines()
    assert [line.split()[3] for line in ledger] == ["0", "40", "40", "80", "120", "120", "120"]


@pytest.mark.parametrize(
    ("told", "left", "letter"),
    [((PREEMPTION,), "1:59", "P"), ((PREEMPTION,), "9:59", "F"), ((), "1:59", "F")],
)
def test_a_training_that_had_to_be_killed_at_the_time_limit_is_no_failure(
    script: Path, tmp_path: Path, told: tuple[dict[str, object], ...], left: str, letter: str
) -> None:
    seen = attempt(script, tmp_path, tells(*told) + "exit 137", LEFT=left)
    assert (seen.requeued, seen.letters) == (True, letter)


def test_each_attempt_knows_its_number(script: Path, tmp_path: Path) -> None:
    for number in range(2):
        ended = f"exit $((HOLDFAST_ATTEMPT == {number + 1} ? 75 : 3))"
        assert attempt(script, tmp_path, ended, number, HOLDFAST_ATTEMPT="77").letters == "P" * (number + 1)


def test_giving_up_after_successive_failures_is_a_failure(script: Path, tmp_path: Path) -> None:
    """2 retries: the third failure in a row is the last. A preempted job that outlived them makes it begin anew."""
    for number, (code, ran) in enumerate(((3, 10), (3, 10), (75, 400), (3, 10))):
        assert attempt(script, tmp_path, f"exit {code}", number, SECONDS=str(ran)).requeued
    seen = attempt(script, tmp_path, "exit 3", 4)
    assert seen.said == "[holdfast] job 7 is requeued: failed with exit code 3, 2 of at most 3 in a row"
    seen = attempt(script, tmp_path, "exit 137", 5)
    assert (seen.code, seen.requeued, seen.letters) == (137, False, "FFPFFF")
    assert "giving up: 3 jobs in a row failed (limit 3), the last one with exit code 137" in seen.said
    again = attempt(script, tmp_path, FINISHED, 6)
    assert (again.code, again.requeued, again.letters) == (1, False, "FFPFFF")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_case_of_the_retry_policy(script: Path, tmp_path: Path, case: Case) -> None:
    """The table of `autoresume.policy`, through the whole script, which has no `holdfast` to ask here."""
    ends = {
        "F": ("exit 3", {}),
        "N": ("kill -KILL $PPID", {}),
        "P": ("exit 75", {}),
        "p": ("exit 75", {}),
        "T": ("exit 75", {"LEFT": "1:59"}),
        "E": ("exit 0", {}),
    }
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "holdfast").write_text("#!/bin/bash\nexit 2\n")
    (tools / "holdfast").chmod(0o755)
    for number, letter in enumerate(case.letters):
        ended, known = ends[letter]
        events = [first_step(case.steps[number])] if case.steps and case.steps[number] is not None else []
        events += [PREEMPTION] if letter == "P" else []
        ran = str(case.seconds[number] if case.seconds else 10)
        known = {**known, "SECONDS": ran, "BEFORE": "NODE_FAIL"}
        seen = attempt(script, tmp_path, tells(*events) + ended, number, **known)
        if letter != "N" and number + 1 < len(case.letters):
            assert seen.requeued, seen.said
    if case.letters.endswith("N"):  # Slurm requeues it by itself
        seen = attempt(script, tmp_path, "exit 75", len(case.letters), BEFORE="NODE_FAIL")
    assert seen.requeued is case.goes_on, seen.said


@pytest.mark.parametrize(
    ("ended", "letters", "said"),
    [
        ("exit 75", "PPP", r"giving up: 3 jobs in a row got nowhere before their end \(limit 3\)"),
        ("exit 0", "UUU", "none created.*autoresume=True"),
    ],
)
def test_ends_that_got_nowhere_are_not_repeated_for_ever(
    script: Path, tmp_path: Path, ended: str, letters: str, said: str
) -> None:
    """Exit codes that tell of a preemption at once, and ends with 0 without the flag."""
    for number, requeued in enumerate((True, True, False)):
        seen = attempt(script, tmp_path, ended, number)
        assert seen.requeued is requeued
    assert (seen.code, seen.letters) == (1, letters)
    assert re.search(said, seen.said)


def test_a_finished_training_stays_finished(script: Path, tmp_path: Path) -> None:
    """Also where the launcher failed after it, and where the job is requeued by hand."""
    assert attempt(script, tmp_path, "exit 3").requeued
    seen = attempt(script, tmp_path, FINISHED.replace("exit 0", "exit 9"), 1)
    assert (seen.code, seen.requeued, seen.letters) == (0, False, "FS")
    seen = attempt(script, tmp_path, "exit 99", 2)
    assert (seen.code, seen.letters, seen.said) == (0, "FS", "[holdfast] training is finished: nothing to do")
    seen = attempt(script, tmp_path, "exit 75")  # submitted anew: the flag of the run before is no news
    assert (seen.requeued, seen.letters) == (True, "P")


@pytest.mark.parametrize(
    ("state", "code", "requeued", "letter"),
    [
        ("COMPLETING None", 75, False, "C"),
        ("COMPLETING None", 143, False, "C"),
        ("COMPLETING TimeLimit", 143, True, "P"),
        ("RUNNING None", 93, False, "F"),
    ],
)
def test_what_slurm_is_about_decides(
    script: Path, tmp_path: Path, state: str, code: int, requeued: bool, letter: str
) -> None:
    """A cancelled job must not come back; one at its time limit continues; 93 means for good."""
    seen = attempt(script, tmp_path, f"exit {code}", STATE=state)
    assert (seen.code, seen.requeued, seen.letters) == (code, requeued, letter)


def test_attempts_that_were_cut_off(script: Path, tmp_path: Path) -> None:
    """Slurm requeued them by itself. Being preempted costs nothing; a node that failed counts."""
    ledger = script.parent / "char" / "char_job_results"
    for state, letters in (("PREEMPTED", "PPPPP"), ("NODE_FAIL", "XXX")):
        ledger.write_text("7 0 X\n")
        for number in range(1, len(letters)):
            seen = attempt(script, tmp_path, "kill -KILL $PPID", number, BEFORE=state)
            assert seen.code == -9
        seen = attempt(script, tmp_path, FINISHED, len(letters), BEFORE=state)
        assert seen.letters == (letters + "S" if state == "PREEMPTED" else letters)
        assert seen.code == (0 if state == "PREEMPTED" else 1)
        (script.parent / "char" / "char_finished_flag").unlink(missing_ok=True)


def test_in_a_container_the_flag_is_found_outside(nemo_home: Path, tmp_path: Path) -> None:
    task = run.Script(path="train.py", entrypoint="python")
    script = script_for(task, [FaultTolerancePlugin()], executor(container_image="image"))
    assert 'export FAULT_TOL_FINISHED_FLAG_FILE="/nemo_run/char_finished_flag"' in script.read_text()
    seen = attempt(script, tmp_path, f"touch {script.parent}/char/char_finished_flag; exit 0")
    assert (seen.code, seen.letters) == (0, "S")


def test_requeueing_that_fails_is_said(script: Path, tmp_path: Path) -> None:
    seen = attempt(script, tmp_path, "exit 75", REFUSALS="99")
    assert (seen.code, seen.requeued) == (1, False)
    assert "could not be requeued" in seen.said
    assert seen.said.endswith("To carry on: scontrol requeue 7")


def test_a_controller_that_restarts_is_asked_again(script: Path, tmp_path: Path) -> None:
    seen = attempt(script, tmp_path, "exit 75", REFUSALS="3")
    assert (seen.code, seen.requeued) == (75, True)
    assert (tmp_path / "pauses").read_text().split() == ["1", "5", "10"]


@pytest.mark.parametrize(
    ("known", "said"),
    [
        ({"FACTS": "Requeue=1 Restarts=1 BatchFlag=1"}, "job 7 is requeued: failed with exit code 3"),
        ({"LATER": "COMPLETING None"}, "which was cancelled: not requeued from here"),
    ],
)
def test_a_job_that_is_settled_is_not_asked_for_again(
    script: Path, tmp_path: Path, known: dict[str, str], said: str
) -> None:
    """A try succeeded, and its answer was lost; or the job was cancelled between two tries."""
    seen = attempt(script, tmp_path, "exit 3", REFUSALS="99", **known)
    assert (seen.code, said in seen.said) == (3, True), seen.said
    assert len((tmp_path / "tries").read_text().splitlines()) == 1


def test_what_cannot_be_counted_is_not_started(script: Path, tmp_path: Path) -> None:
    ledger = script.parent / "char" / "char_job_results"
    ledger.mkdir()
    seen = attempt(script, tmp_path, f"touch {tmp_path}/started; exit 75")
    ledger.rmdir()
    assert (seen.code, seen.requeued) == (1, False)
    assert "char_job_results cannot be written: nothing is started" in seen.said
    assert not (tmp_path / "started").exists()


def test_on_a_disk_that_is_full_at_the_end_the_job_ends_as_it_should(script: Path, tmp_path: Path) -> None:
    sed = tmp_path / "tools" / "sed"
    sed.parent.mkdir()
    sed.write_text("#!/bin/bash\nexit 4\n")
    sed.chmod(0o755)
    seen = attempt(script, tmp_path, "exit 75")
    assert (seen.code, seen.requeued, seen.letters) == (75, True, "X")
    seen = attempt(script, tmp_path, FINISHED, 1)
    assert (seen.code, seen.requeued, seen.letters) == (0, False, "XX")


def test_another_launchers_script_is_nemo_runs_own(nemo_home: Path) -> None:
    task = run.Script(path="train.py", entrypoint="python")
    text = script_for(task, [], executor(launcher=run.FaultTolerance())).read_text()
    assert "is_job_failures_limit_reached" in text
    assert "holdfast" not in text
