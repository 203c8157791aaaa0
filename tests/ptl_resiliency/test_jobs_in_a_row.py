"""Jobs in a row, as an auto-resume loop starts them: two ranks under `ft_launcher`, both callbacks."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.processes import Spawned, Spawner

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).resolve().parent / "programs" / "job_in_a_row.py"


@pytest.mark.slow
def test_limits_are_learned_in_the_second_job_and_used_in_the_third(spawn: Spawner, tmp_path: Path) -> None:
    """And the flag comes with the last. Rank 1 does not see the folder of the state: it has the limits all the same."""
    flag, state = tmp_path / "flag", tmp_path / "state"
    ended = []
    for number in range(1, 6):
        ended.append(run(spawn, tmp_path, number))
        learned = {
            path.name: json.loads(path.read_text())["current_timeouts"] for path in state.glob("*.json")
        }
        if number == 1:
            assert list(learned) == ["_ft_state_.json"]
            assert sorted(learned["_ft_state_.json"]["section"]["calculated_sections"]) == [
                "checkpointing",
                "step",
            ]
        if number == 2:
            at_the_end_of_the_second = learned
            assert learned["_ft_state_.json"]["section"]["is_out_of_section_calculated"]
        if flag.exists():
            break
    first, second, third = ended
    assert [rank["first"] for rank in told(first)] == [0, 0]
    assert [rank["limits"] for rank in told(second)] == [[3600.0, 2700.0]] * 2
    assert (
        "Updating FT timeouts...\n" not in first.err()
        and second.err().count("Updating FT timeouts...\n") == 1
    )
    assert (
        "Updating FT timeouts for: ['setup', 'step', 'checkpointing'] update out-of-section: True"
        in second.err()
    )
    heartbeat = at_the_end_of_the_second["_ft_state.json"]["heartbeat"]
    section = at_the_end_of_the_second["_ft_state_.json"]["section"]
    for rank in told(third):
        assert rank["limits"] == [heartbeat["initial"], heartbeat["subsequent"]]
        assert rank["sections"] == section["section"] and rank["out"] == section["out_of_section"]
        assert rank["first"] == 40
    assert "[FaultToleranceCallback@rank0] Fault tolerance timeouts loaded: heartbeat timeouts" in third.err()
    assert "Training is complete (max_steps=45 reached), so creating finished flag file." in third.err()
    assert not (tmp_path / "another node").exists()
    assert not [path for path in (tmp_path / "saved").iterdir() if path.suffix != ".ckpt"]


def run(spawn: Spawner, folder: Path, number: int) -> Spawned:
    launcher = [sys.executable, "-m", "holdfast.fault_tolerance.launcher", "--nproc-per-node=2"]
    job = spawn(
        [
            *launcher,
            f"--ft-run-dir={folder / f'run{number}'}",
            "--ft-rank-section-timeouts=setup:600,step:180,checkpointing:420",
            "--ft-rank-heartbeat-timeout=2700",
            PROGRAM,
            folder,
        ],
        env={
            "FAULT_TOL_FINISHED_FLAG_FILE": str(folder / "flag"),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        },
    )
    assert job.wait() == 0, job.output()[-6000:]
    return job


def told(job: Spawned) -> list[dict[str, Any]]:
    """What each rank said."""
    lines = [json.loads(line) for line in job.out().splitlines() if line.startswith('{"rank"')]
    assert sorted(line["rank"] for line in lines) == [0, 1]
    return lines
