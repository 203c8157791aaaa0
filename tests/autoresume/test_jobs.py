"""Chains of real ft_launcher jobs: preempted, failed and killed, they end with the weights of an undisturbed run."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from tests.autoresume.conftest import Chains, begun
from tests.processes import Spawner, alive

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).parent / "programs" / "finishing.py"
LAUNCHER = [sys.executable, "-m", "holdfast.fault_tolerance.launcher"]
STEPS = 12


def job(directory: Path, *options: str) -> list[str]:
    size = ["--dir", str(directory), "--steps", str(STEPS), "--batch-size", "4"]
    return [*LAUNCHER, "--nproc-per-node=2", *options, str(PROGRAM), *size]


def result(directory: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((directory / "result.json").read_text())
    assert found["steps"] == STEPS
    return found


def test_a_chain_ends_with_the_weights_of_an_undisturbed_run(
    chains: Chains, spawn: Spawner, tmp_path: Path
) -> None:
    undisturbed, disturbed = tmp_path / "undisturbed", tmp_path / "disturbed"
    env = {"OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}
    quiet = spawn(job(undisturbed, "--ft-run-dir", str(tmp_path / "quiet")), env=env)
    faults = "sleep@step=7 kill@step=8,rank=1"
    run = chains.start(*job(disturbed), env={**env, "FAULTS": faults})

    # Attempt 1 is preempted: a scheduler tells its launcher, while a rank sleeps in step 7.
    launcher = begun(run, 1)
    run.wait_for("sleep")
    os.kill(launcher, signal.SIGTERM)
    run.wait_for("attempt 1 was preempted after .*: exit code 75 after SIGTERM; attempt 2 follows")
    # Attempt 2: a rank dies. Attempt 3 has nobody to disturb it.
    assert run.wait(240) == 0, run.output()
    assert quiet.wait() == 0, quiet.output()

    assert chains.endings == ["preempted", "failed", "finished"]
    first, second, third = chains.ledger.attempts
    assert (second.node, second.rank) == (socket.gethostname(), 1)
    assert "killed by SIGKILL" in second.why
    assert (first.resumed_step, second.resumed_step, third.resumed_step) == (1, 6, 6)
    assert first.witnessed
    assert result(disturbed) == result(undisturbed)
    assert not alive(launcher)


def test_a_wrong_command_line_of_the_launcher_is_tried_once(chains: Chains) -> None:
    run = chains.start(*LAUNCHER, "--ft-rank-heartbeat-timeout=-5", "train.py")
    assert run.wait() == 1
    assert chains.endings == ["refused"]
    assert "--ft-rank-heartbeat-timeout" in run.err()
    assert "ft_launcher refused its command line" in run.err().splitlines()[-1]


def test_a_killed_launcher_leaves_nothing_to_the_next_attempt(chains: Chains, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import os, signal, sys\n"
        "os.write(1, f\"rank {os.environ['RANK']} of attempt {os.environ['HOLDFAST_ATTEMPT']}\\n\".encode())\n"
        "if os.environ['HOLDFAST_ATTEMPT'] == '1': signal.pause()\n"
        "open(os.environ['FAULT_TOL_FINISHED_FLAG_FILE'], 'w').close()\n"
    )
    run = chains.start(*LAUNCHER, "--nproc-per-node=2", str(script))
    launcher = begun(run, 1)
    for rank in (0, 1):
        run.wait_for(f"^rank {rank} of attempt 1$")
    os.kill(launcher, signal.SIGKILL)
    assert run.wait() == 0, run.output()
    assert [attempt.why for attempt in chains.ledger.attempts] == [
        "ended by SIGKILL (exit code 137)",
        "the finished flag is there",
    ]
