"""Installed and removed by pip in every order, beside the original's wheels and without; programs that use both."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import holdfast
from benchmarks import environments
from tests.compat.conftest import COMPAT, NAME
from tests.gpu.gpu_environment import link_packages
from tests.processes import Spawner

ROOT = COMPAT.parent
PROBE = Path(__file__).parent / "programs" / "probe.py"
REQUIRED = "HOLDFAST_REQUIRE_NVRX"
OURS = ("fault_tolerance", "straggler", "attribution.straggler")
REPAIR = "pip install --force-reinstall --no-deps holdfast"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Of this tree; builds leave files in their sources, so these are copies. Without the native libraries."""
    folder = tmp_path_factory.mktemp("wheels")
    skip = shutil.ignore_patterns("build", "*.egg-info", "__pycache__", "*.so")
    for name in ("src", "compat"):
        shutil.copytree(ROOT / name, folder / name, ignore=skip)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-index",
        "--no-build-isolation",
        "--wheel-dir",
        folder,
    ]
    environment = {**os.environ, "CC": "false", "CXX": "false", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    subprocess.run(
        [*pip, "--wheel-dir", folder, folder, folder / "compat"],
        check=True,
        env=environment,
        capture_output=True,
    )
    (own,) = folder.glob("holdfast-*.whl")
    (second,) = folder.glob("holdfast_nvrx-*.whl")
    return {"holdfast": own, "holdfast-nvrx": second}


@pytest.fixture(params=environments.WHEELS)
def original(request: pytest.FixtureRequest) -> tuple[str, Path]:
    """Version and wheel of the original."""
    wheel = environments.nvrx_wheel(request.param)
    if wheel is None:
        reason = f"no wheel of NVRx {request.param} for this Python (make nvrx)"
        if os.environ.get(REQUIRED) == "1" and sys.version_info[:2] == (3, 11):
            pytest.fail(f"{REQUIRED}=1, but {reason}")
        pytest.skip(reason)
    return request.param, wheel


class Environment:
    """An environment with the packages of the tests, but neither Holdfast nor the original."""

    def __init__(self, folder: Path) -> None:
        self.python, self.packages = link_packages(
            folder, without=("holdfast", "__editable__", "nvidia_resiliency")
        )

    def run(self, *words: str | Path, code: int | None = 0, **variables: str) -> str:
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment = {**kept, "PIP_DISABLE_PIP_VERSION_CHECK": "1", **variables}
        done = subprocess.run(
            [self.python, *words],
            capture_output=True,
            text=True,
            timeout=120,
            env=environment,
            cwd=self.packages.parent,
        )
        assert code is None or done.returncode == code, done.stdout + done.stderr
        return done.stdout if code == 0 else done.stdout + done.stderr

    def install(self, *wheels: Path) -> None:
        self.run("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", *wheels)

    def remove(self, *names: str) -> None:
        self.run("-m", "pip", "uninstall", "--quiet", "-y", *names)

    def probe(self, **variables: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run(PROBE, **variables).splitlines()[-1])
        return found

    @property
    def command(self) -> Path:
        return self.python.parent / "ft_launcher"


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return Environment(tmp_path / "environment")


def expect_alone(environment: Environment) -> None:
    found = environment.probe()
    answers = found["answers"]
    assert [answers[name] for name in OURS] == ["Holdfast"] * 3
    assert answers["inprocess"] == "stub"
    assert "does not offer local and asynchronous checkpoints" in answers["checkpointing.async_ckpt.core"]
    assert found["version"] == "0.6.0+holdfast"


def expect_both(environment: Environment, version: str) -> None:
    found = environment.probe()
    answers = found["answers"]
    assert [answers[name] for name in OURS] == ["Holdfast"] * 3
    assert {answers[name] for name in answers if name not in OURS} == {"original"}
    assert found["version"] == version


def test_alone_installed_and_removed(environment: Environment, wheels: dict[str, Path]) -> None:
    before = sorted(path.name for path in environment.packages.iterdir())
    environment.install(*wheels.values())
    added = sorted(
        path.name for path in environment.packages.iterdir() if path.name not in [*before, "__pycache__"]
    )
    version = holdfast.__version__
    expected = [
        "holdfast",
        "holdfast_nvrx",
        f"holdfast-{version}.dist-info",
        f"holdfast_nvrx-{version}.dist-info",
    ]
    assert added == sorted([*expected, "holdfast_nvrx.pth", "holdfast_nvrx_start.py"]), (
        "the folder of the original is not touched"
    )
    expect_alone(environment)
    assert "--ft-rank-heartbeat-timeout" in environment.run(
        "-m", f"{NAME}.fault_tolerance.launcher", "--help"
    )
    doctor = json.loads(environment.run("-m", "holdfast", "doctor", "--json", code=None))
    names = [each["what"] for each in doctor["findings"] if each["check"] == "import names"]
    assert names[0].endswith("straggler: Holdfast") and names[1] == f"{NAME}: other modules: not installed"
    environment.remove("holdfast-nvrx", "holdfast")
    assert (
        sorted(path.name for path in environment.packages.iterdir() if path.name != "__pycache__") == before
    )


def test_beside_the_original_in_both_orders(
    environment: Environment, wheels: dict[str, Path], original: tuple[str, Path]
) -> None:
    """Each is removed, the other used, and the removed one installed again, so that each is the first one once."""
    version, wheel = original
    environment.install(wheel)
    environment.install(*wheels.values())
    expect_both(environment, version)
    # Whichever script is there starts the launcher of Holdfast.
    assert "--ft-warm-start" in environment.run(environment.command, "--help")

    environment.remove("nvidia-resiliency-ext")
    expect_alone(environment)
    assert not environment.command.exists()
    (warning,) = environment.probe()["warnings"]
    assert warning.endswith(REPAIR)
    assert "--ft-warm-start" in environment.run("-m", f"{NAME}.fault_tolerance.launcher", "--help")
    environment.run("-m", *REPAIR.split()[:-1], "--quiet", "--no-index", wheels["holdfast"])
    assert environment.command.exists() and environment.probe()["warnings"] == []
    environment.install(wheel)
    expect_both(environment, version)
    assert "--ft-warm-start" in environment.run(environment.command, "--help")

    # A variable gives the original back.
    answers = environment.probe(HOLDFAST_NVRX="off")["answers"]
    assert "Holdfast" not in answers.values()
    assert answers["checkpointing.async_ckpt.core"] == "original"
    doctor = json.loads(environment.run("-m", "holdfast", "doctor", "--json", code=None, HOLDFAST_NVRX="off"))
    (name,) = [each["what"] for each in doctor["findings"] if each["check"] == "import names"]
    assert name.endswith("(HOLDFAST_NVRX=off)")

    environment.remove("holdfast-nvrx", "holdfast")
    answers = environment.probe()["answers"]
    assert answers["checkpointing.async_ckpt.core"] == "original" and "Holdfast" not in answers.values()
    environment.install(*wheels.values())
    expect_both(environment, version)


def test_editable_installation_is_refused(environment: Environment, tmp_path: Path) -> None:
    skip = shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
    source = shutil.copytree(COMPAT, tmp_path / "source", ignore=skip)
    offline = ["--no-deps", "--no-index", "--no-build-isolation"]
    assert "pip install ." in environment.run("-m", "pip", "install", *offline, "-e", source, code=1)


def test_both_distributions_have_one_version() -> None:
    text = (COMPAT / "pyproject.toml").read_text()
    assert f'version = "{holdfast.__version__}"' in text and f'"holdfast>={holdfast.__version__}"' in text


# -- programs that use the original and Holdfast in one process, and one program under either


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
    environment: Environment,
    wheels: dict[str, Path],
    original: tuple[str, Path],
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
    environment: Environment,
    wheels: dict[str, Path],
    original: tuple[str, Path],
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
