"""The run directory: refused when others could have planted it, and no reason to stop when it hangs or is full."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.journal.incidents import incidents
from holdfast.journal.reader import read_run
from tests.launcher.conftest import Jobs

NODE = socket.gethostname()


def test_directory_that_is_refused_is_a_usage_error(jobs: Jobs, tmp_path: Path) -> None:
    """What else is refused: tests/journal/test_run_dir.py."""
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("real")
    job = jobs.plain("--ft-run-dir", tmp_path / "link", jobs.script("say('started')"))
    (line,) = job.end(2).splitlines()
    assert line.startswith(f"ft_launcher: error: run directory {tmp_path / 'link'}")
    assert "is a symbolic link (to real)" in line
    assert not job.spawned.out() and not list((tmp_path / "real").iterdir())


def test_a_job_without_a_home_trains(jobs: Jobs, tmp_path: Path) -> None:
    """Its home folder does not exist: one warning, and a private place in the temporary directory."""
    env = {"HOME": "/nonexistent", "XDG_STATE_HOME": None, "TMPDIR": str(tmp_path)}
    job = jobs.plain("--nproc-per-node", "1", jobs.script("say('trained')"), env=env)
    said = job.end(0)
    assert job.lines("trained")
    (line,) = [line for line in said.splitlines() if "/nonexistent" in line]
    (journal,) = tmp_path.glob(f"holdfast-{os.geteuid()}/*/journal-*.jsonl")
    assert f"this run's journal is in {journal.parent}" in line
    assert not Path("/nonexistent").exists()


def test_two_jobs_at_once_read_right_both(jobs: Jobs) -> None:
    first = jobs("say('on')\nwait()", nproc=1)
    first.hear("on", ranks=[0])
    flags = ("--ft-run-dir", first.run_dir, "--nproc-per-node", "1")
    said = jobs.plain(*flags, jobs.script("sys.exit(3)")).end(3)
    (line,) = [line for line in said.splitlines() if "another launcher" in line]
    (own,) = first.run_dir.glob("also-*")
    assert str(own) in line
    kinds = [
        [incident.kind for incident in incidents(read_run(str(place)))] for place in (first.run_dir, own)
    ]
    assert kinds == [[], ["exit"]]
    first.spawned.stop()


HANGS_ONCE = """
client = connect()
client.send_heartbeat()
say("cycle", CYCLE, "at", time.monotonic())
if CYCLE == 0:
    wait()
if CYCLE == 1:
    sys.exit(3)
"""
FLAGS = ("--max-restarts", "2", "--ft-rank-heartbeat-timeout", "1.5")


def check_recovery(jobs: Jobs, run_dir: Path) -> str:
    """A hang and a failure are found and answered in time; returns standard error."""
    job = jobs.plain("--ft-run-dir", run_dir, *FLAGS, "--nproc-per-node", "1", jobs.script(HANGS_ONCE))
    said = job.end(0)
    assert "HANG: rank 0" in said and "Did not get subsequent heartbeat. Waited 1.5" in said
    moments = [float(job.hear(rf"cycle {cycle} at (\S+)", ranks=[0], cycle=cycle)[0]) for cycle in range(3)]
    assert moments[1] - moments[0] >= 1.5
    return said


@pytest.fixture
def tiny_filesystem(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of one page, full."""
    place = tmp_path / "tiny"
    place.mkdir(mode=0o700)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4k,mode=700", "tmpfs", place], capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a tmpfs here: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def test_full_disk_costs_records_only(jobs: Jobs, tiny_filesystem: Path) -> None:
    (tiny_filesystem / "ballast").write_bytes(b"x" * 4096)
    said = check_recovery(jobs, tiny_filesystem)
    warnings = [line for line in said.splitlines() if "warning: journal" in line]
    assert len(warnings) == 1 and "No space left on device" in warnings[0]


def test_filesystem_that_hangs_later_costs_records_only(jobs: Jobs, tmp_path: Path) -> None:
    """The FIFO has a reader that stops reading: a write in the middle of the journal never returns."""
    run_dir = tmp_path / "hung"
    run_dir.mkdir(mode=0o700)
    fifo = run_dir / f"journal-{NODE}.jsonl"
    os.mkfifo(fifo, 0o600)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(BlockingIOError):
            while True:
                os.write(writer, b"\n" * 4096)
        check_recovery(jobs, run_dir)
    finally:
        os.close(reader)
        os.close(writer)


def test_run_directory_that_vanishes(jobs: Jobs) -> None:
    """The journal is removed too early: it is lost, the job is not."""
    text = """
import shutil
shutil.rmtree("vanishes", ignore_errors=True)
sys.exit(3 if CYCLE == 0 else 0)
"""
    flags = ("--max-restarts", "1", "--nproc-per-node", "1", "--ft-run-dir", "vanishes")
    jobs.plain(*flags, jobs.script(text)).end(0)


# -- secrets -------------------------------------------------------------------------------------------------


def test_journal_is_private_and_has_no_secrets_of_arguments(jobs: Jobs) -> None:
    arguments = ["--token", "abc123def", "--db-password=hunter2", "--lr", "0.1", "S3CR3Tvalue"]
    script = jobs.script("say('runs')")
    job = jobs.command("--nproc-per-node", "1", script, *arguments, env={"MY_TOKEN": "S3CR3Tvalue"})
    job.end(0)
    (record,) = job.journal("run_start")
    (path,) = job.run_dir.glob("journal-*.jsonl")
    assert job.run_dir.stat().st_mode & 0o777 == 0o700
    assert path.stat().st_mode & 0o777 == 0o600
    assert all(each.stat().st_mode & 0o077 == 0 for each in job.run_dir.rglob("*"))
    for secret in ("abc123def", "hunter2", "S3CR3Tvalue"):
        assert secret not in path.read_text()
    assert record["argv"][-6:] == ["--token", "***", "--db-password=***", "--lr", "0.1", "***"]
