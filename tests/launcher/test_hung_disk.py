"""A disk or a reader that hangs: supervision, restarts and the end of the job do not wait for it."""

from __future__ import annotations

import os
from pathlib import Path

from tests.launcher.conftest import LAUNCHER, Jobs
from tests.pipes import full_pipe
from tests.processes import Spawner

# A FIFO without a writer: opening it waits forever, as a file on a filesystem that is gone does.
HUNG_LOG = """
path = os.readlink("/proc/self/fd/2")
os.unlink(path)
os.mkfifo(path)
meet()
os._exit(3) if RANK == 1 else wait()
"""


def test_logs_that_cannot_be_read(jobs: Jobs) -> None:
    job = jobs(HUNG_LOG, "--redirects", "2", "--log-dir", jobs.folder / "logs", "--max-restarts", "1")
    said = job.end(3)
    assert "what the ranks wrote cannot be read: the filesystem of " in said
    assert "FAILED: rank 1" in said and len(job.journal("restart")) == 1
    stop, failed = job.journal("stop")[0], job.journal("rank_exit")[0]
    assert stop["mono"] - failed["mono"] < 0.9  # nothing was read before the ranks were stopped


def test_log_output_that_nobody_reads(jobs: Jobs, spawn: Spawner) -> None:
    """`ft_launcher --tee 1 … | less`: torch's tailer waits for the reader, the launcher does not."""
    reader, writer = os.pipe()
    script = jobs.script("say('x' * 200_000)\nmeet()\nsys.exit(3) if RANK == 1 else wait()")
    run_dir: Path = jobs.folder / "run"
    command = [*LAUNCHER, "--ft-run-dir", run_dir, "--nproc-per-node", "2", "--tee", "1", script]
    notes = jobs.folder / "notes"
    notes.mkdir()
    into = ["bash", "-c", f'exec "$@" >&{writer}', "bash"]
    job = spawn([*into, *command], env={"NOTES": str(notes)}, pass_fds=[writer])
    os.close(writer)
    assert job.wait() == 3, job.output()
    assert "FAILED: rank 1" in job.err()
    os.close(reader)


def test_standard_error_that_nobody_reads(jobs: Jobs) -> None:
    """A terminal held by Ctrl-S: a hang is found, the ranks are restarted, the job ends."""
    reader, writer = full_pipe()
    text = """
from holdfast.fault_tolerance import RankMonitorClient
client = RankMonitorClient()
client.init_workload_monitoring()
client.send_heartbeat()
meet()
wait() if RANK == 1 else os._exit(0)
"""
    into = ["bash", "-c", f'exec "$@" 2>/proc/{os.getpid()}/fd/{writer}', "bash"]
    job = jobs(text, "--max-restarts", "1", "--ft-rank-heartbeat-timeout", "0.5", under=into)
    job.end(137)
    assert len(job.journal("verdict")) == 2 and len(job.journal("restart")) == 1
    for end in (reader, writer):
        os.close(end)


def test_what_ranks_say_cannot_pass_for_the_launchers_lines(jobs: Jobs) -> None:
    text = r"""
from holdfast.fault_tolerance import RankMonitorClient, WorkloadAction, WorkloadControlRequest
client = RankMonitorClient()
client.init_workload_monitoring()
why = "tired\n[holdfast] all is well\x1b[2J"
client.send_workload_control_request(WorkloadControlRequest(WorkloadAction.ShutdownWorkload, why))
wait()
"""
    job = jobs(text, nproc=1)
    said = job.end(93)
    assert r"tired\n[holdfast] all is well\x1b[2J" in said
    assert "\n[holdfast] all is well" not in said and "\x1b" not in said
