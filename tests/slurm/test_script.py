"""The batch script of `holdfast slurm`: what exactly it is, that it is bash, and what is refused."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from holdfast.cli.main import main
from holdfast.fault_tolerance.errors import ConfigError
from holdfast.integrations.slurm.script import Plan, batch_script, checked, time_limit

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "slurm" / "train.sbatch"
COMMAND = ("ft_launcher", "--nproc-per-node=8", "--max-restarts=3", "train.py", "--name", "it's a test")


def plan(**changes: object) -> Plan:
    known = {"run_dir": "/shared/my run", "command": COMMAND, "python": "/opt/env/bin/python", "nodes": 2}
    return Plan(**{**known, "time": "4:00:00", "options": ("--partition=low",), **changes})  # type: ignore[arg-type]


def test_the_example_is_what_a_dry_run_prints() -> None:
    command = ("ft_launcher", "--nproc-per-node=8", "--max-restarts=3", "train.py")
    example = plan(run_dir="/shared/run-1", command=command)
    assert batch_script(checked(example), "1.2.3") == EXAMPLE.read_text()
    subprocess.run(["bash", "-n", EXAMPLE], check=True)


def run_script(folder: Path, tools: dict[str, str], **changes: object) -> subprocess.CompletedProcess[str]:
    """Run the batch script beside scripts of these texts; `keep` is its Python."""
    for name, text in {"scontrol": "echo n1; echo n2", **tools}.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}\n")
        (folder / name).chmod(0o755)
    job = {"SLURM_JOB_ID": "12345", "SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "n[1-2]"}
    environ = {"PATH": f"{folder}:/usr/bin:/bin", "HOLDFAST_ATTEMPT": "77", **job}
    script = batch_script(plan(python=str(folder / "keep"), **changes), "1.2.3")
    command = ["bash", "-u", "-c", script]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120)


def test_each_word_reaches_the_program_as_it_is(tmp_path: Path) -> None:
    tools = {
        "srun": 'printf \'%s\\n\' "$@" "$HOLDFAST_ATTEMPT" "$PATH"',
        "keep": 'case "$*" in *--attempt-begins) echo 4 ;; esac',
    }
    done = run_script(tmp_path, tools, max_jobs=7)
    *words, attempt, path = done.stdout.splitlines()
    assert (done.returncode, attempt, path) == (0, "4", f"{tmp_path}:/usr/bin:/bin:{tmp_path}")
    assert words[:3] == ["--kill-on-bad-exit=0", "--wait=0", "--export=ALL"]
    assert words[3:8] == ["bash", "-c", 'exec "$@"', "bash", "ft_launcher"]
    assert words[-len(COMMAND) + 1 :] == list(COMMAND[1:])
    assert "--rdzv-endpoint=n1:22345" in words
    assert "--ft-run-dir=/shared/my run" in words
    assert done.stderr == ""


def test_a_launcher_that_is_a_module_is_started_as_one() -> None:
    command = ("/opt/env/bin/python", "-m", "holdfast.fault_tolerance.launcher", "train.py")
    text = batch_script(plan(command=command), "1.2.3")
    assert ' bash /opt/env/bin/python -m holdfast.fault_tolerance.launcher --nnodes="$SLURM_NNODES"' in text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"command": ("torchrun", "train.py")}, "must begin with ft_launcher"),
        (
            {"command": ("ft_launcher", "--nnodes=2", "train.py")},
            "--nnodes after --: the batch script gives it",
        ),
        ({"command": ("ft_launcher", "--rdzv_endpoint", "a:1", "t.py")}, "--rdzv-endpoint after --"),
        (
            {"command": ("ft_launcher", "--ft-preempted-exit-code=9", "t.py")},
            "--ft-preempted-exit-code after --",
        ),
        ({"time": "3"}, "--time 3 and --notice 180: the notice comes before the job has begun"),
        ({"time": "soon"}, "--time 'soon': give minutes"),
        ({"name": 'a"b'}, "no quotes, backslashes or control characters"),
        ({"run_dir": "/a\nb"}, "no quotes, backslashes or control characters"),
        ({"run_dir": "/a%j"}, "Slurm would replace the %"),
        ({"options": ("--no-requeue",)}, "--sbatch=--no-requeue: the job has to be requeued, leave it out"),
        ({"options": ("--no-req",)}, "--sbatch=--no-req: the job has to be requeued"),
        ({"options": ("low",)}, "an option of sbatch begins with -"),
        *(
            ({"options": (option,)}, "the tasks of an array would train beside each other")
            for option in ("--array=1-3", "--arr 1-3", "-a1-3", "-a 1-3")
        ),
        ({"options": ('--comment="a b"',)}, "--sbatch '--comment=\"a b\"': no quotes"),
        ({"port": "80; rm"}, "--port '80; rm': give a number from 1 to 65535"),
        ({"port": "65536"}, "--port '65536'"),
    ],
)
def test_what_cannot_work_is_refused_with_the_reason(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        batch_script(checked(plan(**changes)), "1.2.3")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_an_option_of_the_program_may_have_the_launchers_names() -> None:
    command = ("ft_launcher", "--nproc-per-node=2", "train.py", "--nnodes=3")
    assert "--nnodes=3" in batch_script(checked(plan(command=command)), "1.2.3")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 5400), ("1:30", 90), ("4:00:00", 14400), ("2-12", 216000), ("1-0:30", 88200), ("0-0:0:5", 5)],
)
def test_times_as_sbatch_takes_them(text: str, seconds: int) -> None:
    assert time_limit(text) == seconds


@pytest.mark.parametrize(("notice", "saving"), [(180, 150), (600, 570), (20, 14), (1, 1)])
def test_ranks_may_save_until_a_little_before_the_limit(notice: int, saving: int) -> None:
    assert f"--term-timeout={saving} " in batch_script(plan(notice=notice), "1.2.3")


def test_a_dry_run_prints_the_script_and_makes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["slurm", "--dry-run", "--run-dir=my run", "--time=4:00:00", "--sbatch=--partition=low"]
    assert main([*words, "--", *COMMAND]) == 0
    text = capsys.readouterr().out
    assert "#SBATCH --partition=low\n" in text
    assert f"run_dir={shlex.quote(str(tmp_path / 'my run'))}\n" in text
    assert list(tmp_path.iterdir()) == []


def test_no_command_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["slurm", "--nodes=2"]) == 2
    assert capsys.readouterr().err.startswith(
        "holdfast: error: no command: holdfast slurm [options] -- ft_launcher"
    )


def test_a_job_that_the_environment_forbids_to_requeue_is_not_submitted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SBATCH_NO_REQUEUE", "1")
    assert main(["slurm", f"--run-dir={tmp_path}", "--", *COMMAND]) == 2
    assert "SBATCH_NO_REQUEUE is set, and the job has to be requeued" in capsys.readouterr().err
    assert not (tmp_path / "job.sbatch").exists()


@pytest.mark.parametrize(
    ("codes", "tries", "code"), [("7 7 0", 3, 0), ("7 7 7 7 0", 4, 1), ("101 0", 1, 1), ("100 0", 1, 0)]
)
def test_an_attempt_that_cannot_begin_is_tried_again_a_few_times(
    tmp_path: Path, codes: str, tries: int, code: int
) -> None:
    tools = {
        "keep": f'case "$*" in *--attempt-begins) echo >> {tmp_path}/tries; codes=({codes}); '
        f"exit ${{codes[$(wc -l < {tmp_path}/tries) - 1]}} ;; esac",
        "sleep": "",
        "srun": f"touch {tmp_path}/started",
    }
    done = run_script(tmp_path, tools)
    assert done.returncode == code
    assert len((tmp_path / "tries").read_text().splitlines()) == tries
    assert (tmp_path / "started").exists() == (codes == "7 7 0")


def test_a_sigterm_that_comes_while_the_one_before_is_seen_to_is_seen_to_as_well(tmp_path: Path) -> None:
    """The first was sent by hand, and is no time limit; the second is Slurm's."""
    seen = tmp_path / "seen"
    tools = {
        "srun": f"kill -TERM $PPID; for try in {{1..500}}; do [[ $(wc -l < {seen}) -lt 2 ]] || exit 7; sleep 0.1; done",
        "keep": f'case "$*" in *--job-ends) [[ -s {seen} ]] || kill -TERM $PPID; echo "$*" >> {seen} ;; '
        f'*ended=*) echo "${{@: -1}}" ;; esac',
    }
    seen.touch()
    done = run_script(tmp_path, tools)
    assert done.stdout.split() == ["--attempt-ended=7"], done.stderr
    assert len(seen.read_text().splitlines()) == 2
