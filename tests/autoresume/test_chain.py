"""Chains of real processes: what is started again, what is not, and what is left behind."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.autoresume import ledger as records
from holdfast.autoresume import run_dir
from holdfast.autoresume.ledger import Attempt
from holdfast.autoresume.run_dir import LEDGER, LOCK, LedgerFile
from holdfast.cli.main import main
from tests.autoresume.conftest import Chains, begun
from tests.processes import Spawner, alive, wait_until

FINISH = "touch $FAULT_TOL_FINISHED_FLAG_FILE"
READY = "echo ready; while :; do sleep 0.05; done"


def test_it_goes_on_until_the_flag_is_there(chains: Chains) -> None:
    run = chains.sh(
        "case $HOLDFAST_ATTEMPT in 1) exit 3;; 2) exit 75;; 3) exit 0;; 4) kill -9 $$;; "
        f"*) {FINISH}; esac; echo this is attempt $HOLDFAST_ATTEMPT"
    )
    assert run.wait() == 0, run.output()
    assert chains.endings == ["failed", "preempted", "ended", "failed", "finished"]
    assert [attempt.exit_code for attempt in chains.ledger.attempts] == [3, 75, 0, -9, 0]
    assert run.out() == "this is attempt 5\n"
    assert "attempt 1 failed after" in run.err()
    assert "exit code 3. Failure 1 of 3 in a row; attempt 2 follows now" in run.err()
    again = chains.sh("echo started")
    assert (again.wait(), again.out()) == (0, "")
    assert f"finished already: {chains.flag} is there. To train on, remove it" in again.err()
    # Without the flag it is to train on.
    chains.flag.unlink()
    assert chains.sh(FINISH).wait() == 0
    assert [chain.state for chain in chains.ledger.chains] == ["finished", "finished"]
    assert [attempt.number for attempt in chains.ledger.attempts] == [1, 2, 3, 4, 5, 6]


def test_a_flag_of_another_run_is_removed(chains: Chains, tmp_path: Path) -> None:
    stale = tmp_path / "mine.flag"
    stale.touch()
    env = {"FAULT_TOL_FINISHED_FLAG_FILE": str(stale)}
    run = chains.sh(f"echo trains; {FINISH}", env=env)
    assert run.wait() == 0
    assert run.out() == "trains\n"
    assert f"removed {stale}: it was there before the first attempt" in run.err()
    assert stale.exists()
    assert not chains.flag.exists()
    # It is this run's now.
    assert chains.sh("exit 9", env=env).wait() == 0
    assert chains.endings == ["finished"]


def test_giving_up_names_the_cause_and_a_new_start_has_a_new_budget(chains: Chains) -> None:
    run = chains.sh("exit 7", "--max-failures", "2")
    assert run.wait() == 1
    assert "gave up after 2 failures in a row without progress, the last: attempt 2 failed" in run.err()
    assert "exit code 7" in run.err().splitlines()[-1]
    assert chains.sh(f"[ $HOLDFAST_ATTEMPT = 4 ] && {FINISH}", "--max-failures", "2").wait() == 0
    assert [chain.state for chain in chains.ledger.chains] == ["gave up", "finished"]


def test_a_request_for_the_end_is_final(chains: Chains) -> None:
    run = chains.sh(f"{FINISH}; exit 93")
    assert run.wait() == 93
    assert chains.endings == ["shut down"]
    again = chains.sh("exit 9")
    assert again.wait() == 93
    assert "nothing is started: attempt 1 shut the job down" in again.err()
    # Also after a chain that came to no attempt.
    with (chains.run_dir / LEDGER).open("a") as file:
        file.write('{"t": 9, "kind": "chain", "flag": "elsewhere"}\n')
    assert chains.sh("exit 9").wait() == 93


def test_exit_code_2_beside_an_unreadable_journal_is_a_failure(chains: Chains, tmp_path: Path) -> None:
    (launcher := tmp_path / "ft_launcher").write_text("#!/bin/sh\n[ -z $1 ] || mkdir $1; exit 2\n")
    launcher.chmod(0o755)
    assert chains.start(str(launcher), options=("--max-failures", "1")).wait() == 1
    unreadable = str(chains.run_dir / "journal-x.jsonl")
    assert chains.start(str(launcher), unreadable, options=("--max-failures", "1")).wait() == 1
    assert chains.endings == ["refused", "failed"]


STUCK = """
import os, signal
from holdfast.autoresume.command import Command, Signals

class Stuck(Command):  # as in the kernel's state D, where nothing ends it
    def poll(self):
        os.kill(os.getpid(), signal.SIGINT)

signals = Signals()
with signals.caught():
    print(Stuck(["sleep", "60"], os.environ, signals, 1).watch())
"""


def test_a_command_that_cannot_be_killed_is_not_waited_for(spawn: Spawner) -> None:
    run = spawn([sys.executable, "-c", STUCK])
    assert run.wait() == 0, run.output()
    assert run.out() == "-9\n"
    assert "SIGINT again: attempt 1 is killed" in run.err()


def test_signals_wait_before_the_first_thread(chains: Chains, monkeypatch: pytest.MonkeyPatch) -> None:
    masks = []
    take = run_dir.take_lock

    def looked_at(folder: str) -> Any:
        masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
        return take(folder)

    chains.run_dir.mkdir(mode=0o700)
    monkeypatch.setattr(run_dir, "take_lock", looked_at)
    with take(str(chains.run_dir)):  # so that nothing is started in this process
        assert main(["autoresume", "--run-dir", str(chains.run_dir), "--", "true"]) == 2
    assert {signal.SIGINT, signal.SIGTERM, signal.SIGCHLD} <= masks[0]


def test_max_jobs_and_failures_of_a_start_that_carries_on(chains: Chains) -> None:
    first = chains.sh("[ $HOLDFAST_ATTEMPT = 1 ] && exit 5; exec sleep 60")
    begun(first, 2)
    first.process.kill()
    first.wait()
    # Attempts of the earlier start do not count against the --max-jobs of this one.
    second = chains.sh("exit 75", "--max-jobs", "1", "--max-failures", "1")
    assert second.wait() == 1
    assert "not finished after one attempt, which is the limit (--max-jobs)" in second.err()
    assert chains.endings == ["failed", "lost", "preempted"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_cancelling_lets_the_attempt_save_and_ends_the_chain(chains: Chains, number: int, code: int) -> None:
    name = signal.Signals(number).name
    run = chains.sh(f"trap 'echo saved on {name}; exit 0' {name.removeprefix('SIG')}; {READY}")
    run.wait_for("^ready$")
    run.send_signal(number)
    assert run.wait() == code
    assert run.out().splitlines() == ["ready", f"saved on {name}"]  # passed on once
    assert chains.endings == ["cancelled"]
    assert f"{name}: passed on to attempt 1" in run.err()
    assert "cancelled by the user" in run.err().splitlines()[-1]


def test_a_second_ctrl_c_kills_and_repeated_sigterm_does_not(chains: Chains) -> None:
    run = chains.sh(f"trap 'echo told' INT TERM; {READY}")
    pid = begun(run, 1)
    run.wait_for("^ready$")
    run.send_signal(signal.SIGTERM)
    run.wait_for("^told$")
    run.send_signal(signal.SIGTERM)
    run.send_signal(signal.SIGINT)
    assert run.wait() == 143
    assert run.out().splitlines() == ["ready", "told"]
    assert "SIGINT again: attempt 1 is killed" in run.err()
    assert not alive(pid)


def test_cancelling_between_two_attempts(chains: Chains) -> None:
    run = chains.start("false", options=("--backoff", "60"))
    run.wait_for("attempt 2 follows in 1 min 00 s")
    assert run.stop(signal.SIGINT) == 130
    assert chains.ledger.chains[0].state == "cancelled"
    assert chains.endings == ["failed"]


def test_an_attempt_that_finishes_when_cancelled_is_finished(chains: Chains) -> None:
    """A signal for the training's own ends is passed on, and cancels nothing."""
    run = chains.sh(f"trap 'echo told' USR1; trap '{FINISH}; exit 0' TERM; {READY}")
    run.wait_for("^ready$")
    run.send_signal(signal.SIGUSR1)
    run.wait_for("^told$")
    assert run.stop(signal.SIGTERM) == 0
    assert chains.endings == ["finished"]


def held_until_told(held: Path, go: Path) -> str:
    """A shell function that holds something until it may let go of it."""
    return f"release() {{ while [ ! -e {go} ]; do sleep 0.02; done; rm {held}; }}; touch {held}"


def test_the_next_attempt_waits_for_what_the_last_one_left(chains: Chains, tmp_path: Path) -> None:
    # An orphan that still holds what the next attempt needs, and takes a moment to let go of it.
    held, go = tmp_path / "held", tmp_path / "go"
    run = chains.sh(
        f"[ -e {held} ] && exit 4; [ $HOLDFAST_ATTEMPT = 2 ] && {FINISH} && exit 0; "
        f"{held_until_told(held, go)}; release & exit 3"
    )
    run.wait_for("attempt 1 has ended; waiting for what it has left running: process")
    go.touch()
    assert run.wait() == 0, run.output()
    assert chains.endings == ["failed", "finished"]


@pytest.mark.parametrize("script", [False, True], ids=["the command", "what a script has started"])
def test_a_killed_keeper_is_succeeded(chains: Chains, tmp_path: Path, script: bool) -> None:
    held, go = tmp_path / "held", tmp_path / "go"
    command = f"{held_until_told(held, go)}; trap 'release; exit 75' TERM; {READY}"
    # A script dies of the kernel's SIGTERM and leaves no exit code.
    first = chains.sh(f"({command}); true" if script else command)
    first.wait_for("^ready$")
    first.process.kill()
    first.wait()
    # It may still save: no other attempt may begin beside it.
    second = chains.sh(f"[ -e {held} ] && echo beside; {FINISH}")
    second.wait_for("attempt 1, whose keeper was killed, has not ended yet: waiting for process")
    go.touch()
    assert second.wait() == 0, second.output()
    assert second.out() == ""
    assert chains.endings == ["lost", "finished"]
    why = "its end was not observed; the process that ran this chain was killed"
    assert f"attempt 1 ended unseen: {why}" in second.err()
    (chain,) = chains.ledger.chains
    assert chain.state == "finished"


def without_pid(ledger: Path) -> None:
    lines = ledger.read_text().splitlines(keepends=True)
    ledger.write_text("".join(line for line in lines if '"attempt"' not in line or '"pid"' not in line))


@pytest.mark.parametrize("noted", [True, False])
def test_a_program_that_saves_is_told_once(chains: Chains, tmp_path: Path, noted: bool) -> None:
    saved, go = tmp_path / "saved", tmp_path / "go"
    waits = f"while [ ! -e {go} ]; do sleep 0.02; done"
    first = chains.sh(f"trap 'echo once >> {saved}' TERM; echo ready; {waits}; exit 75")
    first.wait_for("^ready$")
    begun(first, 1)
    # While a thread writes to the ledger, the kernel may tell the command at the end of each thread.
    wait_until(lambda: len(os.listdir(f"/proc/{first.process.pid}/task")) == 1, what="the ledger's writing")
    first.process.kill()
    first.wait()
    wait_until(saved.exists, what="the kernel's SIGTERM")
    if not noted:  # as if killed before it could write who it had started
        without_pid(chains.run_dir / LEDGER)
    second = chains.sh("echo beside")
    second.wait_for("the kernel has sent SIGTERM to the command. To end it sooner: kill -9 ")
    assert second.stop(signal.SIGINT) == 130  # it had come to waiting
    assert "waiting for process" in second.err() and ", at most 31 min 00 s" in second.err()
    assert "(Ctrl-C): attempt 1 is not waited for and still runs: process" in second.err()
    go.touch()
    assert chains.sh(FINISH).wait() == 0
    assert saved.read_text() == "once\n"


def test_a_killed_keeper_of_another_machine_is_told_of(chains: Chains, tmp_path: Path) -> None:
    chains.run_dir.mkdir(mode=0o700)
    other = {"host": "elsewhere", "pid": 1, "started": 2}
    file = LedgerFile(str(chains.run_dir))
    file.append(records.chain_begins(1.0, command=["x"], flag="/other.flag", carries_on=False, **other))
    file.append(records.attempt_begins(2.0, Attempt(1, 2.0, mark="m", **other)))
    # What is there now is not the flag that the attempt could have made.
    chains.flag.touch()
    run = chains.sh(f"echo trains; {FINISH}")
    assert run.wait() == 0
    unseen = "what it may have left running there cannot be seen"
    assert f"warning: attempt 1 ran on elsewhere: {unseen}" in run.err()
    assert run.out() == "trains\n"
    assert chains.endings == ["lost", "finished"]


def test_two_chains_of_one_run_directory_refuse_each_other(chains: Chains) -> None:
    first = chains.sh("echo ready; sleep 60")
    first.wait_for("^ready$")
    second = chains.sh("echo beside")
    assert (second.wait(), second.out()) == (2, "")
    assert second.err() == (
        f"holdfast: error: another holdfast autoresume (pid {first.pid} on {os.uname().nodename}) is at work in "
        f"{chains.run_dir}. Look at it: holdfast autoresume --status {chains.run_dir}\n"
    )
    # Without the file of the lock the ledger has its keeper.
    (chains.run_dir / LOCK).unlink()
    third = chains.sh("echo beside")
    assert (third.wait(), third.out()) == (2, "")
    assert f"(pid {first.pid} on {os.uname().nodename}) lives, though {LOCK} is free" in third.err()
    assert first.stop(signal.SIGTERM) == 143
    assert chains.endings == ["cancelled"]


def test_under_nohup_a_hangup_is_nothing(chains: Chains, spawn: Spawner) -> None:
    chains.run_dir.mkdir(mode=0o700)
    words = f"autoresume --run-dir {chains.run_dir} -- sh -c 'echo ready; sleep 1; {FINISH}'"
    run = spawn(["sh", "-c", f"trap '' HUP; exec {sys.executable} -m holdfast {words}"])
    run.wait_for("^ready$")
    run.send_signal(signal.SIGHUP)
    assert run.wait() == 0


def test_orphans_of_the_attempt_are_collected(chains: Chains) -> None:
    run = chains.sh("for i in 1 2 3; do (sleep 0.1 &) ; done; echo ready; sleep 60")
    run.wait_for("^ready$")
    from psutil import STATUS_ZOMBIE, Process

    # They become children of the keeper, and none of them may stay as a zombie once it has looked.
    wait_until(lambda: len(Process(run.pid).children()) == 1, what="the orphans are collected")
    assert all(child.status() != STATUS_ZOMBIE for child in Process(run.pid).children())
    run.send_signal(signal.SIGTERM)
    assert run.wait() == 143


def test_clean_ends_without_the_flag_do_not_go_on_for_ever(chains: Chains) -> None:
    run = chains.start("true")
    assert run.wait() == 1
    assert chains.endings == ["ended"] * 3
    assert "must create the file that FAULT_TOL_FINISHED_FLAG_FILE names" in run.err()
