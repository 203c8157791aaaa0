"""examples/plain_loop.py and docs/plain-loops-sharded.md's, through a kill, half a checkpoint and a preemption."""

from __future__ import annotations

import importlib.util
import re
import signal
import sys
from pathlib import Path

import pytest
import torch

from tests.pages import DOCS, block
from tests.processes import Spawned, Spawner

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "plain_loop.py"


def start(
    spawn: Spawner,
    program: Path,
    *arguments: str,
    fault: str = "",
    options: tuple[str, ...] = (),
    **environment: str,
) -> Spawned:
    launcher = [sys.executable, "-m", "holdfast.fault_tolerance.launcher", "--nproc-per-node=2"]
    run_dir = (
        program.parent / "run" if program != EXAMPLE else Path(environment["FAULT_TOL_FINISHED_FLAG_FILE"])
    )
    restarts = ["--max-restarts=3", f"--ft-run-dir={run_dir.with_suffix('.run')}"]
    return spawn(
        [*launcher, *restarts, *options, str(program), *arguments],
        env={"OMP_NUM_THREADS": "1", "HOLDFAST_FAULT": fault, **environment},
    )


@pytest.mark.slow
def test_ddp_through_a_kill_a_hang_and_a_preemption(spawn: Spawner, tmp_path: Path) -> None:
    """Not one step is trained twice or lost by the preemption, and the weights are those of an undisturbed run."""
    flag = tmp_path / "finished"
    environment = {"FAULT_TOL_FINISHED_FLAG_FILE": str(flag)}
    undisturbed = start(spawn, EXAMPLE, f"--dir={tmp_path / 'a'}", "--step-seconds=0", **environment)
    assert undisturbed.wait(120) == 0 and flag.exists(), undisturbed.output()
    flag.unlink()

    arguments = [f"--dir={tmp_path / 'b'}", "--step-seconds=0.2"]
    faults, limit = "kill@step=12,rank=1;hang@step=17,rank=1,cycle=1", "--ft-rank-heartbeat-timeout=4"
    job = start(spawn, EXAMPLE, *arguments, fault=faults, options=(limit,), **environment)
    job.wait_for(r"restarting all 2 local ranks \(restart 2 of 3\)", 60)
    job.wait_for(lambda: (tmp_path / "b" / "step-00000020.pt").exists(), 60)
    assert job.stop(signal.SIGTERM) == 0, job.output()
    assert len(re.findall(r"HANG: rank \d", job.err())) == 1 and "Rank 1" in job.err()
    places = set(re.findall(r"rank \d stops after step (\d+)", job.out()))
    assert len(places) == 1 and job.out().count("stops after step") == 2
    (place,) = map(int, places)
    assert 20 <= place < 40 and (tmp_path / "b" / f"step-{place:08d}.pt").exists() and not flag.exists()

    arguments[1] = "--step-seconds=0"
    again = start(spawn, EXAMPLE, *arguments, **environment)
    assert again.wait(120) == 0 and flag.exists(), again.output()
    expected, got = (torch.load(tmp_path / d / "step-00000040.pt") for d in "ab")
    assert expected["step"] == got["step"] == 40
    for name, value in expected["model"].items():
        assert torch.equal(value, got["model"][name]), name


STOPS = """
import signal, time
import holdfast

with holdfast.Loop() as loop:
    print("trains", flush=True)
    step = 0
    while not loop.step(step):
        time.sleep(0.01)
        step += 1
    print("saves", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_ranks_save_for_each_signal_of_a_preemption(
    spawn: Spawner, tmp_path: Path, number: signal.Signals
) -> None:
    """The launcher forwards both."""
    program = tmp_path / "train.py"
    program.write_text(STOPS)
    job = start(spawn, program)
    job.wait_for(lambda: job.out().count("trains") == 2)
    assert job.stop(number) == 0, job.output()
    assert job.out().count("saves") == 2, job.output()


def test_sighup_stays_ignored_under_nohup(spawn: Spawner) -> None:
    ends = STOPS.replace(
        'print("trains", flush=True)',
        "signal.raise_signal(signal.SIGHUP)\n    print(loop.step(0), flush=True)",
    )
    process = spawn.python("import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)" + ends)
    process.wait_for("False")
    assert process.stop(signal.SIGTERM) == 0 and "saves" in process.out()


STRAGGLING = """
import os, time
import holdfast
import torch.distributed as dist

dist.init_process_group("gloo")

def batches():
    for number in range(400):
        time.sleep(0.02 if dist.get_rank() == 1 else 0.005)
        yield number

with holdfast.Loop(straggler={"report_time_interval": 1}) as loop:
    for number in loop(batches()):
        dist.barrier()
        loop.step(number + 1)
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_a_straggler_is_logged(spawn: Spawner, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(STRAGGLING)
    job = start(spawn, program, options=("--nproc-per-node=3",))
    assert job.wait(60) == 0, job.output()
    assert "STRAGGLER: rank 1 (" in job.err() and "section data_loading" in job.err()


@pytest.mark.slow
def test_fsdp_with_half_a_checkpoint_on_the_way(spawn: Spawner, tmp_path: Path) -> None:
    program = tmp_path / "train_fsdp.py"
    program.write_text(block("plain-loops-sharded.md", "train_fsdp.py"))
    results = []
    for name, fault in {"undisturbed": "", "disturbed": "half_save@step=15,rank=1,size=3000"}.items():
        job = start(spawn, program, str(tmp_path / name), fault=fault)
        assert job.wait(120) == 0, job.output()
        results.append(re.findall(r"^step 30, weights (\S+)$", job.out(), re.MULTILINE))
    assert "killed by SIGXFSZ" in job.err()
    assert re.search(
        r"checkpoint skipped, resuming from step-00000010: \S+/step-00000015 has no .metadata", job.err()
    )
    assert len(results[0]) == 1 and results[0] == results[1]


@pytest.mark.variant
@pytest.mark.slow
def test_accelerate_with_half_a_checkpoint_on_the_way(spawn: Spawner, tmp_path: Path) -> None:
    if importlib.util.find_spec("accelerate") is None:
        pytest.skip("accelerate is not installed")
    program = tmp_path / "train_accelerate.py"
    program.write_text(block("plain-loops-sharded.md", "train_accelerate.py"))
    job = start(spawn, program, str(tmp_path / "saved"), fault="half_save@step=15,rank=0,size=1000")
    assert job.wait(150) == 0, job.output()
    assert "step-00000015.partial was not finished, according to its name" in job.err()
    assert "step 20, from step-00000010" in job.out()
    names = [f"step-{step:08d}" for step in (5, 10, 15, 20)]
    assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == names


def test_the_loop_on_the_page_is_one() -> None:
    """It runs with a training of nothing."""
    page = (DOCS / "plain-loops.md").read_text()
    snippet = page[page.index("```python\n") + 10 :].partition("```")[0]
    trained: list[int] = []
    names = {"load": lambda path: 0, "save": lambda step: None, "train": trained.append, "loader": range(5)}
    exec(compile(snippet, "plain-loops.md", "exec"), names)
    assert trained == [0, 1, 2, 3, 4] and not names["loop"].stopped  # type: ignore[attr-defined]
