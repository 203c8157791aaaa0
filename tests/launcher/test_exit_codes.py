"""The launcher's exit code, a user's mistakes as one clear line, and how the ends of ranks are described."""

from __future__ import annotations

import re
import signal

import pytest

from holdfast.fault_tolerance.launcher import exit_codes
from holdfast.fault_tolerance.launcher.exit_codes import RankExit
from tests.jobs import Jobs


@pytest.mark.check
def test_code_of_a_rank_that_failed(jobs: Jobs) -> None:
    """Of three ranks one succeeds, one waits. Which code several failures give: tests/control/test_one_node.py."""
    text = "meet()\nwait() if RANK == 0 else sys.exit(42 * (RANK - 1))"
    job = jobs(text, "--ft-log-level", "ERROR", nproc=3)
    said = job.end(42)
    assert re.search(r"^\[holdfast\] FAILED: rank 2 ", said, re.MULTILINE) and "closing signal" not in said


@pytest.mark.check
def test_code_of_a_rank_where_sigchld_is_ignored(jobs: Jobs) -> None:
    """By the process that starts the launcher: the kernel would discard how the ranks ended."""
    under = ["env", "--ignore-signal=CHLD"]
    job = jobs.command("--nproc-per-node=1", "--no-python", "/bin/false", under=under)
    assert "exit code 1" in job.end(1)


ASKS = r"""
client = connect()
meet()
if RANK == 1:
    request(client, "ShutdownWorkload" if CYCLE else "Continue", "loss is nan\n[holdfast] all is well\x1b[2J")
    sys.exit(4)
wait()
"""


@pytest.mark.check
def test_requested_shutdown_is_93_and_restarts_nothing(jobs: Jobs) -> None:
    """A request to continue before it changes nothing; and what ranks say cannot pass for the launcher's lines."""
    job = jobs(ASKS, "--max-restarts", "3")
    said = job.end(93)
    assert len(job.journal("restart")) == 1
    assert "loss is nan" in job.journal("run_end")[0]["reason"]
    assert r"loss is nan\n[holdfast] all is well\x1b[2J" in said
    assert "\n[holdfast] all is well" not in said and "\x1b" not in said


def test_hung_rank_that_leaves_politely_has_failed(jobs: Jobs) -> None:
    """It was asked to end by SIGTERM, and its handler ends it with 0: that is no success."""
    text = """
client = connect()
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
meet()
if RANK == 1:
    client.send_heartbeat()
wait()
"""
    flags = ("--ft-rank-heartbeat-timeout", "1", "--ft-rank-termination-signal", "SIGTERM")
    job = jobs(text, *flags, "--max-restarts", "1")
    job.end(1)
    (restart,) = job.journal("restart")
    assert "hung: Did not get subsequent heartbeat. Waited " in restart["reason"]


# -- as values -----------------------------------------------------------------------------------------------


def end(status: int) -> RankExit:
    return RankExit(0, 0, 100, status, 1.0)


@pytest.mark.parametrize(
    ("status", "meaning"),
    [
        (3, "exit code 3"),
        (-signal.SIGSEGV, "killed by SIGSEGV (crashed in native code (invalid memory access))"),
        (-signal.SIGUSR2, "killed by SIGUSR2"),
        (-signal.SIGTERM, "killed by SIGTERM (not sent by the launcher)"),
        (-40, "killed by signal 40"),
    ],
)
def test_meaning(status: int, meaning: str) -> None:
    assert end(status).meaning == meaning


@pytest.mark.check
@pytest.mark.parametrize(("status", "obeyed"), [(0, True), (-15, True), (143, True), (-9, False), (1, False)])
def test_ending_by_the_signal_that_was_passed_on_is_no_failure(status: int, obeyed: bool) -> None:
    assert exit_codes.obeyed(end(status), signal.SIGTERM) is obeyed


# -- A user's mistake through the real command


@pytest.mark.parametrize(
    ("setting", "flags", "words"),
    [
        ("rank_heartbeat_timout: 30", [], ["ft.yaml", "rank_heartbeat_timout", "rank_heartbeat_timeout"]),
        ("rank_termination_signal: SIGFOO", ["--ft-safety-factor=3"], ["rank_termination_signal", "SIGFOO"]),
        ("log_level: INFO", ["--log-dir", "ft.yaml/logs"], ["ft.yaml/logs: Not a directory"]),
    ],
    ids=["misspelt key", "wrong signal, beside a flag", "log folder in a file"],
)  # fmt: skip
def test_one_clear_line(jobs: Jobs, setting: str, flags: list[str], words: list[str]) -> None:
    """All other mistakes are found by the same function, at the same moment: tests/config."""
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
    ("text", "option", "code", "is_hinted"),
    [
        (REFUSES, "--nproc_per_node=4", 2, True),
        (REFUSES, "--lr=4", 2, False),
        ("sys.exit(3)", "--nproc-per-node=4", 3, False),
    ],
)
def test_option_after_a_script_that_refuses_it_has_a_hint(
    jobs: Jobs, text: str, option: str, code: int, is_hinted: bool
) -> None:
    said = jobs.command(jobs.script(text, "train.py"), option).end(code)
    flag = option.partition("=")[0]
    hint = f"[holdfast] {flag} was passed to train.py, as all that follows the script: options of ft_launcher belong "
    assert said.count(hint) == is_hinted


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
    assert "its ranks could not be started: [Errno 20] Not a directory" in said


BOTH_FAIL = """
meet()
os.kill(os.getppid(), signal.SIGSTOP)
say("goes")
"""


@pytest.mark.parametrize(
    ("end", "code"),
    [("sys.exit(137) if RANK else kill_me(signal.SIGKILL)", 137), ("sys.exit(3 + RANK)", 1)],
)
def test_code_of_several_failed_ranks(jobs: Jobs, end: str, code: int) -> None:
    job = jobs(BOTH_FAIL + end)
    job.hear("goes", ranks=[0, 1])
    job.wait_for_ends_of_ranks(2)
    job.spawned.send_signal(signal.SIGCONT)
    job.end(code)
