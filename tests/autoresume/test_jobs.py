"""Chains of real ft_launcher jobs: preempted, failed and killed, they end with the weights of an undisturbed run."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
from pathlib import Path

import pytest
import torch

from tests.autoresume.conftest import HOLDFAST, Chains, begun
from tests.jobs import LAUNCHER
from tests.pages import block
from tests.processes import Spawner, alive, wait_until

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parent / "programs" / "finishing.py"
ONE_RANK = [*LAUNCHER, "--nproc-per-node=1", "--max-restarts=0", "--ft-warm-start=off"]
STEPS = 12


def job(directory: Path, *options: str) -> list[str]:
    size = ["--dir", str(directory), "--steps", str(STEPS), "--batch-size", "4"]
    # An attempt of a few seconds tells its steps only if the monitor looks in time.
    often = "--ft-workload-check-interval=0.2"
    return [*LAUNCHER, "--nproc-per-node=2", often, *options, str(PROGRAM), *size]


def result(directory: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((directory / "result.json").read_text())
    assert found["steps"] == STEPS
    return found


def test_a_disturbed_chain_ends_with_the_same_weights(chains: Chains, spawn: Spawner, tmp_path: Path) -> None:
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    env = {"OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}
    quiet = spawn(job(undisturbed, "--ft-run-dir", str(tmp_path / "quiet")), env=env)
    faults = "sleep@step=7,for=12 kill@step=10,rank=1"
    run = chains.start(*job(disturbed), env={**env, "FAULTS": faults})

    # Attempt 1 is preempted: a scheduler signals the launcher, while a rank sleeps in step 7.
    launcher = begun(run, 1)
    run.wait_for("sleep@step=7.* happens now", 120)
    os.kill(launcher, signal.SIGTERM)
    run.wait_for("attempt 1 was preempted after .*: exit code 75 after SIGTERM; attempt 2 follows", 120)
    # Attempt 2: a rank dies. Attempt 3 is not disturbed.
    assert run.wait(240) == 0, run.output()
    assert quiet.wait(120) == 0, quiet.output()

    assert chains.endings == ["preempted", "failed", "finished"]
    first, second, third = chains.ledger.attempts
    assert (second.node, second.rank) == (socket.gethostname(), 1)
    assert "killed by SIGKILL" in second.why
    assert first.resumed_step == 1
    assert third.resumed_step is not None and third.resumed_step > 5
    assert first.witnessed
    assert result(disturbed) == result(undisturbed)
    assert not alive(launcher)


SAME_FAILURE = """
from holdfast.fault_tolerance import RankMonitorClient
client = RankMonitorClient()
client.init_workload_monitoring()
for step in range(24):
    client.heartbeat(step)
raise IndexError("index 7 is out of range")
"""


def test_the_same_failure_is_counted_over_attempts(chains: Chains, tmp_path: Path) -> None:
    program = tmp_path / "bug.py"
    program.write_text(SAME_FAILURE)
    run = chains.start(*ONE_RANK, str(program), options=("--max-failures=9",))
    assert run.wait(120) == 1
    assert chains.endings == ["failed"] * 3
    assert [each.same_failures for each in chains.ledger.attempts] == [1, 1, 1]
    why = "the same failure 3 times in a row: IndexError: index # is out of range after"
    assert f"gave up: {why}" in run.err()


BAD_CHECKPOINT = """
import os, sys, torch
from holdfast import Loop

with Loop() as loop:
    loop.last_checkpoint(sys.argv[1])
    if os.environ["HOLDFAST_ATTEMPT"] != "1":
        raise RuntimeError("a weight is not a number")
    for step in (1, 2):
        loop.step(step)
        torch.save({"step": step}, f"{sys.argv[1]}/step{step}.pt")
raise SystemExit(3)
"""


def test_a_checkpoint_after_which_two_attempts_fail_is_named(chains: Chains, tmp_path: Path) -> None:
    program = tmp_path / "bad_checkpoint.py"
    program.write_text(BAD_CHECKPOINT)
    (tmp_path / "saved").mkdir()
    torch.save({"step": 0}, tmp_path / "saved" / "step0.pt")
    words = [*ONE_RANK, "--ft-same-failure-limit=0", str(program), str(tmp_path / "saved")]
    run = chains.start(*words, options=("--max-failures=3",))
    assert run.wait(120) == 1
    first, second, third = chains.ledger.attempts
    names = [Path(each.checkpoint).name for each in (first, second, third)]
    assert names == ["step0.pt", "step2.pt", "step2.pt"]
    assert (first.took_steps, second.took_steps, third.took_steps) == (True, False, False)
    assert (
        f"The checkpoint is suspect: 2 failures before the first step after {tmp_path}/saved/step2.pt was loaded; "
        f"{tmp_path}/saved/step0.pt was trained from. Choose another one by hand" in run.err()
    )
    assert (tmp_path / "saved" / "step2.pt").exists()


def test_a_killed_launcher_and_a_killed_keeper_leave_nothing(chains: Chains, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, signal\n"
        "rank, attempt = os.environ['RANK'], int(os.environ['HOLDFAST_ATTEMPT'])\n"
        "os.write(1, f'rank {rank} of attempt {attempt} is {os.getpid()}\\n'.encode())\n"
        "if attempt < 3: signal.pause()\n"
        "open(os.environ['FAULT_TOL_FINISHED_FLAG_FILE'], 'w').close()\n"
    )
    command = [*LAUNCHER, "--nproc-per-node=2", str(script)]

    def ranks(attempt: int) -> list[int]:
        found = [run.wait_for(rf"^rank {rank} of attempt {attempt} is (\d+)$") for rank in (0, 1)]
        return [int(each[1]) for each in found if isinstance(each, re.Match)]

    run = chains.start(*command)
    launcher, first = begun(run, 1), ranks(1)
    os.kill(launcher, signal.SIGKILL)
    second = ranks(2)
    assert not any(alive(pid) for pid in first)
    run.process.kill()  # the kernel signals its launcher, which signals the ranks
    run.wait()
    wait_until(lambda: not any(alive(pid) for pid in second), what="the ranks have ended")
    run = chains.start(*command)
    assert run.wait() == 0, run.output()
    assert [(str(attempt.kind), attempt.why) for attempt in chains.ledger.attempts] == [
        ("failed", "ended by SIGKILL (exit code 137)"),
        ("lost", "its end was not observed"),
        ("finished", "the finished flag is there"),
    ]


# -- docs/auto-resume.md does what it says: its program is run as it stands there


def test_the_page_s_program(spawn: Spawner, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(block("auto-resume.md", "train.py"))
    tool = [*HOLDFAST, "autoresume", "--run-dir", "run", "--backoff", "0", "--"]
    # The launcher that belongs to this source and this interpreter.
    (launcher := tmp_path / "ft_launcher").write_text(
        f'#!/bin/sh\nexec {sys.executable} -m holdfast.fault_tolerance.launcher "$@"\n'
    )
    launcher.chmod(0o755)
    words = [*tool, "ft_launcher", "--nproc-per-node=1", "train.py"]
    run = spawn(words, cwd=tmp_path, env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert run.wait(120) == 0, run.output()
    assert re.findall("resumes from step .*", run.out()) == ["resumes from step 0", "resumes from step 20"]
    assert re.search(
        r"attempt 1 failed after .*: rank 0 \(node .*\): RuntimeError: a loose cable \(exit code 1\)\. "
        r"Failure 1 of 3 in a row; attempt 2 follows now",
        run.err(),
    )
