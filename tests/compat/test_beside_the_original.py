"""Programs that use the original and Holdfast in one process, and one program under either."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import environments
from tests.compat.test_distribution import Environment, environment, original, wheels  # noqa: F401
from tests.processes import Spawner

PROGRAMS = Path(__file__).parent / "programs"
LAUNCHER = ("-m", "nvidia_resiliency_ext.fault_tolerance.launcher")
WRAPPER = """
import inspect
from nvidia_resiliency_ext import inprocess

@inprocess.Wrapper()
def train(call_wrapper: inprocess.CallWrapper = None):
    return "trained"

print(callable(train), inprocess.Wrapper.__module__, inspect.signature(train).parameters.keys())
"""

pytestmark = pytest.mark.slow


def run_job(
    spawn: Spawner, folder: Path, launcher: Sequence[str | Path], program: str, ranks: int, *options: str
) -> str:
    """Run a job to its end and return its output."""
    folder.mkdir()
    rendezvous = ("--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0")
    logs = f"--log-dir={folder / 'logs'}"  # otherwise the original leaves a temporary folder
    words = (f"--nproc-per-node={ranks}", "--max-restarts=2", logs, *rendezvous, *options)
    variables = {"PYTHONPATH": None, "OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    job = spawn([*launcher, *words, PROGRAMS / program, folder], env=variables, cwd=folder)
    assert job.wait(120) == 0, job.output()[-3000:]
    return job.out()


def test_local_checkpoints_survive_a_warm_restart(
    spawn: Spawner,
    environment: Environment,  # noqa: F811
    wheels: dict[str, Path],  # noqa: F811
    original: tuple[str, Path],  # noqa: F811
    tmp_path: Path,
) -> None:
    environment.install(original[1], *wheels.values())
    launcher = [environment.python, *LAUNCHER]
    run_dir = tmp_path / "run"
    options = ("--ft-warm-start=on", f"--ft-run-dir={run_dir}")
    out = run_job(spawn, tmp_path / "job", launcher, "local_checkpoint.py", 1, *options)
    cycle, latest, weights, manager, client = json.loads(out.splitlines()[-1])
    assert (cycle, latest, weights) == (1, 3, [21.0] * 4)
    assert manager.startswith("nvidia_resiliency_ext.checkpointing.local") and client.startswith("holdfast")
    (journal,) = run_dir.glob("journal-*.jsonl")
    starts = [record for record in map(json.loads, journal.open()) if record["kind"] == "rank_start"]
    assert [(record["cycle"], record["start"]) for record in starts] == [(0, "warm"), (1, "warm")]
    if original[0] != "0.3.0":  # which needs a package that is not here
        assert environment.run("-c", WRAPPER).startswith("True nvidia_resiliency_ext.inprocess.wrap")


def test_one_program_under_all_three(
    spawn: Spawner,
    environment: Environment,  # noqa: F811
    wheels: dict[str, Path],  # noqa: F811
    original: tuple[str, Path],  # noqa: F811
    tmp_path: Path,
) -> None:
    """The original, both, and Holdfast alone: the same result, and a state file with the same keys."""
    if original[0] != environments.VERSION or not environments.has_nvrx():
        pytest.skip(f"NVRx {environments.VERSION} with its requirements is not installed (make nvrx)")
    launcher = environments.nvrx()
    assert launcher
    results: dict[str, dict[str, Any]] = {}
    environment.install(*wheels.values())
    config = tmp_path / "ft.yaml"
    config.write_text("fault_tolerance:\n  rank_section_timeouts:\n    step: 60\n")
    for name in ("original", "alone", "both"):
        if name == "both":
            environment.install(original[1])
        words = launcher if name == "original" else [environment.python, *LAUNCHER]
        run_job(spawn, tmp_path / name, words, "portable.py", 2, f"--fault-tol-cfg-path={config}")
        results[name] = json.loads((tmp_path / name / "result.json").read_text())
    assert [each["weights"] for each in results.values()] == [[2 * 21 + 6.0] * 3] * 3
    assert {each["first"] for each in results.values()} == {4}
    clients = [each["client"].partition(".")[0] for each in results.values()]
    assert clients == ["nvidia_resiliency_ext", "holdfast", "holdfast"]
    keys = [keys_of(each["state"]) for each in results.values()]
    assert keys[0] == keys[1] == keys[2]


def keys_of(state: Any) -> Any:
    """The same nested dictionary without its values."""
    return {name: keys_of(value) for name, value in state.items()} if isinstance(state, dict) else None
