"""`python -m nvidia_resiliency_ext.fault_tolerance.launcher` is `ft_launcher`, in the spellings of every age."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

from tests.compat.conftest import NAME
from tests.processes import Spawned, Spawner

PROGRAM = Path(__file__).parent / "programs" / "shows_settings.py"
ROOT = Path(__file__).resolve().parents[2]

MODULES = {"alias": f"{NAME}.fault_tolerance.launcher", "own": "holdfast.fault_tolerance.launcher"}

# Each field in another spelling: the oldest (NeMo-Run, the documents), the newer ones, hyphens and underscores.
SPELLINGS = [
    "--ft-param-rank_section_timeouts=setup:600,step:180,checkpointing:420",
    "--ft-param-rank_out_of_section_timeout=300",
    "--ft-param-workload-check-interval=1",
    "--ft_param_safety_factor=4",
    "--ft-rank-heartbeat-timeout=null",
    "--ft-rank_termination_signal=SIGTERM",
    "--ft_log_level=DBG",
    "--ignore-missing-fault-tol-cfg",
]
GIVEN = {
    "rank_section_timeouts": {"setup": 600.0, "step": 180.0, "checkpointing": 420.0},
    "rank_out_of_section_timeout": 300.0,
    "workload_check_interval": 1.0,
    "safety_factor": 4.0,
    "rank_heartbeat_timeout": None,
    "node_health_check_interval": 7.0,
    "initial_rank_heartbeat_timeout": 71.0,
}
"""The last but one from the file, the last from the environment."""


def start(
    spawn: Spawner, python: str, module: str, folder: Path, environment: dict[str, str | None], *options: str
) -> Spawned:
    """One rank with all of these."""
    words = [
        "--rdzv_backend=c10d",
        "--rdzv_endpoint=127.0.0.1:0",
        "--nnodes=1",
        "--nproc-per-node=1",
        *SPELLINGS,
    ]
    return spawn(
        [
            python,
            "-m",
            MODULES[module],
            *words,
            *options,
            PROGRAM,
            folder,
            "--ft-param-of=the script",
        ],
        env={
            "PET_FT_INITIAL_RANK_HEARTBEAT_TIMEOUT": "71",
            "FAULT_TOL_FINISHED_FLAG_FILE": str(folder / "finished"),
            "OMP_NUM_THREADS": "1",
            **environment,
        },
    )


@pytest.mark.slow
def test_every_age_s_spellings_under_both_names(spawn: Spawner, python: str, tmp_path: Path) -> None:
    config = tmp_path / "ft.yml"
    config.write_text("job:\n  fault_tolerance:\n    node_health_check_interval: 7\n    safety_factor: 9\n")
    # The file by its oldest flag, its newest flag, and the environment.
    ways = {
        "alias": (f"--fault-tol-cfg-path={config}", {}),
        "own": (f"--ft-cfg-path={config}", {}),
        "by-environment": ("--ft-ignore-missing-cfg", {"FAULT_TOL_CFG_PATH": str(config)}),
    }
    jobs = {}
    for name, (option, more) in ways.items():
        (tmp_path / name).mkdir()
        module = "own" if name == "own" else "alias"
        jobs[name] = start(spawn, python, module, tmp_path / name, more, option)
    told = {}
    for name, job in jobs.items():
        assert job.wait() == 0, job.output()
        settings, environment, arguments = json.loads((tmp_path / name / "0.json").read_text())
        assert environment.pop("FAULT_TOL_FINISHED_FLAG_FILE") == str(tmp_path / name / "finished")
        told[name] = (settings, environment)
        assert arguments == ["--ft-param-of=the script"]
    assert told["alias"] == told["own"] == told["by-environment"]
    settings, environment = told["alias"]
    assert {key: settings[key] for key in GIVEN} == GIVEN
    assert (settings["rank_termination_signal"], settings["log_level"]) == ("SIGTERM", "DEBUG")
    assert environment == {"RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_RESTART_COUNT": "0"}


def test_mistakes_are_alike(spawn: Spawner, python: str) -> None:
    words = ["--ft-rank-heartbeat-timeout=-1", "x.py"]
    jobs = [spawn([python, "-m", module, *words]) for module in MODULES.values()]
    assert [job.wait() for job in jobs] == [2, 2]
    assert jobs[0].output() == jobs[1].output()
    assert "ft_launcher: error: --ft-rank-heartbeat-timeout" in jobs[0].err()


@pytest.mark.usefixtures("alias")
def test_as_a_function(capsys: pytest.CaptureFixture[str]) -> None:
    launcher = importlib.import_module(f"{NAME}.fault_tolerance.launcher")
    with pytest.raises(SystemExit) as stop:
        launcher.main(["--ft-cfg-path=/no/such/file", "x.py"])
    assert stop.value.code == 2
    assert "/no/such/file" in capsys.readouterr().err


@pytest.mark.usefixtures("alias")
def test_parser_and_config_agree() -> None:
    """As tests of NVRx's releases use the two."""
    launcher = importlib.import_module(f"{NAME}.fault_tolerance.launcher")
    config = importlib.import_module(f"{NAME}.fault_tolerance.config").FaultToleranceConfig
    assert {"main", "get_args_parser"} <= set(dir(launcher))
    args = launcher.get_args_parser().parse_args(["--ft-param-rank_heartbeat_timeout=60", "x.py"])
    assert config.from_args(args).rank_heartbeat_timeout == 60.0
