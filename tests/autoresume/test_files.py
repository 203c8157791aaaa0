"""The ledger's file, the lock and the finished flag on disks as they are: full, read-only, torn."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.autoresume.chain import PREEMPTED, RUN_DIR, Launcher, launcher_in
from holdfast.autoresume.ledger import Attempt, Ledger, attempt_begins, attempt_ends, chain_begins
from holdfast.autoresume.outcome import Ending, Kind
from holdfast.autoresume.run_dir import (
    LEDGER,
    LOCK,
    OF_SLURM,
    Held,
    LedgerFile,
    LedgerUnreadable,
    Standing,
    Unlockable,
    check_flag,
    flag_path,
    read_records,
    remove_flag,
    say,
    take_lock,
    whose_flag,
)
from holdfast.callbacks.completion import FLAG_VARIABLE
from holdfast.cli.main import main
from holdfast.fault_tolerance.errors import ConfigError
from tests.autoresume.conftest import HOLDFAST, Chains, fill
from tests.pipes import on_a_terminal
from tests.processes import Spawner


def records(path: Path) -> list[dict[str, object]]:
    return read_records(str(path))[0]


# The ledger's file


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 200), st.binary(max_size=20))
def test_a_torn_line_costs_itself_and_no_other(tmp_path: Path, cut: int, rubbish: bytes) -> None:
    path = tmp_path / LEDGER
    path.unlink(missing_ok=True)
    file = LedgerFile(str(tmp_path))
    file.append(attempt_begins(1.0, Attempt(1, 1.0)))
    file.append(attempt_ends(2.0, 1, Ending(Kind.FAILED, "exit code 1"), exit_code=1))
    whole = path.read_bytes()
    kept = whole[: max(whole.index(b"\n") + 1, len(whole) - cut)]
    path.write_bytes(kept + rubbish.replace(b"\n", b"?"))
    file.append(attempt_begins(3.0, Attempt(2, 3.0)))
    assert [attempt.number for attempt in file.read().attempts] == [1, 2]


def test_a_torn_line_is_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / LEDGER).write_bytes(b'{"t": 1, "kind": "attempt", "attempt": 1}\n{"t": 2, "ki')
    assert len(LedgerFile(str(tmp_path)).read().attempts) == 1
    line = f"{tmp_path / LEDGER}: line 2 cannot be read (torn when it was written?) and counts for none"
    assert capsys.readouterr().err == f"[holdfast] warning: {line}\n"
    (tmp_path / LEDGER).write_bytes(b"{\n{\n")
    LedgerFile(str(tmp_path)).read()
    said = capsys.readouterr().err
    assert "lines 1, 2 cannot be read" in said and said.endswith(" and count for none\n")


@pytest.mark.parametrize(
    ("make", "why"),
    [(Path.mkdir, r"attempts\.jsonl: Is a directory$"), (os.mkfifo, "a pipe has this name")],
    ids=["folder", "pipe"],
)
def test_an_unreadable_ledger_is_one_line(tmp_path: Path, make: Callable[[Path], None], why: str) -> None:
    """Nor is a pipe waited for."""
    make(tmp_path / LEDGER)
    with pytest.raises(LedgerUnreadable, match=why):
        LedgerFile(str(tmp_path)).read()


def test_on_a_full_disk_records_wait_for_room(small_disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = LedgerFile(str(small_disk))
    assert file.append({"t": 1, "kind": "other"})
    filler = fill(small_disk)
    waiting = [file.append({"t": number, "kind": "other", "why": "x" * 5000}) for number in (2, 3)]
    assert waiting == [False, False]
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "cannot be written: No space left on device. The training continues" in said
    assert [record["t"] for record in records(small_disk / LEDGER)] == [1]  # nothing torn either
    filler.unlink()
    assert (small_disk / LEDGER).stat().st_mode & 0o777 == 0o600
    assert file.append({"t": 4, "kind": "other"})
    assert [record["t"] for record in records(small_disk / LEDGER)] == [1, 2, 3, 4]
    assert "can be written again" in capsys.readouterr().err


def test_a_chain_on_a_full_disk_counts_its_failures(small_disk: Path, tmp_path: Path, spawn: Spawner) -> None:
    fill(small_disk)
    env = {FLAG_VARIABLE: str(tmp_path / "flag")}
    tool = [*HOLDFAST, "autoresume", "--run-dir", small_disk, "--backoff", "0", "--max-failures", "2", "--"]
    run = spawn([*tool, "false"], env=env)
    assert run.wait() == 1
    assert run.err().count("cannot be written: No space left on device") == 1
    assert "gave up after 2 failures in a row" in run.err()
    done = spawn([*tool, "sh", "-c", "touch $FAULT_TOL_FINISHED_FLAG_FILE"], env=env)
    assert done.wait() == 0
    last = done.err().splitlines()[-1]
    assert f"{small_disk / LEDGER} lacks the end of this: the next start does not know of it, and may" in last


# The lock


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    code = (
        "from holdfast.autoresume.run_dir import take_lock; import os; "
        f"held = take_lock({str(tmp_path)!r}); os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == -9
    with take_lock(str(tmp_path)), pytest.raises(Held):
        take_lock(str(tmp_path))
    take_lock(str(tmp_path)).close()
    with pytest.raises(Unlockable, match="No such file"):
        take_lock(str(tmp_path / "nowhere"))


# The flag


def ledger_with(flag_path: str, *endings: Kind) -> Ledger:
    told = [chain_begins(1, command=[], flag=flag_path, host="h", pid=1, started=1, carries_on=False)]
    for number, ending in enumerate(endings, 1):
        told.append(attempt_begins(2, Attempt(number, 2)))
        told.append(attempt_ends(3, number, Ending(ending, "so"), exit_code=0))
    return Ledger.of(told)


def test_whose_flag_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert flag_path({FLAG_VARIABLE: ""}, "/run") == "/run/finished.flag"
    assert flag_path({FLAG_VARIABLE: "mine"}, "/run") == str(tmp_path / "mine")
    assert whose_flag(Ledger(), "/f", there=False) is Standing.NONE
    assert whose_flag(Ledger(), "/f", there=True) is Standing.STALE
    assert whose_flag(ledger_with("/f"), "/f", there=True) is Standing.STALE
    assert whose_flag(ledger_with("/other", Kind.FAILED), "/f", there=True) is Standing.STALE
    assert whose_flag(ledger_with("/f", Kind.FAILED), "/f", there=True) is Standing.OURS
    assert whose_flag(ledger_with("/f", Kind.SHUT_DOWN), "/f", there=True) is Standing.NO_MORE


def test_a_path_for_no_flag_is_refused_and_stays(chains: Chains, small_disk: Path, tmp_path: Path) -> None:
    script, link, loop, empty, pipe = (tmp_path / name for name in ("train.py", "link", "loop", "empty", "p"))
    script.write_text("print(1)")
    empty.touch()
    link.symlink_to(empty)
    loop.symlink_to(loop)
    os.mkfifo(pipe)
    filler = fill(small_disk)
    check_flag(str(small_disk / "f"))  # a full disk may have room by then
    assert list(small_disk.iterdir()) == [filler]
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    never = "the training could not create this file when it is finished: "
    no_file = f"{never}a device, pipe or socket has this name"
    for path, why in (
        (script, "was there before the first attempt and has 8 bytes in it"),
        (link, "was there before the first attempt and is a symbolic link to a file"),
        (loop, f"{never}Too many levels of symbolic links"),
        (small_disk / "f", f"{never}Read-only file system"),
        (small_disk / "nowhere" / "f", f"{never}No such file or directory"),
        (small_disk, f"{never}Is a directory"),
        (pipe, no_file),  # as /dev/null would be, which root can remove
    ):
        with pytest.raises(ConfigError, match=f"{path}: {why}"):
            check_flag(str(path))
    for path in (script, link):
        with pytest.raises(ConfigError, match="was there before the first attempt"):
            remove_flag(str(path))
    with pytest.raises(ConfigError, match="of another run, and cannot be removed"):
        remove_flag(str(small_disk))
    assert script.exists() and link.exists() and pipe.exists()
    check_flag(str(empty))
    remove_flag(str(empty))
    assert not empty.exists()
    remove_flag(str(empty))
    run = chains.sh("echo started", env={FLAG_VARIABLE: str(pipe)})
    assert (run.wait(), run.out()) == (2, "")
    assert run.err() == f"holdfast: error: {FLAG_VARIABLE}={pipe}: {no_file}\n"


@pytest.mark.parametrize("name", [LEDGER, LOCK, "journal-gpu-7.jsonl", *OF_SLURM])
def test_a_file_of_the_run_directory_is_no_flag(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is a file of the run directory's own"):
        flag_path({FLAG_VARIABLE: str(tmp_path / name)}, str(tmp_path))
    assert flag_path({FLAG_VARIABLE: str(tmp_path / name)}, "/run") == str(tmp_path / name)


def test_a_flag_folder_that_becomes_read_only_is_named_in_the_end(chains: Chains, small_disk: Path) -> None:
    run = chains.sh(f"mount -o remount,ro {small_disk}", env={FLAG_VARIABLE: str(small_disk / "f")})
    assert run.wait() == 1
    assert "gave up after 3 attempts" in run.err()
    assert "the training could not create this file when it is finished: Read-only file system" in run.err()


# What a command tells


@pytest.mark.parametrize(
    ("command", "environ", "found"),
    [
        ("python train.py", {}, Launcher()),
        ("ft_launcher train.py", {}, Launcher(True)),
        ("/opt/bin/ft_launcher --ft-run-dir r train.py", {}, Launcher(True, "r")),
        ("ft_launcher --ft_run_dir=r --nproc-per-node 2 -t 3 train.py", {}, Launcher(True, "r")),
        ("ft_launcher train.py --ft-run-dir r", {}, Launcher(True)),
        ("python -m holdfast.fault_tolerance.launcher --ft-param-run-dir r x", {}, Launcher(True, "r")),
        ("ft_launcher --ft-preempted-exit-code 9 train.py", {PREEMPTED: "8"}, Launcher(True, None, 9)),
        ("ft_launcher train.py", {PREEMPTED: "8", RUN_DIR: "e"}, Launcher(True, "e", 8)),
        ("ft_launcher --no-such-option --ft-run-dir r train.py", {}, Launcher(True)),
        ("srun ft_launcher --ft-run-dir r train.py", {}, Launcher(True, "r")),
    ],
)
def test_what_a_command_tells_of_its_launcher(command: str, environ: dict[str, str], found: Launcher) -> None:
    assert launcher_in(command.split(), environ) == found


# The command line


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("", "no command: holdfast autoresume [options] -- ft_launcher …"),
        ("--", "no command after --"),
        ("sleep 1", "'sleep' stands where -- should: holdfast autoresume [options] -- sleep 1"),
        ("-- ''", "the command after -- is an empty word"),
        ("--status x --run-dir y", "--status names the run directory itself; leave --run-dir y out"),
        ("-- no-such-program", "no-such-program: no such program in PATH"),
        ("-- ./no-such-program", "./no-such-program: no such program"),
        ("-- /etc/passwd", "/etc/passwd cannot be executed"),
        ("--max-failures 0 -- true", "argument --max-failures: '0': give a whole number from 1"),
        ("--max-jobs many -- true", "argument --max-jobs: 'many': give a whole number from 1"),
        ("--max-idle 1 -- true", "argument --max-idle: '1': give a whole number from 2"),
        ("--backoff nan -- true", "argument --backoff: 'nan': give a number of seconds, 0 or more"),
        ("--json -- true", "--json goes with --status"),
        ("--status x -- true", "--status starts nothing"),
        ("--status /nowhere", "/nowhere: no attempts.jsonl in it"),
        ("--run-dir /proc/x -- true", "Give --run-dir a folder of your own"),
        ("--run-dir a -- ft_launcher --ft-run-dir b x", "--run-dir a and ft_launcher's run dir"),
    ],
)
def test_wrong_command_lines_are_one_line(
    words: str, line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}")
    try:
        code = main(["autoresume", *shlex.split(words)])
    except SystemExit as stop:
        assert isinstance(stop.code, int)
        code = stop.code
    assert code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert line in said.err
    assert said.err.count("\n") == 1


def test_advice_names_the_tool_s_own_option(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from holdfast.cli.autoresume import _run_dir

    monkeypatch.setenv("XDG_STATE_HOME", "/proc/nothing")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert _run_dir(None, None).startswith(str(tmp_path))
    said = capsys.readouterr().err
    assert "; --run-dir names another place" in said and "--ft-run-dir" not in said


def test_names_of_folders_do_nothing_to_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    say("in /a\x1b[2Jb\nc")
    assert capsys.readouterr().err == "[holdfast] in /a\\x1b[2Jb\\nc\n"


# The table


def test_the_status_in_ascii_and_on_a_narrow_terminal(tmp_path: Path) -> None:
    file = LedgerFile(str(tmp_path))
    file.append(attempt_begins(1.0, Attempt(1, 1.0)))
    file.append(attempt_ends(2.0, 1, Ending(Kind.FAILED, "naïve " + "x" * 100), exit_code=1))
    command = [*HOLDFAST, "autoresume", "--status", tmp_path]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "\n-----" in shown.stdout and r"na\xefve" in shown.stdout
    title, _, row, _ = on_a_terminal(command, 60)
    assert title.split() == ["attempt", "began", "ran", "ended", "why"]
    assert row.split()[0] == "1" and " failed   naïve xx" in row and len(row) == 60


def test_the_status(chains: Chains, capsys: pytest.CaptureFixture[str]) -> None:
    run = chains.sh("[ $HOLDFAST_ATTEMPT = 1 ] && exit 3; echo ready; exec sleep 60")
    run.wait_for("^ready$")
    assert main(["autoresume", "--status", str(chains.run_dir)]) == 0
    title, _, first, second, state = capsys.readouterr().out.splitlines()
    assert title.split() == ["attempt", "began", "ran", "ended", "why"]
    assert first.split()[0] == "1" and first.rstrip().endswith("failed   exit code 3")
    assert " runs " in second and f"pid {chains.ledger.attempts[1].pid}" in second
    assert state == f"continues (pid {run.pid} on {os.uname().nodename})"
    run.process.kill()
    run.wait()
    assert main(["autoresume", "--status", str(chains.run_dir), "--json"]) == 0
    (chain,) = json.loads(capsys.readouterr().out)
    assert "is gone: the next holdfast autoresume carries it on" in chain["state"]
    assert [attempt["kind"] for attempt in chain["attempts"]] == ["failed", None]


def test_an_end_that_nobody_saw_ran_for_an_unknown_time(tmp_path: Path) -> None:
    """Its keeper was killed long ago; the training itself made the flag."""
    flag, host = tmp_path / "finished.flag", os.uname().nodename
    flag.touch()
    file = LedgerFile(str(tmp_path))
    who = {"host": host, "pid": 1, "started": 1}
    file.append(chain_begins(1.0, command=["true"], flag=str(flag), carries_on=False, **who))
    file.append(attempt_begins(1.0, Attempt(1, 1.0, host=host, mark="of-no-process")))
    command = [*HOLDFAST, "autoresume", "--run-dir", tmp_path, "--", "true"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    (attempt,) = file.read().attempts
    assert (attempt.kind, attempt.seconds) == (Kind.FINISHED, None)
