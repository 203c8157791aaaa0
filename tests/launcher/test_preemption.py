"""SIGTERM: ranks save and leave, the launcher waits for them, and a preempted job is no failed job. Other signals."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.jobs import Job, Jobs
from tests.processes import alive

SAVES = """
def save(number, frame):
    say("saves")
    time.sleep({seconds})
    say("saved")
    {then}
signal.signal(signal.SIGTERM, save)
say("pid", os.getpid(), "ready")
while True:
    time.sleep(0.01)
"""


def signal_the_step(job: Job, number: int, *, launcher_last: bool = False) -> None:
    """As Slurm does: every process below the step's first one and that one itself, in no particular order.

    With `launcher_last` the launcher does not run meanwhile: how long this process takes for it does not matter.
    """
    launcher = psutil.Process(job.pid)
    processes = [launcher, *launcher.children(recursive=True)]
    if launcher_last:
        launcher.suspend()
    for process in reversed(processes) if launcher_last else processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)
    if number != signal.SIGSTOP:
        launcher.resume()


def test_sigterm_to_the_launcher_alone(jobs: Jobs) -> None:
    """Saving may take longer than a stop for a restart. The only step of a short cycle is in the journal: the program
    that counts the job's attempts uses it."""
    flags = ("--max-restarts", "3", "--workers-stop-timeout", "0.5")
    then = "client.heartbeat(step=41); os._exit(0)"
    job = jobs("client = connect()\n" + SAVES.format(seconds=1.5, then=then), *flags)
    pids = job.hear(r"pid (\d+) ready", ranks=[0, 1])
    job.spawned.send_signal(signal.SIGTERM)
    said = job.end(0)
    assert len(job.lines("saved$")) == 2
    assert "Received Signals.SIGTERM death signal, shutting down workers" in said
    for pid in pids.values():
        assert f"Sending process {pid} closing signal SIGTERM" in said
    assert "FAILED" not in said and not job.journal("restart", "stop_wanted", "stop_agreed", "stop_withdrawn")
    assert [each["signal"] for each in job.journal("preemption")] == ["SIGTERM"]
    steps = [(each["rank"], each["cycle"], each["step"]) for each in job.journal("first_step")]
    assert sorted(steps) == [(0, 0, 41), (1, 0, 41)]
    assert len(job.journal("rank_connect")) == 2


def test_sigterm_to_every_process_of_the_step_at_once(jobs: Jobs) -> None:
    """The monitor is signalled too and supervises on; ranks get it twice and save once each."""
    once = SAVES.replace('say("saves")', "signal.signal(number, signal.SIG_IGN)")
    job = jobs(once.format(seconds=0.5, then="sys.exit(0)"), "--max-restarts", "3")
    job.hear("pid .* ready", ranks=[0, 1])
    signal_the_step(job, signal.SIGTERM)
    said = job.end(0)
    assert len(job.lines("saved$")) == 2
    assert "FAILED" not in said and not job.journal("restart", "monitor_replaced")


@pytest.mark.check
def test_ranks_without_a_handler_have_not_failed(jobs: Jobs) -> None:
    """One of them is stopped, and gets the signal too."""
    job = jobs("say('pid', os.getpid())\nwait()", "--max-restarts", "3", "--ft-preempted-exit-code", "75")
    pids = job.hear(r"pid (\d+)", ranks=[0, 1])
    os.kill(int(pids[0]), signal.SIGSTOP)
    signal_the_step(job, signal.SIGTERM, launcher_last=True)
    said = job.end(75)
    assert "FAILED" not in said and not job.journal("restart")


DIES_ON_THE_WAY = """
import atexit
def at_the_end():
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    kill_me(signal.SIGTERM)
atexit.register(at_the_end)
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(1))
say("pid", os.getpid(), "ready")
while not told:
    time.sleep(0.01)
raise OSError(28, "No space left on device")
"""


def test_a_rank_that_fails_and_is_signalled_while_it_exits_has_failed(jobs: Jobs) -> None:
    """Python takes its handlers back when it ends, so a late signal ends a rank that had an exception to end with."""
    job = jobs(DIES_ON_THE_WAY, "--ft-preempted-exit-code", "75", nproc=1)
    job.hear("pid .* ready", ranks=[0])
    job.spawned.send_signal(signal.SIGTERM)
    assert "OSError" in job.end(1)


LOADS = """
from torch.utils.data import DataLoader
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append("later"))
# Numbers, not tensors: of a worker that is killed while it shares one, torch leaves the memory behind.
for number, _ in enumerate(DataLoader(range(1_000_000), num_workers=2, collate_fn=len)):
    if number == 10:
        say("loads")
"""


@pytest.mark.slow
def test_data_loader_workers_get_the_signal_too(jobs: Jobs) -> None:
    """torch raises in the rank that its workers are gone: that only follows from the signal."""
    # multiprocessing in a worker that is killed leaves its temporary folder.
    env = {"TMPDIR": str(jobs.folder)}
    job = jobs(LOADS, "--ft-preempted-exit-code", "75", nproc=1, env=env)
    job.hear("loads", ranks=[0])
    signal_the_step(job, signal.SIGTERM, launcher_last=True)
    said = job.end(75)
    assert "FAILED" not in said and not job.journal("restart")
    assert "rank 0: its data-loader workers ended by SIGTERM: RuntimeError: DataLoader worker" in said


REDUCES = """
import datetime, torch, torch.distributed as dist
if RANK == 1:
    signal.signal(signal.SIGTERM, lambda *_: None)
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=40))  # gloo may miss that its peer is gone
for number in range(1_000_000):
    dist.all_reduce(torch.ones(8))
    if number == 10:
        say("reduces")
"""


@pytest.mark.slow
def test_a_rank_that_loses_one_that_obeyed_has_not_failed(jobs: Jobs) -> None:
    job = jobs(REDUCES, "--ft-preempted-exit-code", "75", env={"OMP_NUM_THREADS": "1"})
    job.hear("reduces", ranks=[0, 1])
    job.spawned.send_signal(signal.SIGTERM)
    said = job.end(75)
    assert "FAILED" not in said
    assert "rank 1: a rank that it was connected to ended by SIGTERM: RuntimeError: " in said


def test_a_suspended_job_is_given_the_time_back(jobs: Jobs) -> None:
    """A frozen cgroup, a paused machine: what its ranks could not use does not count."""
    text = SAVES.replace("time.sleep({seconds})", "[time.sleep(0.1) for _ in range(10)]")
    job = jobs(text.format(then="sys.exit(0)"), "--term-timeout", "6")
    job.hear("pid .* ready", ranks=[0, 1])
    job.spawned.send_signal(signal.SIGTERM)
    job.hear("saves", ranks=[0, 1])
    signal_the_step(job, signal.SIGSTOP, launcher_last=True)
    time.sleep(7)  # longer than the term timeout
    signal_the_step(job, signal.SIGCONT)
    job.end(0)
    assert len(job.lines("saved$")) == 2


FAILS_WHILE_OTHERS_SAVE = """
client = connect()
def stop(number, frame):
    if RANK == 1:
        sys.exit(3)
    with client.section("checkpointing"):
        say("saves")
        time.sleep(2)
    say("saved")
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
say("ready")
while True:
    time.sleep(0.01)
"""


def test_rank_that_fails_while_others_save_costs_no_checkpoint(jobs: Jobs) -> None:
    job = jobs(FAILS_WHILE_OTHERS_SAVE, "--ft-preempted-exit-code", "75")
    job.hear("ready", ranks=[0, 1])
    job.spawned.send_signal(signal.SIGTERM)
    assert "FAILED: rank 1" in job.end(3)
    assert job.lines("^rank 0 cycle 0 saved$")
    meanings = {each["rank"]: each["meaning"] for each in job.journal("rank_exit")}
    assert meanings == {0: "stopped by the launcher", 1: "exit code 3"}


def test_other_preemption_signals_are_passed_on_by_name(jobs: Jobs) -> None:
    text = """
def stop(number, frame):
    say("got", signal.Signals(number).name)
    sys.exit(0)
signal.signal(signal.SIGHUP, stop)
say("ready")
wait()
"""
    job = jobs(text, nproc=1)
    job.hear("ready", ranks=[0])
    status = Path(f"/proc/{job.pid}/status").read_text()
    caught = int(status.partition("SigCgt:\t")[2].split()[0], 16)
    assert all(caught >> (number - 1) & 1 for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT))
    job.spawned.send_signal(signal.SIGHUP)
    job.end(0)
    assert [each["signal"] for each in job.journal("preemption")] == ["SIGHUP"]
    assert job.lines("got SIGHUP")


# -- Ctrl-C, and signals that only pass through --------------------------------------------------------------


def test_ctrl_c_lets_ranks_save_and_is_130(jobs: Jobs) -> None:
    """As a terminal sends it: to the group. The ranks have sessions of their own."""
    text = SAVES.replace("signal.SIGTERM", "signal.SIGINT").format(seconds=0.5, then="sys.exit(0)")
    job = jobs(text, "--max-restarts", "3", "--ft-preempted-exit-code", "75")
    job.hear("pid .* ready", ranks=[0, 1])
    job.spawned.send_signal_to_group(signal.SIGINT)
    said = job.end(130)
    assert len(job.lines("saved$")) == 2
    assert "Received Signals.SIGINT death signal" in said and "FAILED" not in said


@pytest.mark.parametrize(("first", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 137)])
def test_ctrl_c_ends_at_once_the_ranks_that_save(jobs: Jobs, first: signal.Signals, code: int) -> None:
    """The launcher reports ranks that do not end at the first signal."""
    text = SAVES.replace("signal.SIGTERM", f"signal.{first.name}").format(seconds=600, then="sys.exit(0)")
    job = jobs(text, "--term-timeout", "600")
    pids = job.hear(r"pid (\d+) ready", ranks=[0, 1])
    job.spawned.send_signal(first)
    job.hear("saves", ranks=[0, 1])
    how = r"Ctrl-C( \(SIGINT to this launcher\)| again) ends them at once, or they are killed in 5\d\d"
    job.wait_for(rf"still there after {first.name}: rank 0, 1\. {how}")
    job.spawned.send_signal(signal.SIGINT)
    job.end(code)
    assert not any(alive(int(pid)) for pid in pids.values())


def test_sigusr_is_passed_on_and_ends_the_job_when_ranks_die_of_it(jobs: Jobs) -> None:
    """Slurm's `--signal=USR1@60` and a script without a handler: preempted, not failed."""
    text = """
for number in (signal.SIGUSR1, signal.SIGUSR2):
    signal.signal(number, lambda number, frame: say("got", signal.Signals(number).name))
say("ready")
until("enough")
signal.signal(signal.SIGUSR1, signal.SIG_DFL)
say("has no handler")
wait()
"""
    job = jobs(text, "--max-restarts", "3", "--ft-preempted-exit-code", "75")
    job.hear("ready", ranks=[0, 1])
    for name in ("SIGUSR1", "SIGUSR2", "SIGUSR1"):
        before = len(job.lines(f"got {name}"))
        job.spawned.send_signal(getattr(signal, name))
        job.spawned.wait_for(lambda name=name, before=before: len(job.lines(f"got {name}")) == before + 2)
    assert job.spawned.returncode is None and not job.journal("preemption")
    job.tell("enough")
    job.hear("has no handler", ranks=[0, 1])
    job.spawned.send_signal(signal.SIGUSR1)
    assert "FAILED" not in job.end(75)
    assert [each["signal"] for each in job.journal("preemption")] == ["SIGUSR1"]


def test_nohup_is_respected(jobs: Jobs) -> None:
    """A launcher started by nohup outlives its terminal, and so do its ranks."""
    text = "say('ready')\nuntil('enough')"
    job = jobs(text, under=["nohup"])
    job.hear("ready", ranks=[0, 1])
    job.spawned.send_signal(signal.SIGHUP)
    job.tell("enough")
    job.end(0)
    assert not job.journal("preemption")


def test_rank_that_ignores_sigterm_is_killed_after_the_term_timeout(jobs: Jobs) -> None:
    text = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nsay('pid', os.getpid())\nwait()"
    job = jobs(text, "--term-timeout", "1.5")
    pids = job.hear(r"pid (\d+)", ranks=[0, 1])
    job.spawned.send_signal(signal.SIGTERM)
    job.end(137)  # it had to be killed, so it has failed
    assert [each["signal"] for each in job.journal("rank_exit")] == ["SIGKILL"] * 2
    sent, last = job.journal("signal_sent")[0], job.journal("rank_exit")[-1]
    killed = {str(each["pid"]) for each in job.journal("signal_sent") if each["signal"] == "SIGKILL"}
    assert killed == set(pids.values())
    assert last["mono"] - sent["mono"] >= 1.49  # the signal is recorded after it is sent
    assert not any(alive(int(pid)) for pid in pids.values())
