"""The run directory, refused or no reason to stop; a quiet run, jobs that do not see each other, documented lines."""

from __future__ import annotations

import os
import re
import signal
import socket
from pathlib import Path

import psutil
import pytest

from holdfast.journal.incidents import incidents
from holdfast.journal.reader import read_run
from tests.jobs import Jobs

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
    """In one run directory; each rank gets that of its job, in each cycle, and the run id that the user gave."""
    says = "say('in', os.environ['HOLDFAST_RUN_DIR'], os.environ['TORCHELASTIC_RUN_ID'])\n"
    text = says + "sys.exit(1) if CYCLE == 0 else wait()"
    first = jobs(text, "--max-restarts", "1", "--rdzv-id", "job-7", nproc=1)
    assert first.hear(r"in (\S+) job-7", ranks=[0], cycle=1) == {0: str(first.run_dir)}
    flags = ("--ft-run-dir", first.run_dir, "--nproc-per-node", "1")
    second = jobs.plain(*flags, jobs.script(says + "sys.exit(3)"))
    (line,) = [line for line in second.end(3).splitlines() if "another launcher" in line]
    (own,) = first.run_dir.glob("also-*")
    assert str(own) in line
    assert second.hear(r"in (\S+)", ranks=[0]) == {0: f"{first.run_dir}/also-{second.pid}"} == {0: str(own)}
    for place in (first.run_dir, own):
        assert [incident.kind for incident in incidents(read_run(str(place)))] == ["exit"]
    first.spawned.stop()


HANGS_ONCE = """
client = connect()
say("cycle", CYCLE, "at", time.monotonic())
if CYCLE == 0:
    client.send_heartbeat()
    wait()
if CYCLE == 1:
    sys.exit(3)
"""
FLAGS = ("--max-restarts", "2", "--ft-rank-heartbeat-timeout", "1.5")


def check_recovery(jobs: Jobs, run_dir: Path) -> str:
    """A hang and a failure are found and answered in time; returns standard error."""
    job = jobs.plain("--ft-run-dir", run_dir, *FLAGS, "--nproc-per-node", "1", jobs.script(HANGS_ONCE))
    said = job.end(0)
    assert "HANG: rank 0" in said and "Did not get subsequent heartbeat. Waited " in said
    moments = [float(job.hear(rf"cycle {cycle} at (\S+)", ranks=[0], cycle=cycle)[0]) for cycle in range(3)]
    assert moments[1] - moments[0] >= 1.5
    return said


def test_full_disk_costs_records_only(jobs: Jobs, small_disk: Path) -> None:
    (small_disk / "ballast").write_bytes(b"x" * 65536)
    said = check_recovery(jobs, small_disk)
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


# -- A run without trouble is quiet, jobs do not see each other, and the documented lines come after a failure


USES_EVERYTHING = """
client = connect()
with client.section("setup"):
    pass
for step in range(20):
    with client.section("step"):
        client.heartbeat(step)
client.shutdown_workload_monitoring()
say("done")
"""


def test_two_jobs_at_once_do_not_see_each_other(jobs: Jobs) -> None:
    """One of them restarts, sweeps and ends while the other one, in the same state folder, works on."""
    waits = """
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
say("board", os.environ["FT_RANK_MONITOR_IPC_SOCKET"])
until("enough")
say("alive", child.poll() is None)
child.kill()
child.wait()
"""
    state = {"XDG_STATE_HOME": str(jobs.folder / "state")}
    first = jobs(waits, "--ft-run-dir", "first", env=state)
    second = jobs(waits, "--ft-run-dir", "second", "--max-restarts", "1", env=state)
    boards = [job.hear(r"board (\S+)", ranks=[0, 1]) for job in (first, second)]
    folders = {os.path.dirname(os.path.dirname(board)) for found in boards for board in found.values()}
    assert len(folders) == 2
    victim = next(child for child in psutil.Process(second.pid).children() if "RANK" in child.environ())
    victim.send_signal(signal.SIGKILL)
    second.hear("board", ranks=[0, 1], cycle=1)
    second.tell("enough")
    second.end(0)
    first.tell("enough")
    assert len(first.end(0).splitlines()) == 1
    assert len(first.lines("cycle 0 alive True")) == 2


def test_nothing_but_the_limits_when_all_is_well(jobs: Jobs) -> None:
    """Of a YAML file, of the environment and of flags, of which one wins over the file's. The journal is private.

    It has no secrets of arguments.
    """
    settings = jobs.folder / "ft.yaml"
    settings.write_text("fault_tolerance: {rank_heartbeat_timeout: 40, rank_out_of_section_timeout: 50}\n")
    flags = ("--ft-rank-heartbeat-timeout", "60", "--ft-rank_section_timeouts", "setup:600,step:7")
    env = {"PET_FT_INITIAL_RANK_HEARTBEAT_TIMEOUT": "90", "MY_TOKEN": "S3CR3Tvalue"}
    script = jobs.script(USES_EVERYTHING)
    arguments = ["--token", "abc123def", "--db-password=hunter2", "--lr", "0.1", "S3CR3Tvalue"]
    given = ["--nproc-per-node", "2", "--max-restarts", "3", "--ft-cfg-path", settings, *flags]
    job = jobs.command(*given, script, *arguments, env=env)
    said = job.end(0).splitlines()
    assert 1 <= len(said) <= 2, said
    for words in ("first heartbeat 90 s", "heartbeat 60 s", "setup 600 s", "step 7 s", "out of section 50 s"):
        assert words in said[0]
    assert str(job.run_dir) in said[0]
    assert len(job.spawned.out().splitlines()) == 2  # the two ranks' own lines
    (path,) = job.run_dir.glob("journal-*.jsonl")
    assert job.run_dir.stat().st_mode & 0o777 == 0o700
    assert path.stat().st_mode & 0o777 == 0o600
    assert all(each.stat().st_mode & 0o077 == 0 for each in job.run_dir.rglob("*"))
    assert not any(secret in path.read_text() for secret in ("abc123def", "hunter2", "S3CR3Tvalue"))
    (record,) = job.journal("run_start")
    assert record["argv"][-6:] == ["--token", "***", "--db-password=***", "--lr", "0.1", "***"]


# -- the documented lines after a failure


CLOSING = r"^\[holdfast\] Sending process (\d+) closing signal SIGTERM$"
SILENT = (
    r"^\[holdfast\] .*\brank (\d+) \(node [^,]+, pid (\d+), cycle 0\): "
    r"Did not get subsequent heartbeat\. Waited (\d+\.\d\d) seconds\."
)
TIMEOUT = 3.0

# Both last heartbeats are of one moment, so that both timeouts have passed when the first one is acted on.
TWO_OF_THREE_HANG = """
import itertools
client = connect()
for turn in itertools.count():
    meet(f"begin-{turn}")
    client.send_heartbeat()
    with open(f"{os.environ['NOTES']}/sent-{turn}-{RANK}", "w") as file:
        file.write(str(time.monotonic()))
    meet(f"sent-{turn}")
    times = [float(open(f"{os.environ['NOTES']}/sent-{turn}-{rank}").read()) for rank in (1, 2)]
    if abs(times[0] - times[1]) < 0.02:
        break
while RANK == 0:
    client.send_heartbeat()
    time.sleep(0.02)
wait()
"""


def test_ranks_past_their_timeouts_and_those_that_are_stopped_have_a_line_each(jobs: Jobs) -> None:
    job = jobs(TWO_OF_THREE_HANG, f"--ft-rank-heartbeat-timeout={TIMEOUT}", "--ft-warm-start=off", nproc=3)
    output = job.end(137)
    said = "\n".join(line for line in output.splitlines() if "FAILED" not in line)
    silent = re.findall(SILENT, said, re.MULTILINE)
    pids = {each["rank"]: each["pid"] for each in job.journal("rank_start")}
    assert {int(rank): int(pid) for rank, pid, _ in silent} == {1: pids[1], 2: pids[2]} and len(silent) == 2
    assert all(float(waited) >= TIMEOUT for _, _, waited in silent)
    (verdict,) = job.journal("verdict")
    overdue = job.journal("overdue")
    assert {each["rank"]: each["pid"] for each in overdue} == {1: pids[1], 2: pids[2]}
    assert len(overdue) == 2 and verdict["overdue_rank"] in (1, 2)
    for each in overdue:
        assert (each["cycle"], each["reason"], each["limit"]) == (0, "heartbeat", TIMEOUT)
        assert each["waited"] >= TIMEOUT
    del pids[verdict["rank"]]
    assert sorted(re.findall(CLOSING, output, re.MULTILINE)) == sorted(map(str, pids.values()))
