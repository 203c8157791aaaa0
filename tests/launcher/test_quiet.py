"""A run without trouble is quiet, and two jobs of one user on one machine do not see each other."""

from __future__ import annotations

import os
import signal

import psutil

from tests.launcher.conftest import Jobs

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
    """Of a YAML file, of the environment and of flags, of which one wins over the file's."""
    settings = jobs.folder / "ft.yaml"
    settings.write_text("fault_tolerance: {rank_heartbeat_timeout: 40, rank_out_of_section_timeout: 50}\n")
    flags = ("--ft-rank-heartbeat-timeout", "60", "--ft-rank_section_timeouts", "setup:600,step:7")
    env = {"PET_FT_INITIAL_RANK_HEARTBEAT_TIMEOUT": "90"}
    job = jobs(USES_EVERYTHING, "--max-restarts", "3", "--ft-cfg-path", settings, *flags, env=env)
    said = job.end(0).splitlines()
    assert 1 <= len(said) <= 2, said
    for words in ("first heartbeat 90 s", "heartbeat 60 s", "setup 600 s", "step 7 s", "out of section 50 s"):
        assert words in said[0]
    assert str(job.run_dir) in said[0]
    assert len(job.spawned.out().splitlines()) == 2  # the two ranks' own lines
