"""docs/megatron.md: its program under the launcher, two ranks, jobs in a row; and one with a simulated fault."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from tests.pages import DOCS, block
from tests.processes import Spawned, Spawner

SECTIONS = [
    "--ft-param-rank_section_timeouts=setup:600,step:180,checkpointing:420",
    "--ft-param-rank_out_of_section_timeout=300",
]


def run(spawn: Spawner, folder: Path, until: int, *options: str, **environment: str) -> Spawned:
    launcher = [sys.executable, "-m", "holdfast.fault_tolerance.launcher", "--nproc-per-node=2"]
    options = ("--max-restarts=20", f"--ft-run-dir={folder / 'run'}", *options)
    job = spawn(
        [*launcher, *options, "train.py", str(until)],
        cwd=folder,
        env={
            "OMP_NUM_THREADS": "1",
            "HOLDFAST_LEARNED_FLOOR": "2",
            "HOLDFAST_LEARNED_INITIAL_FLOOR": "60",
            **environment,
        },
    )
    assert job.wait(150) == 0, job.output()[-5000:]
    return job


@pytest.mark.variant
@pytest.mark.slow
def test_limits_are_learned_over_two_jobs_and_find_a_hang_in_the_third(
    spawn: Spawner, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(block("megatron.md", "train.py"))
    state = tmp_path / "checkpoints" / "ft_state.json"

    def learned() -> dict[str, object]:
        return dict(json.loads(state.read_text())["current_timeouts"]["section"])

    run(spawn, tmp_path, 20, *SECTIONS)
    assert learned()["calculated_sections"] == ["checkpointing", "step"]
    assert not learned()["is_out_of_section_calculated"]
    second = run(spawn, tmp_path, 40, *SECTIONS)
    assert sorted(re.findall(r"rank (\d) resumes from step (\d+)", second.out())) == [
        ("0", "20"),
        ("1", "20"),
    ]
    limits = learned()
    assert limits["calculated_sections"] == ["checkpointing", "setup", "step"]
    assert limits["is_out_of_section_calculated"] and limits["out_of_section"]
    third = run(spawn, tmp_path, 90, FAULT_AFTER="1.5")
    assert "Simulating fault: rank_hung; rank to fail: 1" in third.err()
    found = re.search(
        r"HANG: rank \d .*(?:Section '(\w+)' did|No section was).* Timeout ([\d.]+) s", third.err()
    )
    assert found, third.err()[-3000:]
    limit = limits["section"][found[1]] if found[1] else limits["out_of_section"]  # type: ignore[index]
    assert float(found[2]) == pytest.approx(limit, abs=0.06) and float(found[2]) < 100
    assert "resumes from step" in third.out()
    assert len(set(re.findall(r"result (\S+)", third.out()))) == 1
    assert sorted(path.name for path in state.parent.iterdir() if path.suffix != ".pt") == ["ft_state.json"]


def test_the_page_names_every_function() -> None:
    from holdfast.integrations import megatron

    page = (DOCS / "megatron.md").read_text()
    public = [name for name in megatron.__all__ if name[0] not in "_F"]
    assert len(public) == 11 and [name for name in public if f"{name}" not in page] == []


@pytest.mark.slow
def test_after_a_failure_nobody_waits_for_a_rank_that_stands_still(spawn: Spawner, shm: Path) -> None:
    program = Path(__file__).with_name("aborting.py")
    first, _ = (spawn.python(program, str(rank), str(shm)) for rank in range(2))
    assert first.wait() == 0, first.output()
    found = re.search(r"left after ([\d.]+) s, None", first.out())
    assert found and float(found[1]) < 5, first.output()
    assert not (shm / "save" / "ft_state.json").exists()
