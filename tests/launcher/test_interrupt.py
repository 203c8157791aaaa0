"""Ctrl-C, and the signals that only pass through the launcher."""

from __future__ import annotations

import signal

from tests.launcher.conftest import Jobs
from tests.processes import alive

SAVES = """
def stop(number, frame):
    say("saves")
    time.sleep({seconds})
    say("saved")
    sys.exit(0)
signal.signal(signal.SIGINT, stop)
say("pid", os.getpid(), "ready")
wait()
"""


def test_ctrl_c_lets_ranks_save_and_is_130(jobs: Jobs) -> None:
    job = jobs(SAVES.format(seconds=0.5), "--max-restarts", "3", "--ft-preempted-exit-code", "75")
    job.hear("pid .* ready", ranks=[0, 1])
    job.spawned.send_signal_to_group(
        signal.SIGINT
    )  # as a terminal does; the ranks have sessions of their own
    said = job.end(130)
    assert len(job.lines("saved$")) == 2
    assert "Received Signals.SIGINT death signal" in said and "FAILED" not in said


def test_ctrl_c_without_a_handler_is_130_too(jobs: Jobs) -> None:
    job = jobs("say('ready')\nwait()")
    job.hear("ready", ranks=[0, 1])
    job.spawned.send_signal(signal.SIGINT)
    said = job.end(130)
    assert "[holdfast] FAILED" not in said


def test_second_ctrl_c_ends_the_job_at_once(jobs: Jobs) -> None:
    job = jobs(SAVES.format(seconds=600))
    pids = job.hear(r"pid (\d+) ready", ranks=[0, 1])
    job.spawned.send_signal(signal.SIGINT)
    job.hear("saves", ranks=[0, 1])
    job.spawned.send_signal(signal.SIGINT)
    job.end(130)
    assert not any(alive(int(pid)) for pid in pids.values())


def test_ctrl_c_cuts_a_preemption_short(jobs: Jobs) -> None:
    job = jobs("signal.signal(signal.SIGTERM, lambda *_: say('saves'))\nsay('ready')\nwhile True: wait()")
    job.hear("ready", ranks=[0, 1])
    job.spawned.send_signal(signal.SIGTERM)
    job.hear("saves", ranks=[0, 1])
    job.spawned.send_signal(signal.SIGINT)
    job.end(137)


def test_sigusr_is_passed_on_and_ends_nothing(jobs: Jobs) -> None:
    text = """
for number in (signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, lambda number, frame: say("got", signal.Signals(number).name))
say("ready")
while not os.path.exists(os.environ["NOTES"] + "/enough"):
    time.sleep(0.01)
"""
    job = jobs(text)
    job.hear("ready", ranks=[0, 1])
    for name in ("SIGUSR1", "SIGUSR2", "SIGUSR1"):
        before = len(job.lines(f"got {name}"))
        job.spawned.send_signal(getattr(signal, name))
        job.spawned.wait_for(lambda name=name, before=before: len(job.lines(f"got {name}")) == before + 2)
    assert job.spawned.returncode is None
    (job.notes / "enough").touch()
    assert "death signal" not in job.end(0)


def test_sigusr_ends_the_job_when_ranks_die_of_it(jobs: Jobs) -> None:
    """Slurm's `--signal=USR1@60` and a script without a handler: preempted, not failed."""
    job = jobs("say('ready')\nwait()", "--max-restarts", "3", "--ft-preempted-exit-code", "75")
    job.hear("ready", ranks=[0, 1])
    job.spawned.send_signal(signal.SIGUSR1)
    said = job.end(75)
    assert "Received Signals.SIGUSR1 death signal" in said and "FAILED" not in said


def test_nohup_is_respected(jobs: Jobs) -> None:
    """A launcher started by nohup outlives its terminal, and so do its ranks."""
    text = "say('ready')\nwhile not os.path.exists(os.environ['NOTES'] + '/enough'): time.sleep(0.01)"
    job = jobs(text, under=["nohup"])
    job.hear("ready", ranks=[0, 1])
    job.spawned.send_signal(signal.SIGHUP)
    (job.notes / "enough").touch()
    assert "SIGHUP" not in job.end(0)
