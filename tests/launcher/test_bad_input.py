"""A user's mistake through the real command: one clear line, exit code 2, nothing started, no run directory made."""

from __future__ import annotations

import re

import pytest

from tests.launcher.conftest import Jobs

MISTAKES = {
    "misspelt key": (
        "rank_heartbeat_timout: 30",
        [],
        ["ft.yaml", "rank_heartbeat_timout", "rank_heartbeat_timeout"],
    ),
    "wrong signal, beside a flag": (
        "rank_termination_signal: SIGFOO",
        ["--ft-rank-heartbeat-timeout", "30"],
        ["rank_termination_signal", "SIGFOO"],
    ),
    "log folder in a file": (
        "log_level: INFO",
        ["--log-dir", "ft.yaml/logs"],
        ["ft.yaml/logs: Not a directory"],
    ),
}
"""A line of YAML, flags, and words of the error."""


@pytest.mark.parametrize("mistake", MISTAKES)
def test_one_clear_line(jobs: Jobs, mistake: str) -> None:
    """All other mistakes are found by the same function, at the same moment: tests/config."""
    setting, flags, words = MISTAKES[mistake]
    (jobs.folder / "ft.yaml").write_text(f"fault_tolerance:\n  {setting}\n")
    state = jobs.folder / "state"
    script = jobs.script("say('started')")
    job = jobs.command("--ft-cfg-path", "ft.yaml", *flags, script, env={"XDG_STATE_HOME": str(state)})
    (line,) = job.end(2).splitlines()
    assert job.spawned.out() == "" and not job.run_dir.exists() and not state.exists()
    assert line.startswith("ft_launcher: error: ") and all(word in line for word in words), line


def test_help_is_no_mistake(jobs: Jobs) -> None:
    job = jobs.command("--help")
    assert job.end(0) == ""
    assert "--ft-rank-heartbeat-timeout" in job.spawned.out() and not job.run_dir.exists()


def test_rendezvous_host_without_an_address_is_named(jobs: Jobs) -> None:
    """A launcher tries as long as torch does: the name may be there later."""
    rendezvous = ["--nnodes=2", "--rdzv-backend=c10d", "--rdzv-id=job", "--rdzv-conf=read_timeout=1"]
    job = jobs.command(*rendezvous, "--rdzv-endpoint=nosuchhost.invalid:29400", jobs.script(""))
    (last,) = (line for line in job.end(1).splitlines() if "cannot be reached" in line)
    store = "[holdfast] the rendezvous store at nosuchhost.invalid:29400 cannot be reached"
    assert last.startswith(f"{store}: the name nosuchhost.invalid cannot be resolved: [Errno ")


def test_version_is_that_of_holdfast_and_of_torch(jobs: Jobs) -> None:
    job = jobs.plain("--version")
    assert job.end(0) == ""
    assert re.fullmatch(r"ft_launcher \d\S+ \(holdfast\), torch \d\S+\n", job.spawned.out())


REFUSES = "import argparse\nargparse.ArgumentParser().parse_args()"


@pytest.mark.parametrize(
    ("text", "option", "is_hinted"),
    [
        (REFUSES, "--nproc_per_node=4", True),
        (REFUSES, "--ft-rank-heartbeat-timeout=4", True),
        (REFUSES, "--lr=4", False),
        ("sys.exit(3)", "--nproc-per-node=4", False),
    ],
)
def test_option_after_a_script_that_refuses_it_has_a_hint(
    jobs: Jobs, text: str, option: str, is_hinted: bool
) -> None:
    script = jobs.script(text, "train.py")
    said = jobs.command(script, option).end(3 if "3" in text else 2)
    flag = option.partition("=")[0]
    hint = f"[holdfast] {flag} was passed to train.py, as all that follows the script: options of ft_launcher belong "
    assert said.count(hint) == is_hinted


def test_script_arguments_are_not_looked_at(jobs: Jobs) -> None:
    """`torchrun train.py --log x` is an error of torchrun's: an ambiguous option."""
    job = jobs.command(
        "--nproc-per-node", "1", jobs.script("say(sys.argv[1:])"), "--log", "x", "--max-restarts", "-2"
    )
    job.end(0)
    assert job.lines(r"\['--log', 'x', '--max-restarts', '-2'\]")


def test_ranks_that_cannot_be_started(jobs: Jobs) -> None:
    """It was all right at the start of the job; before the restart the folder for the logs is removed."""
    text = """
import shutil
meet()
if RANK == 0:
    shutil.rmtree("logs")
    open("logs", "w").close()
    sys.exit(3)
wait()
"""
    job = jobs(text, "--max-restarts", "1", "--log-dir", "logs", "--redirects", "3")
    said = job.end(1)
    assert "Traceback" not in said
    *_, last, report = said.splitlines()  # which is of the first cycle, and may come a moment later
    assert "its ranks could not be started: [Errno 20] Not a directory" in last + report
